// A library that a user preloads: it counts calls of malloc, and prints their number and the library that served them
// at the end. With ALONE it is a separate allocator, which calls no other.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Only blocks of this size count: the C library and the dynamic linker have some of their own. */
enum { COUNTED = 4321 };
static int count;

#ifdef ALONE

static char memory[64 << 20];
static size_t used;

void *malloc(size_t size) {
    count += size == COUNTED;
    size_t *block = (size_t *)(memory + used);
    used += (size + 31) & ~15ul;
    *block = size;
    return block + 2;
}

void *calloc(size_t number, size_t size) {
    return malloc(number * size);
}

void *realloc(void *block, size_t size) {
    void *new = malloc(size);
    size_t old = block ? *((size_t *)block - 2) : 0;
    return memcpy(new, block ? block : new, old < size ? old : size);
}

void free(void *block) {
    (void)block;
}

__attribute__((destructor)) static void end(void) {
    char line[100];
    (void)!write(2, line, snprintf(line, sizeof line, "own: %d blocks\n", count));
}

#else

static void *(*next)(size_t);

void *malloc(size_t size) {
    if (!next) next = (void *(*)(size_t))dlsym(RTLD_NEXT, "malloc");
    count += size == COUNTED;
    return next(size);
}

__attribute__((destructor)) static void end(void) {
    Dl_info info = {0};
    dladdr(next, &info);
    const char *name = info.dli_fname ? strrchr(info.dli_fname, '/') + 1 : "nobody";
    char line[300];
    (void)!write(2, line, snprintf(line, sizeof line, "tracer: %d blocks of %s\n", count, name));
}

#endif
