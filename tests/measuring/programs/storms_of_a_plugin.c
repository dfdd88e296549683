// Sends shootdowns by a function of the program, and after SIGUSR1 by one of a library that it then loads. Runs until
// SIGTERM.
//
// build: gcc -g -O1 -shared -fPIC -DPLUGIN -o $BUILD/plugin.so $SRC
// build: gcc -g -O1 -pthread -o $OUT $SRC -ldl

#define _GNU_SOURCE
#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

// The code after the call keeps the compiler from turning it into a jump.
#define STORM(name)                                                                                                    \
    __attribute__((noinline)) int name(volatile char *page) {                                                          \
        *page = 1;                                                                                                     \
        int result = madvise((void *)page, 4096, MADV_DONTNEED);                                                       \
        return result + *page;                                                                                         \
    }

#ifdef PLUGIN

STORM(storms_by_plugin)

#else

enum { ROUNDS_BEFORE_LOADING = 20000 };

static volatile sig_atomic_t asked, ended;
static volatile unsigned long counted;

static void note(int signal) {
    if (signal == SIGUSR1)
        asked = 1;
    else
        ended = 1;
}

STORM(storms_by_itself)

static void *keep_a_cpu_busy(void *unused) {
    (void)unused;
    while (!ended)
        counted++;
    return NULL;
}

static int (*loaded(void))(volatile char *) {
    char path[PATH_MAX + sizeof "plugin.so"];
    ssize_t length = readlink("/proc/self/exe", path, PATH_MAX);
    if (length < 0)
        abort();
    path[length] = 0;
    strcpy(strrchr(path, '/') + 1, "plugin.so");
    void *library = dlopen(path, RTLD_NOW);
    if (!library)
        abort();
    return (int (*)(volatile char *))dlsym(library, "storms_by_plugin");
}

int main(void) {
    signal(SIGUSR1, note);
    signal(SIGTERM, note);
    signal(SIGALRM, note);
    alarm(120);
    volatile char *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    pthread_t busy;
    if (page == MAP_FAILED || pthread_create(&busy, NULL, keep_a_cpu_busy, NULL))
        return 3;
    puts("ready");
    fflush(stdout);
    int (*storm)(volatile char *) = storms_by_itself;
    for (long left = ROUNDS_BEFORE_LOADING; !ended;) {
        if (storm(page))
            abort();
        // By then the watch has begun, and has found the process without the library.
        if (asked && left > 0 && --left == 0)
            storm = loaded();
    }
    pthread_join(busy, NULL);
    puts("all right");
    return 0;
}

#endif
