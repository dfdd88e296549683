// The user's queue of signals is full when the process forks, and has room again during the fork: then the threads are
// stopped, and the heap leaves the pool.
//
// With an RLIMIT_SIGPENDING of 0 every queue is full. A thread raises the limit once the forking thread has tried for a
// while.
//
//   forks_with_a_full_signal_queue
//
// build: gcc -g -O1 -Wall -fno-builtin -o $OUT $SRC -lpthread
#define _GNU_SOURCE
#include "../../support/programs/pool_memory.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SECONDS = 60, THREADS = 3, ATTEMPTS = 30 };
static struct rlimit usual;
static volatile int forker, done;

static void fail(const char *what) {
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
    _exit(9);
}

/* Number of times that a thread fell asleep. Does not allocate, since that could wait for the forking thread. */
static long sleeps_of(int thread) {
    static const char field[] = "\nvoluntary_ctxt_switches:";
    char path[64], text[8192];
    snprintf(path, sizeof path, "/proc/self/task/%d/status", thread);
    int file = open(path, O_RDONLY);
    ssize_t length = read(file, text, sizeof text - 1);
    close(file);
    if (length < 0) fail(path);
    text[length] = 0;
    const char *found = strstr(text, field);
    if (!found) fail(field);
    return atol(found + strlen(field));
}

static void *make_room(void *none) {
    while (!forker) poll(NULL, 0, 1);
    for (long first = sleeps_of(forker); sleeps_of(forker) < first + ATTEMPTS;) poll(NULL, 0, 1);
    if (setrlimit(RLIMIT_SIGPENDING, &usual)) fail("setrlimit");
    return none;
}

static void *wait_for_the_end(void *none) {
    while (!done) poll(NULL, 0, 1);
    return none;
}

int main(void) {
    pthread_t all[THREADS];
    int status;
    alarm(SECONDS);
    memset(malloc(3 << 20), 1, 3 << 20);
    if (getrlimit(RLIMIT_SIGPENDING, &usual)) fail("getrlimit");
    for (int i = 0; i < THREADS; i++)
        if (pthread_create(&all[i], NULL, i ? wait_for_the_end : make_room, NULL)) fail("pthread_create");
    struct rlimit none = {0, usual.rlim_max};
    if (setrlimit(RLIMIT_SIGPENDING, &none)) fail("setrlimit");
    forker = (int)syscall(SYS_gettid);
    if (!of_pool()) fail("the heap is not on the pool");
    pid_t child = fork();
    if (child == 0) _exit(0);
    if (child < 0) fail("fork");
    if (waitpid(child, &status, 0) != child || status) fail("the child");
    if (of_pool()) {
        fprintf(stderr, "%ld KiB are on the pool behind the fork\n", of_pool());
        return 2;
    }
    done = 1;
    for (int i = 0; i < THREADS; i++) pthread_join(all[i], NULL);
    printf("forked\n");
    return 0;
}
