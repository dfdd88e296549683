// Waits four times for a second, by its own function that makes the system call. GCC sees that the function does not
// change its third parameter, and keeps the address of the time in that register for all four waits (-fipa-ra, a part
// of -O2): a change of the register during one wait changes all later ones.
//
// build: gcc -g -O2 -fPIE -pie -pthread -o $OUT $SRC
#define _GNU_SOURCE
#define CODE_PAGES 1700
#define RODATA_BYTES 7000000
#include "ranges.h"
#include <errno.h>
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>

#define WAITS 4

static __attribute__((noinline)) long wait_for(const sigset_t *set, siginfo_t *about, const struct timespec *time) {
#ifdef __x86_64__
    long result;
    register long size __asm__("r10") = 8;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(SYS_rt_sigtimedwait), "D"(set), "S"(about), "d"(time), "r"(size)
                     : "rcx", "r11", "memory");
    return result;
#else
    register long number __asm__("x8") = SYS_rt_sigtimedwait;
    register long first __asm__("x0") = (long)set;
    register siginfo_t *second __asm__("x1") = about;
    register const struct timespec *third __asm__("x2") = time;
    register long fourth __asm__("x3") = 8;
    __asm__ volatile("svc #0" : "+r"(first) : "r"(number), "r"(second), "r"(third), "r"(fourth) : "memory");
    return first;
#endif
}

static volatile long ended;

static __attribute__((noinline)) void wait_often(const sigset_t *set, siginfo_t *about, const struct timespec *time) {
    for (int i = 0; i < WAITS; i++) ended = ended + (wait_for(set, about, time) == -EAGAIN);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

int main(void) {
    sigset_t user;
    siginfo_t about;
    struct timespec second = {1, 0};
    sigemptyset(&user);
    sigaddset(&user, SIGUSR1);
    sigprocmask(SIG_BLOCK, &user, NULL);
    run_code();
    double begin = now();
    printf("ready\n");
    fflush(stdout);
    wait_often(&user, &about, &second);
    double took = now() - begin;
    printf("%ld of %d waits ended, after %.3f s: %s\n", (long)ended, WAITS, took,
           ended == WAITS && took >= WAITS ? "all right" : "too early");
    return 0;
}
