// The first thread has ended, and stays in the kernel's list of threads while there are others: the process still
// forks, and the heap leaves the pool.
//
//   forks_without_its_first_thread
//
// build: gcc -g -O1 -Wall -fno-builtin -o $OUT $SRC -lpthread
#include "../../support/programs/pool_memory.h"
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SECONDS = 60, THREADS = 2 };
static volatile int done;

static void fail(const char *what) {
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
    _exit(9);
}

static int first_has_ended(void) {
    char path[64], line[512];
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", getpid());
    FILE *stat = fopen(path, "r");
    if (!stat || !fgets(line, sizeof line, stat)) fail(path);
    fclose(stat);
    return strstr(line, ") Z ") != NULL;
}

static void *wait_for_the_end(void *none) {
    while (!done) poll(NULL, 0, 1);
    return none;
}

static void *fork_once(void *none) {
    int status;
    (void)none;
    while (!first_has_ended()) poll(NULL, 0, 1);
    if (!of_pool()) fail("the heap is not on the pool");
    pid_t child = fork();
    if (child == 0) _exit(0);
    if (child < 0) fail("fork");
    if (waitpid(child, &status, 0) != child || status) fail("the child");
    if (of_pool()) {
        fprintf(stderr, "%ld KiB are on the pool behind the fork\n", of_pool());
        _exit(2);
    }
    done = 1;
    printf("forked\n");
    exit(0);
}

int main(void) {
    pthread_t thread;
    alarm(SECONDS);
    memset(malloc(3 << 20), 1, 3 << 20);
    for (int i = 0; i < THREADS; i++)
        if (pthread_create(&thread, NULL, i ? wait_for_the_end : fork_once, NULL)) fail("pthread_create");
    pthread_exit(NULL);
}
