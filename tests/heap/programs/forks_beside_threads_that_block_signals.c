// While the process forks, one thread works and others sleep in calls that a signal usually ends early; all block every
// signal. The fork succeeds, the child finds all earlier writes, no thread's work is lost, and no call ends with EINTR.
// A change of the group, for which the C library itself sends a signal to all threads, still works.
//
//   forks_beside_threads_that_block_signals FORKS
//
// build: gcc -g -O1 -Wall -fno-builtin -o $OUT $SRC -lpthread
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { WORDS = 3 << 17, LISTS = 64 };

/* After the C library's own signal, calls may be interrupted. */
static volatile int ended, may_be_interrupted;
static volatile uint64_t *counted, rounds;

static void fail(const char *what) {
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
    abort();
}

static void block_all(void) {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, NULL);
}

/* Repeatedly increments every word of a block of 3 MiB, and allocates at the same time. */
static void *work(void *argument) {
    char *lists[LISTS] = {0};
    block_all();
    while (!ended) {
        for (int i = 0; i < WORDS; i++) {
            if (counted[i] != rounds)
                fail("what this thread wrote is lost");
            counted[i] = rounds + 1;
        }
        rounds++;
        free(lists[rounds % LISTS]);
        lists[rounds % LISTS] = malloc(100 << rounds % 12);
    }
    return argument;
}

static void *sleep_in_poll(void *argument) {
    block_all();
    while (!ended)
        if (poll(NULL, 0, 300) != 0 && !may_be_interrupted)
            fail("poll");
    return argument;
}

static void *sleep_in_epoll(void *argument) {
    struct epoll_event event;
    int epoll = epoll_create1(0);
    if (!argument)
        block_all();
    while (!ended)
        if (epoll_wait(epoll, &event, 1, 300) != 0 && !may_be_interrupted)
            fail("epoll_wait");
    close(epoll);
    return argument;
}

static void *sleep_long(void *argument) {
    struct timespec time = {0, 200000000};
    block_all();
    while (!ended)
        if (nanosleep(&time, NULL) && !may_be_interrupted)
            fail("nanosleep");
    return argument;
}

int main(int count, char **words) {
    void *(*const all[])(void *) = {work, sleep_in_poll, sleep_in_epoll, sleep_in_epoll, sleep_long};
    enum { THREADS = sizeof all / sizeof *all };
    pthread_t threads[THREADS];
    unsigned char *own = malloc(9 << 20);
    int forks = count > 1 ? atoi(words[1]) : 3;
    counted = calloc(WORDS, sizeof *counted);
    for (int i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, all[i], i == 3 ? own : NULL);
    for (int i = 0; i < forks; i++) {
        int status;
        usleep(100000);
        memset(own, i + 1, 9 << 20);
        pid_t child = fork();
        if (child < 0)
            fail("fork");
        if (child == 0) {
            for (int at = 0; at < 9 << 20; at++)
                if (own[at] != i + 1)
                    _exit(3);
            /* The first words may be one round ahead of the others: the worker was within a round. */
            for (int at = 1; at < WORDS; at++)
                if (counted[at] > counted[at - 1] || counted[at] + 1 < counted[0])
                    _exit(4);
            memset(malloc(5 << 20), 1, 5 << 20);
            _exit(0);
        }
        if (waitpid(child, &status, 0) != child || status != 0) {
            fprintf(stderr, "a child ended with status %#x\n", status);
            abort();
        }
    }
    may_be_interrupted = 1;
    if (setgid(getgid()))
        fail("setgid");
    ended = 1;
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    printf("forked %d\n", forks);
    return 0;
}
