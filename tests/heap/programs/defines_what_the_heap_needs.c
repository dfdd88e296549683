// A shared object to be preloaded, or an object of a program, that defines functions of the C library that a memory
// allocator needs, as tracers, simulators and leak checkers do. Each allocates before it calls the real function. If
// the preloaded heap calls one, the program ends: the allocation would call the heap again.
//
// build: gcc -g -O1 -Wall -fPIC -shared -o $OUT $SRC
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static __thread int is_inside __attribute__((tls_model("initial-exec")));

static void refuse(const char *name)
{
    write(2, name, strlen(name));
    write(2, " was called by the heap\n", 24);
    _exit(99);
}

static void called(const char *name, void *from)
{
    Dl_info info;
    if (is_inside) return;
    is_inside = 1;
    if (dladdr(from, &info) && info.dli_fname && strstr(info.dli_fname, "libpagelift_heap")) refuse(name);
    void *volatile block = malloc(100);
    free(block);
    is_inside = 0;
}

// Each argument is passed as one word; there are at most seven.
#define PASS_ON(name) \
    static long (*real_##name)(long, long, long, long, long, long, long); \
    long own_##name(long, long, long, long, long, long, long) __asm__(#name); \
    long own_##name(long a, long b, long c, long d, long e, long f, long g) \
    { \
        called(#name, __builtin_return_address(0)); \
        if (!real_##name) *(void **)&real_##name = dlsym(RTLD_NEXT, #name); \
        return real_##name(a, b, c, d, e, f, g); \
    }

PASS_ON(mmap) PASS_ON(mmap64) PASS_ON(munmap) PASS_ON(mremap) PASS_ON(madvise) PASS_ON(mprotect) PASS_ON(mincore)
PASS_ON(prctl) PASS_ON(syscall) PASS_ON(sysconf) PASS_ON(sysinfo) PASS_ON(getrusage) PASS_ON(getrlimit)
PASS_ON(clock_gettime) PASS_ON(sched_yield) PASS_ON(sleep) PASS_ON(nanosleep)
PASS_ON(getpid) PASS_ON(getuid) PASS_ON(getsockopt) PASS_ON(readlink) PASS_ON(stat) PASS_ON(open) PASS_ON(open64)
PASS_ON(read) PASS_ON(close) PASS_ON(fputs)
PASS_ON(pthread_mutex_lock) PASS_ON(pthread_mutex_trylock) PASS_ON(pthread_mutex_unlock) PASS_ON(pthread_self)
PASS_ON(dl_iterate_phdr) PASS_ON(dlerror) PASS_ON(gnu_get_libc_version)
