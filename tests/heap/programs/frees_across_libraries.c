// A program and a library that it loads resize and free each other's blocks: small and large, from each function of the
// allocator, in another thread too, and after the library is unloaded. The library's constructor, its destructor and
// its thread-local storage use the heap as well.
//
// build: gcc -g -O1 -Wall -fno-builtin -fPIC -shared -DLIBRARY -o $BUILD/library.so $SRC
// build: gcc -g -O1 -Wall -fno-builtin -o $OUT $SRC -lpthread -ldl
#define _GNU_SOURCE
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KINDS = 9, SIZES = 11, STORAGE = 100000 };

/* The functions of the library. */
struct library {
    void *(*get)(int kind, size_t size);
    int (*put)(void *block, size_t size);
    void *(*change)(void *block, size_t size);
    char *(*storage)(void);
};

#ifdef LIBRARY

static char *from_constructor;
static __thread char of_thread[STORAGE];

__attribute__((constructor)) static void begin(void) {
    from_constructor = strdup("made by a constructor");
}

__attribute__((destructor)) static void end(void) {
    free(from_constructor);
}

static void *get(int kind, size_t size) {
    void *block = NULL;
    switch (kind) {
    case 0: return calloc(1, size);
    case 1: return realloc(NULL, size);
    case 2: return aligned_alloc(64, size);
    case 3: return memalign(4096, size);
    case 4: return posix_memalign(&block, 1 << 20, size) ? NULL : block;
    case 5: return valloc(size);
    case 6: return reallocarray(malloc(3), size, 1);
    case 7: return realloc(strdup("of the C library"), size);
    default: return malloc(size);
    }
}

/* Checks that a block is filled with 1, and frees it. */
static int put(void *block, size_t size) {
    char *bytes = block;
    if (malloc_usable_size(block) < size || bytes[0] != 1 || bytes[size - 1] != 1)
        return 0;
    free(block);
    return 1;
}

static void *change(void *block, size_t size) {
    return realloc(block, size);
}

static char *storage(void) {
    return of_thread;
}

const struct library library = {get, put, change, storage};

#else

#include <dlfcn.h>
#include <pthread.h>

#define CHECK(what)                                                                                                      \
    do {                                                                                                                 \
        if (!(what)) {                                                                                                   \
            fprintf(stderr, "line %d: %s\n", __LINE__, #what);                                                           \
            exit(1);                                                                                                     \
        }                                                                                                                \
    } while (0)

static const size_t sizes[SIZES] = {1, 16, 100, 1000, 5000, 40000, 300000, 1 << 20, 5 << 20, 9 << 20, 20 << 20};
static const struct library *library;

static void across(void) {
    for (int i = 0; i < SIZES; i++) {
        for (int kind = 0; kind < KINDS; kind++) {
            size_t size = sizes[i];
            char *block = library->get(kind, size);
            CHECK(block && malloc_usable_size(block) >= size);
            memset(block, 2, size);
            CHECK((block = realloc(block, size + size / 2 + 1)) && block[0] == 2 && block[size - 1] == 2);
            free(block);
        }
        size_t size = sizes[i], other = sizes[SIZES - 1 - i], less = size < other ? size : other;
        char *block = malloc(size);
        CHECK(block);
        memset(block, 1, size);
        CHECK((block = library->change(block, other)) && block[0] == 1 && block[less - 1] == 1);
        memset(block, 1, other);
        CHECK(library->put(block, other));
    }
}

static void *in_thread(void *block) {
    /* The dynamic linker gets the library's part of a thread's storage from the heap when it is used first. */
    char *storage = library->storage();
    for (int i = 0; i < STORAGE; i++)
        CHECK(storage[i] == 0);
    memset(storage, 3, STORAGE);
    across();
    CHECK(library->put(block, 50000));
    return library->get(8, 70000);
}

int main(void) {
    char path[4096] = {0};
    CHECK(realpath("/proc/self/exe", path));
    strcpy(strrchr(path, '/') + 1, "library.so");
    for (int round = 0; round < 3; round++) {
        void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        CHECK(handle && (library = dlsym(handle, "library")));
        across();
        pthread_t threads[3];
        char *left[3], *kept[SIZES];
        for (int i = 0; i < 3; i++) {
            char *block = malloc(50000);
            memset(block, 1, 50000);
            CHECK(pthread_create(&threads[i], NULL, in_thread, block) == 0);
        }
        for (int i = 0; i < 3; i++) {
            CHECK(pthread_join(threads[i], (void **)&left[i]) == 0);
            memset(left[i], 4, 70000);
        }
        for (int i = 0; i < SIZES; i++)
            memset(kept[i] = library->get(8, sizes[i]), 5, sizes[i]);
        CHECK(dlclose(handle) == 0);
        for (int i = 0; i < 3; i++)
            free(left[i]);
        for (int i = 0; i < SIZES; i++) {
            CHECK(kept[i][0] == 5 && kept[i][sizes[i] - 1] == 5);
            free(kept[i]);
        }
    }
    puts("all is well");
    return 0;
}

#endif
