// Frees, resizes and measures blocks of the C library by functions that are found in every way past the usual order of
// symbols: in a library loaded with RTLD_DEEPBIND, from its constructor on, by the C library's handle, with a version,
// after the program, and by the C library's other names. The reverse is tested too.
//
// build: gcc -g -O1 -Wall -fno-builtin -fPIC -shared -DLIBRARY -o $BUILD/library.so $SRC
// build: gcc -g -O1 -Wall -fno-builtin -o $OUT $SRC -ldl
#define _GNU_SOURCE
#include <dlfcn.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Small, and large enough for a separate place. */
static const size_t sizes[] = {1, 100, 100000, 20 << 20};
enum { SIZES = sizeof sizes / sizeof *sizes };

struct functions {
    const char *name;
    void *(*malloc)(size_t);
    void *(*calloc)(size_t, size_t);
    void *(*realloc)(void *, size_t);
    void *(*memalign)(size_t, size_t);
    void (*free)(void *);
};

#ifdef LIBRARY

static char *from_constructor;

__attribute__((constructor)) static void begin(void) {
    from_constructor = strdup("made by a constructor");
    free(strdup("made and freed by a constructor"));
}

__attribute__((destructor)) static void end(void) {
    free(from_constructor);
}

__attribute__((visibility("default"))) struct functions of_library(void) {
    struct functions all = {"a library loaded with RTLD_DEEPBIND", malloc, calloc, realloc, memalign, free};
    return all;
}

#else

extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);
extern void __libc_free(void *);

static void *by_version(void *handle, const char *name) {
    void *found = dlvsym(handle, name, "GLIBC_2.2.5");
    return found ? found : dlvsym(handle, name, "GLIBC_2.17");
}

static struct functions looked_up(const char *how, void *handle, void *(*look)(void *, const char *), const char *prefix) {
    struct functions all = {how};
    void **places[] = {(void **)&all.malloc, (void **)&all.calloc, (void **)&all.realloc, (void **)&all.memalign, (void **)&all.free};
    const char *names[] = {"malloc", "calloc", "realloc", "memalign", "free"};
    for (int i = 0; i < 5; i++) {
        char name[64];
        snprintf(name, sizeof name, "%s%s", prefix, names[i]);
        *places[i] = look(handle, name);
        if (!*places[i]) {
            printf("%s: no %s\n", how, name);
            exit(2);
        }
    }
    return all;
}

/* Texts of the C library's own, from the heap that its functions use. */
static char *text(int kind, size_t size) {
    char *line = NULL, *source = malloc(size + 2);
    size_t length = 0;
    memset(source, 'x', size);
    strcpy(source + size, "");
    if (kind == 0) {
        line = strdup(source);
    } else if (kind == 1) {
        if (asprintf(&line, "%s", source) < 0) exit(3);
    } else {
        FILE *file = fmemopen(source, size, "r");
        if (!file || getline(&line, &length, file) < 0) exit(3);
        fclose(file);
    }
    free(source);
    return line;
}

static void check(const char *block, size_t size, const char *what) {
    for (size_t i = 0; i < size; i++)
        if (block[i] != 'x') {
            printf("%s: byte %zu is lost\n", what, i);
            exit(4);
        }
}

static void exchange(const struct functions *giver, const struct functions *taker) {
    for (int i = 0; i < SIZES; i++) {
        char *blocks[] = {giver->malloc(sizes[i]), giver->calloc(1, sizes[i]), giver->memalign(64, sizes[i]), giver->realloc(NULL, sizes[i])};
        for (int k = 0; k < 4; k++) {
            memset(blocks[k], 'x', sizes[i]);
            char *larger = taker->realloc(blocks[k], 2 * sizes[i]);
            check(larger, sizes[i], taker->name);
            taker->free(larger);
        }
    }
}

int main(int argc, char **argv) {
    char path[4096];
    snprintf(path, sizeof path, "%.*s/library.so", (int)(strrchr(argv[0], '/') - argv[0]), argv[0]);
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND), *libc = dlopen("libc.so.6", RTLD_NOW);
    if (!library || !libc) return printf("%s\n", dlerror()), 1;
    struct functions (*of_library)(void) = (struct functions (*)(void))dlsym(library, "of_library");
    struct functions all[] = {
        {"the usual ones", malloc, calloc, realloc, memalign, free},
        of_library(),
        looked_up("dlsym of the C library's handle", libc, dlsym, ""),
        looked_up("dlvsym of the C library's handle", libc, by_version, ""),
        looked_up("dlsym of RTLD_NEXT", RTLD_NEXT, dlsym, ""),
        looked_up("dlsym of RTLD_DEFAULT", RTLD_DEFAULT, dlsym, ""),
        looked_up("__libc_ by the C library's handle", libc, dlsym, "__libc_"),
        {"__libc_", __libc_malloc, __libc_calloc, __libc_realloc, __libc_memalign, __libc_free},
    };
    int count = sizeof all / sizeof *all;
    for (int i = 0; i < count; i++) {
        for (int kind = 0; kind < 3; kind++)
            for (int size = 0; size < SIZES; size++) {
                char *line = text(kind, sizes[size]);
                check(line, sizes[size], all[i].name);
                all[i].free(line);
            }
        for (int k = 0; k < count; k++) exchange(&all[i], &all[k]);
    }
    size_t (*usable)(void *) = (size_t (*)(void *))dlsym(libc, "malloc_usable_size");
    char *line = text(0, 100);
    if (usable(line) < 101 || usable(line) > 4096) return printf("usable: %zu\n", usable(line)), 5;
    free(line);
    if (dlclose(library)) return 6;
    printf("%d ways\n", count);
    return 0;
}

#endif
