/* mimalloc's calls of the C library, without the names that a program can define. A program's or a preloaded
   library's mmap may allocate, and would be called for every arena; its pthread_mutex_lock may count and allocate, too.
   System calls are made directly; the calls of locks and of the clock are functions of ours (locks.rs, small.rs). */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <time.h>
#include <unistd.h>

static long kernel_call(long number, long a, long b, long c, long d, long e, long f) {
#if defined(__x86_64__)
    register long r10 __asm__("r10") = d;
    register long r8 __asm__("r8") = e;
    register long r9 __asm__("r9") = f;
    long result;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
#elif defined(__aarch64__)
    register long x8 __asm__("x8") = number;
    register long result __asm__("x0") = a;
    register long x1 __asm__("x1") = b;
    register long x2 __asm__("x2") = c;
    register long x3 __asm__("x3") = d;
    register long x4 __asm__("x4") = e;
    register long x5 __asm__("x5") = f;
    __asm__ volatile("svc #0"
                     : "+r"(result)
                     : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5)
                     : "memory");
#endif
    if (result < 0 && result >= -4095) {
        errno = (int)-result;
        return -1;
    }
    return result;
}

/* syscall(2) and prctl(2) take any number of arguments; the kernel ignores the missing ones. */
#define CALL(number, ...) CALL_OF_SIX(number, ##__VA_ARGS__, 0, 0, 0, 0, 0, 0)
#define CALL_OF_SIX(number, a, b, c, d, e, f, ...) \
    kernel_call((long)(number), (long)(a), (long)(b), (long)(c), (long)(d), (long)(e), (long)(f))

/* The program has begun to set a seccomp filter, which may end it at calls that are unusual for an allocator (sandbox.rs). */
bool mimalloc_in_sandbox;

static int result_of(long result) { return (int)result; }

/* Until the heap acts there is one thread, and no lock is needed. */
static int no_lock(pthread_mutex_t *mutex) {
    (void)mutex;
    return 0;
}
int (*mimalloc_lock)(pthread_mutex_t *) = no_lock;
int (*mimalloc_unlock)(pthread_mutex_t *) = no_lock;

static void yield_by_kernel(void) { CALL(SYS_sched_yield); }
void (*mimalloc_yield)(void) = yield_by_kernel;

static int clock_of_kernel(clockid_t clock, struct timespec *now) {
    return result_of(CALL(SYS_clock_gettime, clock, now));
}
int (*mimalloc_clock)(clockid_t, struct timespec *) = clock_of_kernel;

/* There is one stream, standard error. */
static int write_message(const char *message) {
    return result_of(CALL(SYS_write, 2, message, strlen(message)));
}

#define clock_gettime mimalloc_clock
#define fputs(message, stream) write_message(message)
#define getpid() ((pid_t)CALL(SYS_getpid))
#define getrusage(who, usage) result_of(CALL(SYS_getrusage, who, usage))
#define madvise(start, bytes, advice) result_of(CALL(SYS_madvise, start, bytes, advice))
#define mmap(start, bytes, protection, flags, file, offset) \
    ((void *)CALL(SYS_mmap, start, bytes, protection, flags, file, offset))
#define mprotect(start, bytes, protection) result_of(CALL(SYS_mprotect, start, bytes, protection))
#define munmap(start, bytes) result_of(CALL(SYS_munmap, start, bytes))
/* Names of mappings, and queries at the start. */
#define prctl(...) (__atomic_load_n(&mimalloc_in_sandbox, __ATOMIC_RELAXED) ? 0 : result_of(CALL(SYS_prctl, __VA_ARGS__)))
#define pthread_mutex_destroy(mutex) ((void)(mutex))
#define pthread_mutex_lock mimalloc_lock
#define pthread_mutex_unlock mimalloc_unlock
#define sched_yield() mimalloc_yield()
#define sleep(seconds) mimalloc_yield()
/* In a sandbox these calls, of which none is needed, fail. */
#define syscall(...) (__atomic_load_n(&mimalloc_in_sandbox, __ATOMIC_RELAXED) ? -1 : CALL(__VA_ARGS__))
#define sysconf(name) own_sysconf(name)
#define sysinfo(info) result_of(CALL(SYS_sysinfo, info))

/* mimalloc asks for nothing else. */
static long own_sysconf(int name) { return name == _SC_PAGESIZE ? (long)getauxval(AT_PAGESZ) : -1; }
