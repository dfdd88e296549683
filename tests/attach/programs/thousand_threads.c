// A thousand threads that wait, wake each other and count; at the end the program reports whether every thread
// continued.
//
// build: gcc -g -O1 -Wall -o $OUT $SRC -lpthread
#define CODE_PAGES 1700
#include "ranges.h"
#include "ready.h"
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

enum { THREADS = 1000 };
static atomic_int stop, running;
static atomic_long rounds;

static void *work(void *argument) {
    (void)argument;
    atomic_fetch_add(&running, 1);
    while (!atomic_load(&stop)) {
        usleep(20000);
        atomic_fetch_add(&rounds, 1);
    }
    atomic_fetch_sub(&running, 1);
    return 0;
}

int main(void) {
    static pthread_t threads[THREADS];
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 65536);
    for (int i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], &small, work, 0)) return 1;
    while (atomic_load(&running) < THREADS) usleep(1000);
    check_ranges(0);
    ready();
    check_ranges(1);
    /* On a busy machine, too, each thread continues once it gets a CPU. */
    long before = atomic_load(&rounds);
    for (int i = 0; i < 20000 && atomic_load(&rounds) - before <= THREADS; i++) usleep(1000);
    int went_on = atomic_load(&rounds) - before > THREADS;
    atomic_store(&stop, 1);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], 0);
    printf("%d left, %s\n", atomic_load(&running), went_on ? "all went on" : "some stood still");
    return 0;
}
