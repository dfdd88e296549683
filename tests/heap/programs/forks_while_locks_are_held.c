// Forks while other threads hold the heap's locks for a long time: the heap calls an observer in this program when it
// has locked, yields or reads the clock, and all threads but the forking one sleep in it. Each child uses the whole
// heap, starts a thread that does the same, and forks, without waiting for any thread.
//
//   forks_while_locks_are_held FORKS
//
// build: gcc -g -O1 -Wall -fno-builtin -o $OUT $SRC -lpthread
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { STARTERS = 2, AT_ONCE = 3, PLACES = 64, CHILD_SECONDS = 60, ARENA_FORKS = 4, MOST_WAITING = 3 };
enum { WAITED_TO_FORK = 3, WAITED_TO_ALLOCATE, NO_THREAD, NO_FORK, WRONG };

/* In the first process all threads but the forking one are slow. */
static __thread int is_slow;
static volatile int ended, clock_readers, large_in_use;
static volatile long waits, locks;
static void *passed_on[PLACES];

static void dwell(long microseconds) {
    struct timespec time = {0, microseconds * 1000};
    nanosleep(&time, NULL);
}

enum { LOCKED, GIVES_WAY, READS_CLOCK };

static void observe(int moment) {
    static volatile unsigned reads;
    if (moment == GIVES_WAY && !is_slow)
        __atomic_fetch_add(&waits, 1, __ATOMIC_RELAXED);
    if (moment == LOCKED && is_slow) {
        __atomic_fetch_add(&locks, 1, __ATOMIC_RELAXED);
        dwell(50 + locks % 4 * 50);
    }
    /* Threads read the clock while they wait for the end of a fork. One at a time is slow, now and then. */
    if (moment == READS_CLOCK && is_slow && __atomic_fetch_add(&reads, 1, __ATOMIC_RELAXED) % 64 == 0) {
        if (__atomic_fetch_add(&clock_readers, 1, __ATOMIC_RELAXED) == 0)
            dwell(150);
        __atomic_fetch_sub(&clock_readers, 1, __ATOMIC_RELAXED);
    }
}

/* Allocates blocks of all kinds; another thread frees each. */
static void use_heap(void) {
    for (int i = 0; i < 60; i++) {
        size_t size = (size_t)16 << i % 14;
        unsigned char *block = i % 3 ? malloc(size) : calloc(1, size);
        if (!block || (i % 3 == 0 && (block[0] || block[size - 1])))
            _exit(WRONG);
        memset(block, i, size < 4096 ? size : 4096);
        block = realloc(block, size + size / 2);
        if (!block || block[15] != i)
            _exit(WRONG);
        free(__atomic_exchange_n(&passed_on[i * 7 % PLACES], block, __ATOMIC_ACQ_REL));
    }
    /* One at a time, so that the thread that forks gets its turn on a busy machine too. */
    if (__atomic_exchange_n(&large_in_use, 1, __ATOMIC_ACQUIRE) == 0) {
        char *large = malloc(9 << 20);
        large[0] = 1;
        free(large);
        if (is_slow)
            dwell(200);
        __atomic_store_n(&large_in_use, 0, __ATOMIC_RELEASE);
    }
}

static void *allocate(void *slow) {
    is_slow = slow != NULL;
    use_heap();
    return NULL;
}

static void *start_others(void *argument) {
    is_slow = 1;
    while (!ended) {
        pthread_t threads[AT_ONCE];
        for (int i = 0; i < AT_ONCE; i++)
            if (pthread_create(&threads[i], NULL, allocate, argument))
                abort();
        for (int i = 0; i < AT_ONCE; i++)
            pthread_join(threads[i], NULL);
    }
    return argument;
}

/* More than an arena holds, so that a new one is made. */
static void grow(void) {
    enum { COUNT = 48 };
    char *blocks[COUNT];
    for (int i = 0; i < COUNT; i++)
        (blocks[i] = malloc(1 << 20))[0] = 1;
    for (int i = 0; i < COUNT; i++)
        free(blocks[i]);
}

/* Returns the exit status of a child's child. */
static int grandchild(void) {
    pthread_t thread;
    long before = waits;
    if (pthread_create(&thread, NULL, allocate, NULL))
        return NO_THREAD;
    pthread_join(thread, NULL);
    return waits == before ? 0 : WAITED_TO_ALLOCATE;
}

static int child(int number) {
    pthread_t thread;
    int status;
    /* If the process waits for a lock, this ends it. */
    alarm(CHILD_SECONDS);
    large_in_use = 0;
    long before = waits;
    pid_t process = fork();
    if (waits != before)
        return WAITED_TO_FORK;
    if (process < 0)
        return NO_FORK;
    if (process == 0) {
        alarm(CHILD_SECONDS);
        _exit(grandchild());
    }
    use_heap();
    if (number < ARENA_FORKS)
        grow();
    if (pthread_create(&thread, NULL, allocate, NULL))
        return NO_THREAD;
    pthread_join(thread, NULL);
    if (waitpid(process, &status, 0) != process || !WIFEXITED(status))
        return WRONG;
    return WEXITSTATUS(status);
}

int main(int count, char **words) {
    pthread_t starters[STARTERS];
    int forks = count > 1 ? atoi(words[1]) : 100, waiting = 0;
    void (**observer)(int) = (void (**)(int))dlsym(RTLD_DEFAULT, "pagelift_heap_observer");
    if (observer)
        *observer = observe;
    for (int i = 0; i < STARTERS; i++)
        pthread_create(&starters[i], NULL, start_others, &starters);
    for (int i = 0; i < forks; i++) {
        int status;
        dwell(500 + i % 5 * 300);
        pid_t process = fork();
        if (process < 0) {
            perror("fork");
            abort();
        }
        if (process == 0)
            _exit(child(i));
        if (waitpid(process, &status, 0) != process || !WIFEXITED(status)
            || (WEXITSTATUS(status) && WEXITSTATUS(status) != WAITED_TO_ALLOCATE)) {
            fprintf(stderr, "child %d ended with status %#x\n", i, status);
            abort();
        }
        waiting += WEXITSTATUS(status) != 0;
        /* mimalloc may wait for a thread that was just setting a bit at the fork; this is rare. */
        if (waiting > MOST_WAITING) {
            fprintf(stderr, "%d of %d children waited for a thread that they do not have\n", waiting, i + 1);
            abort();
        }
    }
    ended = 1;
    for (int i = 0; i < STARTERS; i++)
        pthread_join(starters[i], NULL);
    printf("forked %d, locked %s\n", forks, locks > forks ? "often" : "never");
    return 0;
}
