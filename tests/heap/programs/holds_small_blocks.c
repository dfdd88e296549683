// Threads fill small blocks of many sizes, and each frees every third of its blocks; half of the threads then end, and
// their blocks remain. Prints `held ASKED USABLE`, the requested bytes and those by malloc_usable_size, then `ready`,
// and waits for a line. Then one thread frees all blocks, and the living threads allocate for a moment, which reclaims
// their blocks. Prints `freed`, and waits again.
//
// build: gcc -g -O1 -Wall -fno-builtin -o $OUT $SRC -lpthread
#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MIB = 1 << 20, THREADS = 4 };

static const struct {
    size_t size, count;
} kinds[] = {{64, MIB / 4}, {1000, 16000}, {30000, 200}, {300000, 20}, {3 * MIB, 1}};
enum { KINDS = sizeof kinds / sizeof *kinds };

static char **blocks[THREADS][KINDS];
static size_t asked[THREADS], usable[THREADS];
static pthread_barrier_t filled, freed, collected, end;

static void *fill(void *argument) {
    int thread = (int)(size_t)argument;
    for (int kind = 0; kind < KINDS; kind++) {
        size_t size = kinds[kind].size;
        char **mine = blocks[thread][kind] = calloc(kinds[kind].count, sizeof *mine);
        asked[thread] += kinds[kind].count * sizeof *mine;
        usable[thread] += malloc_usable_size(mine);
        for (size_t i = 0; i < kinds[kind].count; i++)
            memset(mine[i] = malloc(size), thread + 1, size);
        for (size_t i = 0; i < kinds[kind].count; i++) {
            if (i % 3 == 2) {
                free(mine[i]);
                mine[i] = NULL;
            } else {
                asked[thread] += size;
                usable[thread] += malloc_usable_size(mine[i]);
            }
        }
    }
    pthread_barrier_wait(&filled);
    if (thread % 2)
        return NULL;
    pthread_barrier_wait(&freed);
    // Allocates each size once more, as often as all threads together: this reclaims all blocks that others have freed.
    for (int kind = 0; kind < KINDS; kind++) {
        size_t count = THREADS * kinds[kind].count;
        char **again = calloc(count, sizeof *again);
        for (size_t i = 0; i < count; i++)
            again[i] = malloc(kinds[kind].size);
        for (size_t i = 0; i < count; i++)
            free(again[i]);
        free(again);
    }
    pthread_barrier_wait(&collected);
    pthread_barrier_wait(&end);
    return NULL;
}

int main(void) {
    pthread_t threads[THREADS];
    pthread_barrier_init(&filled, NULL, THREADS + 1);
    pthread_barrier_init(&freed, NULL, THREADS / 2 + 1);
    pthread_barrier_init(&collected, NULL, THREADS / 2 + 1);
    pthread_barrier_init(&end, NULL, THREADS / 2 + 1);
    for (size_t i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, fill, (void *)i);
    pthread_barrier_wait(&filled);
    size_t all_asked = 0, all_usable = 0;
    for (int i = 0; i < THREADS; i++) {
        all_asked += asked[i];
        all_usable += usable[i];
        if (i % 2)
            pthread_join(threads[i], NULL);
    }
    printf("held %zu %zu\nready\n", all_asked, all_usable);
    fflush(stdout);
    getchar();
    for (int thread = 0; thread < THREADS; thread++)
        for (int kind = 0; kind < KINDS; kind++) {
            for (size_t i = 0; i < kinds[kind].count; i++)
                free(blocks[thread][kind][i]);
            free(blocks[thread][kind]);
        }
    pthread_barrier_wait(&freed);
    pthread_barrier_wait(&collected);
    printf("freed\n");
    fflush(stdout);
    getchar();
    pthread_barrier_wait(&end);
    for (int i = 0; i < THREADS; i += 2)
        pthread_join(threads[i], NULL);
    return 0;
}
