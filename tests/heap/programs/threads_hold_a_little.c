// Many threads each hold a few small blocks: no thread may need a separate huge page. Prints `ready` and waits.
//
// build: gcc -g -O1 -Wall -o $OUT $SRC -lpthread
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { THREADS = 64, BLOCKS = 16, SIZE = 1000 };

static pthread_barrier_t all_hold, end;

static void *hold(void *argument) {
    char *blocks[BLOCKS];
    for (int i = 0; i < BLOCKS; i++)
        memset(blocks[i] = malloc(SIZE), 1, SIZE);
    pthread_barrier_wait(&all_hold);
    pthread_barrier_wait(&end);
    for (int i = 0; i < BLOCKS; i++)
        free(blocks[i]);
    return argument;
}

int main(void) {
    pthread_t threads[THREADS];
    pthread_barrier_init(&all_hold, NULL, THREADS + 1);
    pthread_barrier_init(&end, NULL, THREADS + 1);
    for (int i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, hold, NULL);
    pthread_barrier_wait(&all_hold);
    printf("ready\n");
    fflush(stdout);
    getchar();
    pthread_barrier_wait(&end);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    return 0;
}
