// Threads wait once for a relative time of twelve seconds, each in a different call, and report how the wait ended.
// After eight seconds the program prints a line: a later stop must not restart the waits. With `alone` the only thread
// waits, in the named call, and a child prints that line.
//
// build: gcc -g -O1 -fPIE -pie -pthread -o $OUT $SRC
#define _GNU_SOURCE
#define CODE_PAGES 1700
#define RODATA_BYTES 7000000
#include "ranges.h"
#include <errno.h>
#include <linux/aio_abi.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/sem.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define LENGTH 12
#define MOST 18
static const struct timespec length = {LENGTH, 0};

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static int waits_in_epoll_wait(void) {
    struct epoll_event event;
    return epoll_wait(epoll_create1(0), &event, 1, LENGTH * 1000) == 0;
}

static int waits_in_epoll_pwait(void) {
    struct epoll_event event;
    sigset_t none;
    sigemptyset(&none);
    return epoll_pwait(epoll_create1(0), &event, 1, LENGTH * 1000, &none) == 0;
}

static int waits_in_epoll_pwait2(void) {
    struct epoll_event event;
    long result = syscall(SYS_epoll_pwait2, epoll_create1(0), &event, 1, &length, NULL, 0);
    return result == 0;
}

static int waits_in_semtimedop(void) {
    struct sembuf take = {0, -1, 0};
    int s = semget(IPC_PRIVATE, 1, 0600);
    int ended = semtimedop(s, &take, 1, &length) == -1 && errno == EAGAIN;
    semctl(s, 0, IPC_RMID);
    return ended;
}

static int waits_in_sigtimedwait(void) {
    sigset_t user;
    sigemptyset(&user);
    sigaddset(&user, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &user, NULL);
    return sigtimedwait(&user, NULL, &length) == -1 && errno == EAGAIN;
}

static int waits_in_io_getevents(void) {
    aio_context_t context = 0;
    struct io_event event;
    struct timespec copy = length;
    // A kernel without it, or a sandbox that refuses it, has no such wait.
    if (syscall(SYS_io_setup, 1, &context) != 0) return sleep(LENGTH), 1;
    return syscall(SYS_io_getevents, context, 1, 1, &event, &copy) == 0;
}

#ifdef __x86_64__
/* The kernel cannot store the remaining time there. */
static int waits_in_ppoll(void) { return syscall(SYS_ppoll, NULL, 0, &length, NULL, 8) == 0; }

static int waits_in_pselect(void) { return syscall(SYS_pselect6, 0, NULL, NULL, NULL, &length, NULL) == 0; }
#endif

static const struct {
    const char *name;
    int (*wait)(void);
} CALLS[] = {{"epoll_wait", waits_in_epoll_wait},     {"epoll_pwait", waits_in_epoll_pwait},
             {"epoll_pwait2", waits_in_epoll_pwait2}, {"semtimedop", waits_in_semtimedop},
             {"sigtimedwait", waits_in_sigtimedwait}, {"io_getevents", waits_in_io_getevents},
#ifdef __x86_64__
             {"ppoll", waits_in_ppoll},               {"pselect", waits_in_pselect},
#endif
};
enum { COUNT = sizeof CALLS / sizeof *CALLS };

static void *wait_once(void *number) {
    size_t i = (size_t)number;
    double started = now();
    errno = 0;
    int good = CALLS[i].wait();
    double took = now() - started;
    if (!good && errno == ENOSYS) good = 1, took = LENGTH;
    const char *end = took < LENGTH ? "early" : took > MOST ? "late" : "in time";
    printf("%s ended %s%s, after %.3f s\n", CALLS[i].name, end, good ? "" : " with an error", took);
    return NULL;
}

static void say_later(void) {
    printf("ready\n");
    fflush(stdout);
    sleep(8);
    printf("eight seconds are over\n");
    fflush(stdout);
}

int main(int count, char **words) {
    uint64_t sum = run_code();
    if (count > 1) {
        pid_t child = fork();
        if (child == 0) say_later(), _exit(0);
        for (size_t i = 0; i < COUNT; i++)
            if (!strcmp(CALLS[i].name, words[1])) wait_once((void *)i);
        waitpid(child, NULL, 0);
    } else {
        pthread_t threads[COUNT];
        for (size_t i = 0; i < COUNT; i++) pthread_create(&threads[i], NULL, wait_once, (void *)i);
        say_later();
        for (size_t i = 0; i < COUNT; i++) pthread_join(threads[i], NULL);
    }
    check_ranges(0);
    printf("%s\n", run_code() == sum ? "all right" : "wrong");
    return 0;
}
