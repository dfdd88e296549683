// Waits in sigtimedwait for four seconds, while 600 children end one after the other. A thread that is traced is woken by
// each SIGCHLD, though nobody handles it.
//
// build: gcc -g -O1 -fPIE -pie -o $OUT $SRC
#define _GNU_SOURCE
#define CODE_PAGES 1700
#define RODATA_BYTES 7000000
#include "ranges.h"
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define LENGTH 4
enum { CHILDREN = 600, FIRST_END_MS = 500, STEP_US = 1500 };

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

int main(void) {
    uint64_t sum = run_code();
    sigset_t user;
    sigemptyset(&user);
    sigaddset(&user, SIGUSR1);
    sigprocmask(SIG_BLOCK, &user, NULL);
    for (int i = 0; i < CHILDREN; i++)
        if (fork() == 0) usleep(FIRST_END_MS * 1000 + i * STEP_US), _exit(0);
    printf("ready\n");
    fflush(stdout);
    struct timespec length = {LENGTH, 0};
    double started = now();
    int result = sigtimedwait(&user, NULL, &length), error = errno;
    double took = now() - started;
    check_ranges(0);
    if (result != -1 || error != EAGAIN || took < LENGTH) {
        printf("result %d, error %d after %.3f s\n", result, error, took);
        return 1;
    }
    printf("%s\n", run_code() == sum ? "all right" : "wrong");
    return 0;
}
