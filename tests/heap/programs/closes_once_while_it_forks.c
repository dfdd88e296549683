// A thread closes a descriptor while the process forks, and the call fails with EINTR: the descriptor is already
// closed, and its number may belong to another file. The call must not be repeated.
//
// A filter of system calls passes that one call to another thread, which answers it with EINTR after the signal of the
// fork, as a file system in user space may. That thread counts the calls.
//
//   closes_once_while_it_forks
//
// build: gcc -g -O1 -Wall -fno-builtin -o $OUT $SRC -lpthread
#define _GNU_SOURCE
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV
#define SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV (1UL << 5)
#endif

enum { SECONDS = 60 };
static volatile int listener = -1, asked, answers, forked, result, error, done;

static void fail(const char *what) {
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
    _exit(9);
}

static int filter_close_of(int descriptor) {
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_close, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[0])),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)descriptor, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) fail("prctl");
    unsigned long flags = SECCOMP_FILTER_FLAG_NEW_LISTENER | SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV;
    return (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &program);
}

static void *close_once(void *none) {
    int descriptor = eventfd(0, 0), filter = filter_close_of(descriptor);
    if (filter < 0) fail("seccomp");
    listener = filter;
    result = (int)syscall(SYS_close, descriptor);
    error = errno;
    done = 1;
    return none;
}

/* Answers each call with EINTR once the process has forked. */
static void *answer(void *none) {
    while (listener < 0) sched_yield();
    for (;;) {
        struct pollfd notified = {listener, POLLIN, 0};
        poll(&notified, 1, 10);
        if (done) return none;
        if (!(notified.revents & POLLIN)) continue;
        struct seccomp_notif call;
        memset(&call, 0, sizeof call);
        if (ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &call)) continue;
        asked = 1;
        while (!forked) poll(NULL, 0, 1);
        struct seccomp_notif_resp response = {call.id, 0, -EINTR, 0};
        if (ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &response) == 0) answers++;
        if (answers == 2) return none;
    }
}

int main(void) {
    pthread_t closer, answerer;
    int status;
    alarm(SECONDS);
    memset(malloc(3 << 20), 1, 3 << 20);
    pthread_create(&closer, NULL, close_once, NULL);
    pthread_create(&answerer, NULL, answer, NULL);
    while (!asked) poll(NULL, 0, 1);
    pid_t child = fork();
    if (child == 0) _exit(0);
    if (child < 0 || waitpid(child, &status, 0) != child || status) fail("fork");
    forked = 1;
    pthread_join(answerer, NULL);
    if (answers != 1) {
        fprintf(stderr, "the call was made %d times\n", answers);
        return 2;
    }
    pthread_join(closer, NULL);
    if (result != -1 || error != EINTR) {
        fprintf(stderr, "close: %d, %s\n", result, strerror(error));
        return 3;
    }
    printf("closed once\n");
    return 0;
}
