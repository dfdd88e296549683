// Loads its large library, runs the library's code, unloads it, and maps private memory or other parts of the file at the
// addresses, in a loop that ends when a line is read. The contents must be right at every moment.
//
// build: gcc -g -O1 -Wall -Wno-unused-function -DLIBRARY -shared -fPIC -Wl,-z,max-page-size=0x200000 -o $BUILD/libexchanged.so $SRC
// build: gcc -g -O1 -Wall -pthread -o $OUT $SRC -ldl
#define _GNU_SOURCE
#ifdef LIBRARY
#define CODE_PAGES 3328
#include "ranges.h"
char *start_of_code(void) { return scattered_code; }
uint64_t sum_of_code(void) { return run_code(); }
#else
#include <dlfcn.h>
#include <fcntl.h>
#include <libgen.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { BYTES = 8 << 20, PAGE = 4096, KINDS = 3 };

static void *sleeps(void *unused) {
    for (;;) pause();
    return unused;
}

static int told(void) {
    struct pollfd input = {.fd = 0, .events = POLLIN};
    return poll(&input, 1, 0) == 1;
}

/* Maps other memory at an address for a part of the duration of a lift, and checks the contents. */
static void own_memory(char *at, int file, int kind, int rounds) {
    int flags = MAP_PRIVATE | MAP_FIXED_NOREPLACE;
    char *own = kind == 0 ? mmap(at, BYTES, PROT_READ | PROT_WRITE, flags | MAP_ANONYMOUS, -1, 0)
                          : mmap(at, BYTES, PROT_READ | PROT_EXEC, flags, file, kind * (2 << 20));
    if (own == MAP_FAILED) return;
    if (kind == 0) memset(own, 7, BYTES);
    for (int round = 0; round < rounds; round++) {
        for (int page = 0; page < BYTES / PAGE; page += 31) {
            char expected = 7;
            if (kind && pread(file, &expected, 1, kind * (2 << 20) + (off_t)page * PAGE) != 1) continue;
            if (own[page * PAGE] != expected) abort();
        }
        usleep(500);
    }
    munmap(own, BYTES);
}

int main(void) {
    char library[4096] = {0};
    if (readlink("/proc/self/exe", library, sizeof library - 20) < 0) return 2;
    strcat(dirname(library), "/libexchanged.so");
    int file = open(library, O_RDONLY);
    pthread_t other;
    pthread_create(&other, NULL, sleeps, NULL);
    uint64_t first = 0;
    for (int round = 0; !told(); round++) {
        void *loaded = dlopen(library, RTLD_NOW);
        char *(*start)(void) = loaded ? dlsym(loaded, "start_of_code") : NULL;
        uint64_t (*sum)(void) = loaded ? dlsym(loaded, "sum_of_code") : NULL;
        if (!start || !sum) return 3;
        for (int check = 0; check < 1 + round * 7 % 16; check++) {
            uint64_t now = sum();
            if (first && now != first) abort();
            first = now;
            usleep(300);
        }
        char *at = start();
        dlclose(loaded);
        if (round == 0) {
            printf("ready\n");
            fflush(stdout);
        }
        own_memory((char *)((uintptr_t)at & -(uintptr_t)PAGE), file, round % KINDS, round * 5 % 6);
    }
    printf("right\n");
    return 0;
}
#endif
