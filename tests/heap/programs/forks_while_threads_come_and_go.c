// Forks repeatedly while threads begin, allocate, free each other's blocks and end. Each child allocates, and starts a
// thread that does the same: in the child no missing thread may hold a lock of the allocator.
//
//   forks_while_threads_come_and_go FORKS
//
// build: gcc -g -O1 -Wall -fno-builtin -o $OUT $SRC -lpthread
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { KINDS = 40, PLACES = 128, STARTERS = 3, CHILD_SECONDS = 60 };

static volatile int ended;
static void *passed_on[PLACES];

static void *allocate(void *argument) {
    for (int i = 0; i < KINDS; i++) {
        char *block = malloc(16 << i % 17);
        memset(block, i, 16);
        free(__atomic_exchange_n(&passed_on[(i * 7 + (size_t)&block / 4096) % PLACES], block, __ATOMIC_ACQ_REL));
    }
    return argument;
}

static void *start_others(void *argument) {
    while (!ended) {
        pthread_t threads[4];
        for (int i = 0; i < 4; i++)
            if (pthread_create(&threads[i], NULL, allocate, NULL))
                abort();
        for (int i = 0; i < 4; i++)
            pthread_join(threads[i], NULL);
    }
    return argument;
}

int main(int count, char **words) {
    pthread_t starters[STARTERS];
    int forks = count > 1 ? atoi(words[1]) : 200;
    for (int i = 0; i < STARTERS; i++)
        pthread_create(&starters[i], NULL, start_others, NULL);
    for (int i = 0; i < forks; i++) {
        int status;
        pid_t child = fork();
        if (child < 0) {
            perror("fork");
            abort();
        }
        if (child == 0) {
            pthread_t thread;
            /* If the child waits for a lock, this ends it. */
            alarm(CHILD_SECONDS);
            allocate(NULL);
            if (pthread_create(&thread, NULL, allocate, NULL))
                _exit(3);
            pthread_join(thread, NULL);
            _exit(0);
        }
        if (waitpid(child, &status, 0) != child || status != 0) {
            fprintf(stderr, "child %d ended with status %#x\n", i, status);
            abort();
        }
    }
    ended = 1;
    for (int i = 0; i < STARTERS; i++)
        pthread_join(starters[i], NULL);
    printf("forked %d\n", forks);
    return 0;
}
