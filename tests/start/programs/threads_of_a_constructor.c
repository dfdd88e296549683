// A shared object's constructor has started four threads, which continuously call code of the executable and write to
// its data and to the object's own. They must be stopped while ranges are exchanged, and no write may be lost, so the
// data is not moved.
//
// needs: pool 64M
// build: gcc -g -O1 -fPIC -shared -DLIBRARY -o $BUILD/libbusy.so $SRC -lpthread
// build: gcc -g -O1 -fPIE -pie -rdynamic -o $OUT $SRC -L$BUILD -Wl,--no-as-needed -lbusy -Wl,-rpath,$BUILD -lpthread
// pages: hugetlb hugetlb-writable thp
// expect: lifted text
// expect: unlifted-object libbusy.so
#define DATA_BYTES 6000000
#define WORDS (DATA_BYTES / 8)
#ifndef THREADS
#define THREADS 4
#endif
#define _GNU_SOURCE
#ifdef LIBRARY
#include "ranges.h"
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <unistd.h>

extern uint64_t words_of_executable[];
extern uint64_t code_of_executable(void);

static pthread_t threads[THREADS];
static atomic_int stop, running;
static uint64_t lost[THREADS];
static _Atomic uint64_t rounds[THREADS];

/* Thread t owns the words whose number is t modulo THREADS. */
static void pass(volatile uint64_t *words, uint64_t t, uint64_t before) {
    for (uint64_t i = t; i < WORDS; i += 64 * THREADS) {
        if (words[i] != before) lost[t]++;
        words[i] = before + 1;
    }
}

static void *work(void *argument) {
    uint64_t t = (uintptr_t)argument, sum = code_of_executable();
    atomic_fetch_add(&running, 1);
    for (uint64_t i = t; i < WORDS; i += 64 * THREADS) large_data[i] = words_of_executable[i] = 0;
    while (!atomic_load(&stop)) {
        pass(large_data, t, rounds[t]);
        pass(words_of_executable, t, rounds[t]);
        if (code_of_executable() != sum) lost[t]++;
        rounds[t]++;
        if (THREADS > 8) sched_yield();
    }
    return NULL;
}

__attribute__((constructor)) static void start(void) {
    for (uintptr_t t = 0; t < THREADS; t++) pthread_create(&threads[t], NULL, work, (void *)t);
    while (atomic_load(&running) < THREADS) {
    }
}

/* Waits until each thread finishes two more rounds, so that each has written after the lift. */
void stop_threads(void) {
    uint64_t before[THREADS];
    for (int t = 0; t < THREADS; t++) before[t] = atomic_load(&rounds[t]);
    for (int t = 0; t < THREADS; t++)
        while (atomic_load(&rounds[t]) < before[t] + 2) usleep(1000);
    atomic_store(&stop, 1);
    for (int t = 0; t < THREADS; t++) {
        pthread_join(threads[t], NULL);
        printf("thread %d lost %lu writes\n", t, (unsigned long)lost[t]);
    }
}
#else
#define CODE_PAGES 1100
#include "ranges.h"
#include "ready.h"

void stop_threads(void);
uint64_t code_of_executable(void) { return run_code(); }
__asm__(".globl words_of_executable\n .type words_of_executable, object\n .size words_of_executable, 6000000\n"
        ".set words_of_executable, large_data\n");

int main(void) {
    ready();
    stop_threads();
    return 0;
}
#endif
