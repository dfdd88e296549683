// A thread forks after pthread_cancel(3); fork is no cancellation point. The thread ends after the fork, and the heap
// is still usable.
//
// build: gcc -g -O1 -Wall -fno-builtin -o $OUT $SRC -lpthread
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BEFORE = 8 << 20, AFTER = 40 << 20, SECONDS = 60 };

static volatile pid_t child;

static void *fork_once(void *none) {
    pthread_cancel(pthread_self());
    pid_t process = fork();
    if (process == 0)
        _exit(7);
    child = process;
    pthread_testcancel();
    return none;
}

int main(void) {
    pthread_t thread;
    void *result;
    int status;
    alarm(SECONDS);
    char *before = malloc(BEFORE);
    memset(before, 1, BEFORE);
    pthread_create(&thread, NULL, fork_once, NULL);
    pthread_join(thread, &result);
    if (result != PTHREAD_CANCELED || child <= 0) {
        fprintf(stderr, "the thread has %s and has the child %d\n", result ? "ended" : "gone on", child);
        return 2;
    }
    if (waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status) != 7)
        return 3;
    char *after = malloc(AFTER);
    memset(after, 2, AFTER);
    for (int at = 0; at < BEFORE; at++)
        if (before[at] != 1)
            return 4;
    free(after);
    return 0;
}
