// A large program whose code is excluded from core dumps, and its large library, whose code has a breakpoint. At the
// end it reports whether a mapping of the library's file has the breakpoint, and removes it.
//
// build: gcc -g -O1 -Wall -Wno-unused-function -DLIBRARY -shared -fPIC -o $BUILD/libholds.so $SRC
// build: gcc -g -O1 -Wall -Wno-unused-function -fPIE -pie -o $OUT $SRC -ldl
#define _GNU_SOURCE
#ifdef LIBRARY
#define CODE_PAGES 1600
#include "ranges.h"
char *middle_of_code(void) { return scattered_code + 4096 * (CODE_PAGES / 2); }
uint64_t sum_of_code(void) { return run_code(); }
#else
#define CODE_PAGES 1700
#include "ranges.h"
#include "ready.h"
#include <dlfcn.h>
#include <fcntl.h>
#include <libgen.h>
#include <sys/mman.h>

#if defined(__aarch64__)
static const unsigned char breakpoint[] = {0, 0, 0x20, 0xd4};
#else
static const unsigned char breakpoint[] = {0xcc};
#endif

/* The path of the mapping that holds an address. */
static const char *path_at(const void *address) {
    static char line[4096], path[4096];
    FILE *maps = fopen("/proc/self/maps", "r");
    unsigned long start, end;
    while (maps && fgets(line, sizeof line, maps)) {
        path[0] = 0;
        sscanf(line, "%lx-%lx %*s %*s %*s %*s %4095s", &start, &end, path);
        if (start <= (uintptr_t)address && (uintptr_t)address < end) break;
    }
    fclose(maps);
    return path;
}

int main(void) {
    char library[4096] = {0};
    if (readlink("/proc/self/exe", library, sizeof library - 16) < 0) return 2;
    strcat(dirname(library), "/libholds.so");
    void *loaded = dlopen(library, RTLD_NOW);
    char *(*middle)(void) = loaded ? dlsym(loaded, "middle_of_code") : NULL;
    uint64_t (*sum)(void) = loaded ? dlsym(loaded, "sum_of_code") : NULL;
    if (!middle || !sum || madvise(scattered_code, 4096 * CODE_PAGES, MADV_DONTDUMP)) return 3;
    uint64_t before = sum();
    unsigned char original[sizeof breakpoint];
    char *place = middle();
    memcpy(original, place, sizeof original);
    int memory = open("/proc/self/mem", O_RDWR);
    if (pwrite(memory, breakpoint, sizeof breakpoint, (off_t)(uintptr_t)place) != sizeof breakpoint) return 4;
    ready();
    printf("the breakpoint is in %s\n", strcmp(path_at(place), library) ? "a copy" : "its file");
    if (pwrite(memory, original, sizeof original, (off_t)(uintptr_t)place) != sizeof original) return 5;
    return sum() != before || run_code() == 0;
}
#endif
