// Threads wait in calls that fail with EINTR after any interruption, while other threads have children that end, and
// while the process gets signals that it ignores. Such a signal interrupts a thread only if it is traced just then.
//
// build: gcc -g -O1 -fPIE -pie -pthread -o $OUT $SRC
#define _GNU_SOURCE
#define CODE_PAGES 1700
#define RODATA_BYTES 7000000
#define DATA_BYTES 7000000
#define BSS_BYTES 9000000
#include "ranges.h"
#include <errno.h>
#include <linux/io_uring.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/sem.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { OF_EACH_KIND = 4 };
static atomic_int stop, faults, waits, children;

static void ended(const char *call, int good) {
    atomic_fetch_add(&waits, 1);
    /* The kernel does not restart some calls. */
    if (good || (getenv("FORGIVE_EINTR") && errno == EINTR)) return;
    printf("%s: %s\n", call, strerror(errno));
    atomic_fetch_add(&faults, 1);
}

static void *in_epoll(void *unused) {
    int e = epoll_create1(0);
    struct epoll_event event;
    while (!stop) ended("epoll_wait", epoll_wait(e, &event, 1, 20) == 0);
    return unused;
}

static void *at_a_semaphore(void *unused) {
    int s = semget(IPC_PRIVATE, 1, 0600);
    struct sembuf take = {0, -1, 0};
    while (!stop) {
        struct timespec t = {0, 20000000};
        ended("semtimedop", semtimedop(s, &take, 1, &t) == -1 && errno == EAGAIN);
    }
    semctl(s, 0, IPC_RMID);
    return unused;
}

static void *at_a_socket(void *unused) {
    int pair[2];
    char c;
    struct timeval t = {0, 20000};
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair)) ended("socketpair", 0);
    setsockopt(pair[0], SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t);
    while (!stop) ended("recv", recv(pair[0], &c, 1, 0) == -1 && errno == EAGAIN);
    return unused;
}

/* Waits for a completion that comes only at the end; without io_uring it does not wait. */
static int ring = -1;
static void *in_io_uring(void *unused) {
    struct io_uring_params parameters = {0};
    ring = (int)syscall(SYS_io_uring_setup, 4, &parameters);
    if (ring < 0) return unused;
    struct __kernel_timespec t = {0, 20000000};
    struct io_uring_getevents_arg argument = {.ts = (uint64_t)(uintptr_t)&t};
    unsigned flags = IORING_ENTER_GETEVENTS | IORING_ENTER_EXT_ARG;
    while (!stop)
        ended("io_uring_enter", syscall(SYS_io_uring_enter, ring, 0, 1, flags, &argument, sizeof argument) == -1 && errno == ETIME);
    return unused;
}

static void *starts_children(void *unused) {
    while (!stop) {
        pid_t child = vfork();
        if (child == 0) _exit(7);
        int status;
        if (waitpid(child, &status, 0) != child || WEXITSTATUS(status) != 7) ended("waitpid", 0);
        atomic_fetch_add(&children, 1);
    }
    return unused;
}

int main(void) {
    void *(*bodies[])(void *) = {in_epoll, at_a_semaphore, at_a_socket, in_io_uring, starts_children};
    enum { KINDS = sizeof bodies / sizeof *bodies };
    pthread_t threads[KINDS][OF_EACH_KIND];
    fill_bss();
    run_code();
    for (int kind = 0; kind < KINDS; kind++)
        for (int i = 0; i < (bodies[kind] == starts_children ? 2 : OF_EACH_KIND); i++)
            pthread_create(&threads[kind][i], 0, bodies[kind], 0);
    printf("ready\n");
    fflush(stdout);
    struct timeval now = {0, 0};
    fd_set in;
    do {
        kill(getpid(), SIGWINCH);
        now.tv_usec = 3000;
        FD_ZERO(&in);
        FD_SET(0, &in);
    } while (select(1, &in, 0, 0, &now) == 0);
    stop = 1;
    for (int kind = 0; kind < KINDS; kind++)
        for (int i = 0; i < (bodies[kind] == starts_children ? 2 : OF_EACH_KIND); i++)
            pthread_join(threads[kind][i], 0);
    printf("%d children, %d waits\n", children, waits);
    printf("%d faults\n", faults);
    return 0;
}
