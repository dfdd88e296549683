// Waits once for four seconds, and reports whether the wait was about as long. A child ends each half second, also
// after the wait, and its end is ignored. A tracer of this program gets a report of each end.
//
// build: gcc -g -O1 -fPIE -pie -o $OUT $SRC
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { CHILDREN = 16 };

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

int main(void) {
    pid_t children[CHILDREN];
    struct epoll_event event;
    int e = epoll_create1(0);
    for (int i = 0; i < CHILDREN; i++) {
        children[i] = fork();
        if (children[i] < 0) return 1;
        if (children[i] == 0) usleep((i + 1) * 500000), _exit(0);
    }
    double started = now();
    int ready = epoll_wait(e, &event, 1, 4000);
    double took = now() - started;
    if (ready) printf("%s\n", strerror(errno));
    else printf("%s\n", took < 4 ? "early" : took > 10 ? "late" : "in time");
    for (int i = 0; i < CHILDREN; i++) kill(children[i], SIGKILL), waitpid(children[i], NULL, 0);
    return 0;
}
