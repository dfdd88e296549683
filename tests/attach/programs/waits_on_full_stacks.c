// Threads wait for a relative time of twelve seconds in calls that get their time by address. Each has a separate stack
// that is full of data below the frame of the call. After a line of input the program reports the number of changed
// bytes. Then each thread reports how its wait has ended, and another line of input ends the program.
//
// build: gcc -g -O1 -fPIE -pie -pthread -Wl,-z,now -o $OUT $SRC
#define _GNU_SOURCE
#define CODE_PAGES 600
#define RODATA_BYTES 3000000
#include "ranges.h"
#include <errno.h>
#include <linux/aio_abi.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/sem.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define LENGTH 12
#define MOST 17
#define STACK (64 << 10)
static const struct timespec length = {LENGTH, 0};

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static int epoll, semaphore;
static aio_context_t context;

static int in_epoll_pwait2(void) {
    struct epoll_event event;
    return syscall(SYS_epoll_pwait2, epoll, &event, 1, &length, NULL, 0) == 0;
}

static int in_semtimedop(void) {
    struct sembuf take = {0, -1, 0};
    return semtimedop(semaphore, &take, 1, &length) == -1 && errno == EAGAIN;
}

static int in_sigtimedwait(void) {
    sigset_t user;
    sigemptyset(&user);
    sigaddset(&user, SIGUSR1);
    return sigtimedwait(&user, NULL, &length) == -1 && errno == EAGAIN;
}

static int in_io_getevents(void) {
    struct io_event event;
    struct timespec copy = length;
    return syscall(SYS_io_getevents, context, 1, 1, &event, &copy) == 0;
}

static struct waiter {
    const char *name;
    int (*wait)(void);
    long number;
    _Atomic pid_t thread;
    atomic_int has_ended;
    pthread_t handle;
    unsigned char *stack, *frame;
} waiters[] = {
    {"epoll_pwait2", in_epoll_pwait2, SYS_epoll_pwait2},
    {"semtimedop", in_semtimedop, SYS_semtimedop},
    {"sigtimedwait", in_sigtimedwait, SYS_rt_sigtimedwait},
    {"io_getevents", in_io_getevents, SYS_io_getevents},
};
enum { COUNT = sizeof waiters / sizeof *waiters };

static void *wait_once(void *it) {
    struct waiter *waiter = it;
    double started = now();
    errno = 0;
    waiter->thread = (pid_t)syscall(SYS_gettid);
    int good = waiter->wait();
    int error = errno;
    double took = now() - started;
    waiter->has_ended = 1;
    if (!good && error == ENOSYS) good = 1, took = LENGTH;
    const char *end = took < LENGTH ? "early" : took > MOST ? "late" : "in time";
    printf("%s ended %s%s, after %.3f s\n", waiter->name, good ? "" : "with an error, ", end, took);
    return NULL;
}

static unsigned char pattern(unsigned at) { return (unsigned char)(at * 37 + 11); }

static void start(struct waiter *waiter) {
    pthread_attr_t attributes;
    waiter->stack = mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    pthread_attr_init(&attributes);
    pthread_attr_setstack(&attributes, waiter->stack, STACK);
    pthread_create(&waiter->handle, &attributes, wait_once, waiter);
}

/* Returns the stack pointer of a thread that sleeps in its call; NULL if it does not. */
static unsigned char *stack_pointer(const struct waiter *waiter) {
    char path[64];
    long number;
    unsigned long pointer;
    snprintf(path, sizeof path, "/proc/self/task/%d/syscall", waiter->thread);
    FILE *file = waiter->thread ? fopen(path, "r") : NULL;
    if (!file) return NULL;
    int found = fscanf(file, "%ld %*s %*s %*s %*s %*s %*s %lx", &number, &pointer);
    fclose(file);
    return found == 2 && number == waiter->number ? (unsigned char *)pointer : NULL;
}

/* The thread waits: all below its frame is free to be used, but for the red zone. */
static void fill(struct waiter *waiter) {
    while (!waiter->has_ended && !(waiter->frame = stack_pointer(waiter))) usleep(1000);
    waiter->frame = waiter->frame ? waiter->frame - 128 : waiter->stack;
    for (unsigned at = 0; waiter->stack + at < waiter->frame; at++) waiter->stack[at] = pattern(at);
}

/* A thread whose wait has ended uses its stack again. */
static unsigned changed(const struct waiter *waiter) {
    unsigned count = 0;
    for (unsigned at = 0; waiter->stack + at < waiter->frame; at++) count += waiter->stack[at] != pattern(at);
    if (waiter->has_ended) printf("%s is over before the check\n", waiter->name);
    return waiter->has_ended ? 0 : count;
}

int main(void) {
    sigset_t user;
    uint64_t sum = run_code();
    sigemptyset(&user);
    sigaddset(&user, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &user, NULL);
    epoll = epoll_create1(0);
    semaphore = semget(IPC_PRIVATE, 1, 0600);
    /* A kernel without it, or a sandbox that refuses it, has no such wait. */
    int count = syscall(SYS_io_setup, 1, &context) == 0 ? COUNT : COUNT - 1;
    for (int i = 0; i < count; i++) start(&waiters[i]);
    for (int i = 0; i < count; i++) fill(&waiters[i]);
    printf("ready\n");
    fflush(stdout);
    char byte;
    while (read(0, &byte, 1) == 1 && byte != '\n') {}
    unsigned bytes = 0;
    for (int i = 0; i < count; i++) bytes += changed(&waiters[i]);
    printf("%u bytes of the stacks have changed\n", bytes);
    fflush(stdout);
    for (int i = 0; i < count; i++) pthread_join(waiters[i].handle, NULL);
    semctl(semaphore, 0, IPC_RMID);
    check_ranges(0);
    printf("%s\n", run_code() == sum ? "all right" : "wrong");
    fflush(stdout);
    while (read(0, &byte, 1) == 1 && byte != '\n') {}
    return 0;
}
