// One thread forks, one flushes all streams, and one allocates while it has locked a stream. Ends after some forks.
//
// build: gcc -O1 -Wall -pthread -o $OUT $SRC
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

enum { FORKS = 400, LARGE = 16 << 20 };

static FILE *stream;

static void *flushes(void *unused) {
    for (;;) {
        fputc('x', stream);
        fflush(NULL);
    }
    return unused;
}

static void *allocates(void *unused) {
    for (;;) {
        flockfile(stream);
        char *block = malloc(LARGE);
        if (!block) abort();
        *block = 1;
        free(block);
        funlockfile(stream);
    }
    return unused;
}

/* The list of streams and the heap are free in the child, also for another thread. */
static void *uses_both(void *unused) {
    fflush(NULL);
    free(malloc(LARGE));
    return unused;
}

int main(void) {
    stream = fopen("/dev/null", "w");
    pthread_t thread;
    if (!stream || pthread_create(&thread, NULL, flushes, NULL) || pthread_create(&thread, NULL, allocates, NULL)) return 2;
    for (int count = 0; count < FORKS; count++) {
        int child = fork();
        if (child < 0) return 3;
        if (child == 0) {
            alarm(60);
            uses_both(NULL);
            if (pthread_create(&thread, NULL, uses_both, NULL) || pthread_join(thread, NULL)) _exit(4);
            _exit(0);
        }
        int status;
        if (waitpid(child, &status, 0) != child || status) return 5;
    }
    printf("right\n");
    fflush(stdout);
    _exit(0);
}
