// Uses CPU time in its own large code until it has used 0.3 s, reports that it is ready, and then uses a little now and
// then. For each line of input it reports whether its code and constants were right all the time. For the line "fork"
// it prints the PID of a fork that waits until its parent ends, and for "daemon" of one that waits until it is killed.
//
//   serves_from_large_code [real-time | thread | closed | traced]
//
//   real-time  is scheduled by SCHED_FIFO
//   thread     has a thread that is scheduled by SCHED_FIFO
//   closed     is of another user, and its memory is closed to others (PR_SET_DUMPABLE)
//   traced     is traced by a child
//
// build: gcc -g -O1 -Wall -Wno-unused-function -fPIE -pie -pthread -o $OUT $SRC
#define _GNU_SOURCE
#define CODE_PAGES 1700
#define RODATA_BYTES 7000000
#include "ranges.h"
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <time.h>
#include <unistd.h>

static double used(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static void *wait_for_ever(void *unused) {
    for (;;) pause();
    return unused;
}

static int become(const char *what) {
    struct sched_param lowest = {.sched_priority = 1};
    if (!strcmp(what, "real-time")) return sched_setscheduler(0, SCHED_FIFO, &lowest);
    if (!strcmp(what, "thread")) {
        pthread_t thread;
        errno = pthread_create(&thread, 0, wait_for_ever, 0);
        if (!errno) errno = pthread_setschedparam(thread, SCHED_FIFO, &lowest);
        return errno;
    }
    if (!strcmp(what, "closed")) return setgid(65534) || setuid(65534) || prctl(PR_SET_DUMPABLE, 0);
    if (!strcmp(what, "traced")) {
        int pipes[2];
        char done = 0;
        if (pipe(pipes)) return 1;
        prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
        if (!fork()) {
            // The fork ends with its parent, because it has the pipe of the program's input too.
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            done = ptrace(PTRACE_SEIZE, getppid(), 0, 0) ? 'n' : 'y';
            if (write(pipes[1], &done, 1) != 1) _exit(1);
            for (;;) pause();
        }
        return read(pipes[0], &done, 1) != 1 || done != 'y';
    }
    return 1;
}

int main(int count, char **words) {
    uint64_t sum = run_code(), same = 1;
    while (used() < 0.3) same &= run_code() == sum;
    if (count > 1 && become(words[1])) {
        perror(words[1]);
        return 77;
    }
    printf("ready\n");
    fflush(stdout);
    for (;;) {
        struct pollfd input = {.fd = 0, .events = POLLIN};
        int ready = poll(&input, 1, 20);
        same &= run_code() == sum;
        char line[16];
        if (ready <= 0) continue;
        if (!fgets(line, sizeof line, stdin)) return same ? 0 : 1;
        if (!strcmp(line, "fork\n") || !strcmp(line, "daemon\n")) {
            pid_t child = fork();
            if (!child) {
                if (*line == 'f') prctl(PR_SET_PDEATHSIG, SIGKILL);
                else for (int i = 0; i < 3; i++) close(i);
                for (;;) pause();
            }
            printf("%d\n", child);
            fflush(stdout);
            continue;
        }
        for (uint64_t i = 0; i < RODATA_BYTES / 8; i++) same &= large_rodata[i] == (i + 1) * ODD;
        printf(same ? "all right\n" : "wrong\n");
        fflush(stdout);
    }
}
