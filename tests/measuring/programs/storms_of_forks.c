// Forks repeatedly beside a busy thread: each fork makes the pages of the parent read-only. Runs until SIGTERM.
//
// build: gcc -g -O1 -Wall -pthread -o $OUT $SRC

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BYTES = 1 << 16 };

static volatile sig_atomic_t ended;
static volatile unsigned long counted;

static void end(int signal) {
    (void)signal;
    ended = 1;
}

static void *keep_a_cpu_busy(void *unused) {
    (void)unused;
    while (!ended)
        counted++;
    return NULL;
}

int main(void) {
    signal(SIGTERM, end);
    signal(SIGALRM, end);
    alarm(120);
    char *memory = malloc(BYTES);
    pthread_t busy;
    if (!memory || pthread_create(&busy, NULL, keep_a_cpu_busy, NULL))
        return 3;
    puts("ready");
    fflush(stdout);
    for (int round = 0; !ended; round++) {
        memset(memory, round, BYTES);
        pid_t child = fork();
        if (child == 0)
            _exit(0);
        if (child < 0)
            return 4;
        while (waitpid(child, NULL, 0) != child)
            ;
    }
    pthread_join(busy, NULL);
    puts("all right");
    return 0;
}
