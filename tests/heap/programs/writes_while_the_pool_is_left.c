// Threads constantly write to all pool pages while the process forks for the first time, which makes the heap leave the
// pool: no write to any block is lost. The child finds all earlier writes, and uses the heap. Each thread records its
// writes in memory that does not move.
//
//   writes_while_the_pool_is_left
//
// build: gcc -g -O1 -Wall -fno-builtin -o $OUT $SRC -lpthread
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* Each thread has a block on separate grains, one from mimalloc, and many small ones. */
enum { WRITERS = 3, LARGE = 10 << 20, MIDDLE = 3 << 20, SMALL = 200, SMALLS = 500, LISTS = 64, STEP = 1024 };
enum { ROUNDS_BEFORE = 20, ROUNDS_AFTER = 20, SECONDS = 60 };
enum { WORDS = LARGE / STEP + MIDDLE / STEP + SMALLS };

struct writer {
    pthread_t thread;
    volatile uint64_t *word[WORDS];
    volatile uint64_t rounds;
};

static struct writer writers[WRITERS];
static volatile int ended;

static void set_up(struct writer *writer) {
    volatile uint64_t **next = writer->word;
    char *large = calloc(1, LARGE), *middle = calloc(1, MIDDLE);
    for (int i = 0; i < LARGE / STEP; i++)
        *next++ = (uint64_t *)(large + i * STEP);
    for (int i = 0; i < MIDDLE / STEP; i++)
        *next++ = (uint64_t *)(middle + i * STEP);
    for (int i = 0; i < SMALLS; i++)
        *next++ = calloc(1, SMALL);
}

static void *write_all(void *argument) {
    struct writer *writer = argument;
    void *lists[LISTS] = {0};
    while (!ended) {
        uint64_t round = writer->rounds;
        for (int i = 0; i < WORDS; i++) {
            if (*writer->word[i] != round) {
                fprintf(stderr, "a write is lost: word %d is %lu in round %lu\n", i, *writer->word[i], round);
                abort();
            }
            *writer->word[i] = round + 1;
        }
        writer->rounds = round + 1;
        free(lists[round % LISTS]);
        lists[round % LISTS] = malloc(100 << round % 12);
    }
    for (int i = 0; i < LISTS; i++)
        free(lists[i]);
    return NULL;
}

static void wait_for_rounds(uint64_t count) {
    uint64_t until[WRITERS];
    for (int i = 0; i < WRITERS; i++)
        until[i] = writers[i].rounds + count;
    for (int i = 0; i < WRITERS; i++)
        while (writers[i].rounds < until[i])
            usleep(100);
}

static int child(const uint64_t *least, const unsigned char *own) {
    alarm(SECONDS);
    for (int at = 0; at < LARGE; at++)
        if (own[at] != 77)
            return 3;
    for (int i = 0; i < WRITERS; i++)
        for (int at = 0; at < WORDS; at++)
            if (*writers[i].word[at] < least[i])
                return 4;
    for (int i = 0; i < WRITERS; i++)
        for (int at = WORDS - SMALLS; at < WORDS; at++)
            free((void *)writers[i].word[at]);
    for (size_t size = 16; size < 32 << 20; size *= 2) {
        char *block = malloc(size);
        memset(block, 1, size);
        free(block);
    }
    return 0;
}

int main(void) {
    uint64_t least[WRITERS];
    int status;
    alarm(2 * SECONDS);
    unsigned char *own = malloc(LARGE);
    memset(own, 77, LARGE);
    for (int i = 0; i < WRITERS; i++) {
        set_up(&writers[i]);
        pthread_create(&writers[i].thread, NULL, write_all, &writers[i]);
    }
    wait_for_rounds(ROUNDS_BEFORE);
    for (int i = 0; i < WRITERS; i++)
        least[i] = writers[i].rounds;
    pid_t process = fork();
    if (process == 0)
        _exit(child(least, own));
    if (process < 0) {
        perror("fork");
        abort();
    }
    wait_for_rounds(ROUNDS_AFTER);
    if (waitpid(process, &status, 0) != process || status != 0) {
        fprintf(stderr, "the child ended with status %#x\n", status);
        abort();
    }
    ended = 1;
    for (int i = 0; i < WRITERS; i++)
        pthread_join(writers[i].thread, NULL);
    for (int at = 0; at < LARGE; at++)
        if (own[at] != 77)
            abort();
    printf("nothing is lost\n");
    return 0;
}
