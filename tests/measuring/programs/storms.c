// Threads whose working set grows and shrinks: each allocates blocks, touches some of their pages, and frees the
// blocks. Arguments: the function (malloc or calloc), bytes of a block, blocks at a time, and rounds of each thread;
// without the last it runs until SIGTERM.
//
// build: gcc -g -O1 -pthread -o $OUT $SRC

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { THREADS = 3, TOUCHED = 4, MOST_BLOCKS = 4096 };

static volatile sig_atomic_t ended;
static size_t block_bytes;
static int blocks;
static long rounds = -1;
static int zeroed;

static void end(int signal) {
    (void)signal;
    ended = 1;
}

__attribute__((noinline)) static char *take(void) {
    return zeroed ? calloc(1, block_bytes) : malloc(block_bytes);
}

__attribute__((noinline)) static void grow_and_shrink(char **held) {
    for (int index = 0; index < blocks; index++) {
        held[index] = take();
        if (!held[index])
            abort();
        for (size_t at = 0; at + 1 < block_bytes; at += block_bytes / TOUCHED) {
            // Written first: a page that is first read maps the kernel's zero page, and is replaced later.
            held[index][at] = 1;
            if (zeroed && held[index][at + 1])
                abort();
            held[index][at + 1] = 1;
        }
    }
    for (int index = blocks; index-- > 0;)
        free(held[index]);
}

static void *work(void *unused) {
    (void)unused;
    char **held = calloc(MOST_BLOCKS, sizeof *held);
    for (long round = 0; !ended && round != rounds; round++)
        grow_and_shrink(held);
    free(held);
    return NULL;
}

int main(int count, char **words) {
    if (count < 4 || count > 5)
        return 2;
    if (count == 5)
        rounds = atol(words[4]);
    zeroed = strcmp(words[1], "calloc") == 0;
    block_bytes = strtoul(words[2], NULL, 10);
    blocks = atoi(words[3]);
    if (block_bytes < TOUCHED || blocks < 1 || blocks > MOST_BLOCKS)
        return 2;
    signal(SIGTERM, end);
    signal(SIGALRM, end);
    alarm(120);
    pthread_t threads[THREADS];
    for (int index = 0; index < THREADS; index++)
        if (pthread_create(&threads[index], NULL, work, NULL))
            return 3;
    puts("ready");
    fflush(stdout);
    for (int index = 0; index < THREADS; index++)
        pthread_join(threads[index], NULL);
    puts("all right");
    return 0;
}
