// Reports the owner of the blocks of malloc and related functions, and of new in C++, in a program with a shared
// allocator: a function of that library recognises its blocks. malloc_usable_size, realloc and free accept each block.
//
// build: gcc -g -O1 -Wall -fno-builtin -o $OUT $SRC -ldl
#define _GNU_SOURCE
#include <dlfcn.h>
#include <malloc.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(what)                                                                                                      \
    do {                                                                                                                 \
        if (!(what)) {                                                                                                   \
            fprintf(stderr, "line %d: %s\n", __LINE__, #what);                                                           \
            exit(1);                                                                                                     \
        }                                                                                                                \
    } while (0)

enum { KINDS = 8, SIZES = 4 };
static const size_t sizes[SIZES] = {100, 5000, 300000, 9 << 20};

static int (*tcmalloc_owner)(const void *);
static int (*jemalloc_control)(const char *, void *, size_t *, void *, size_t);
static bool (*mimalloc_has)(const void *);

/* To be called immediately after each allocation. */
static int is_its_own(void *block) {
    static uint64_t before;
    uint64_t allocated = 0;
    size_t length = sizeof allocated;
    if (tcmalloc_owner)
        return tcmalloc_owner(block) == 1;
    if (jemalloc_control) {
        /* jemalloc accepts no unknown block, but counts the thread's allocated bytes. */
        CHECK(jemalloc_control("thread.allocated", &allocated, &length, NULL, 0) == 0);
        int is_more = allocated > before;
        before = allocated;
        return is_more;
    }
    return mimalloc_has && mimalloc_has(block);
}

static void *get(int kind, size_t size) {
    void *block = NULL;
    switch (kind) {
    case 0: return malloc(size);
    case 1: return calloc(1, size);
    case 2: return realloc(NULL, size);
    case 3: return aligned_alloc(64, size);
    case 4: return memalign(4096, size);
    case 5: return posix_memalign(&block, 1 << 12, size) ? NULL : block;
    case 6: return valloc(size);
    default: return realloc(malloc(3), size);
    }
}

static void say(const char *what, int own, int all) {
    printf("%s: %s\n", what, own == all ? "its own" : own == 0 ? "another's" : "mixed");
}

#ifdef __cplusplus
/* Whether realloc and free accept a block of new depends on the library; malloc_usable_size accepts it. */
static void of_new() {
    int own = 0;
    for (int i = 0; i < SIZES; i++) {
        char *several = new char[sizes[i]];
        own += is_its_own(several);
        CHECK(malloc_usable_size(several) >= sizes[i]);
        memset(several, 1, sizes[i]);
        int *one = new int(7);
        own += is_its_own(one);
        CHECK(malloc_usable_size(one) >= sizeof(int) && *one == 7);
        delete[] several;
        delete one;
    }
    say("new", own, 2 * SIZES);
}
#endif

int main(void) {
    *(void **)&tcmalloc_owner = dlsym(RTLD_DEFAULT, "MallocExtension_GetOwnership");
    *(void **)&jemalloc_control = dlsym(RTLD_DEFAULT, "mallctl");
    *(void **)&mimalloc_has = dlsym(RTLD_DEFAULT, "mi_is_in_heap_region");
    int own = 0;
    for (int kind = 0; kind < KINDS; kind++) {
        for (int i = 0; i < SIZES; i++) {
            size_t size = sizes[i];
            char *block = (char *)get(kind, size);
            CHECK(block && malloc_usable_size(block) >= size);
            own += is_its_own(block);
            memset(block, 2, size);
            CHECK((block = (char *)realloc(block, 2 * size)) && block[0] == 2 && block[size - 1] == 2);
            CHECK(malloc_usable_size(block) >= 2 * size);
            own += is_its_own(block);
            free(block);
        }
    }
    say("malloc", own, 2 * KINDS * SIZES);
#ifdef __cplusplus
    of_new();
#endif
    return 0;
}
