// Several threads allocate blocks of random sizes and alignments and check their contents: malloc, calloc, realloc,
// posix_memalign, free by other threads, and forks at random moments whose children continue to allocate.
//
//   torture OPERATIONS THREADS FORKS SEED [LARGEST-MEBIBYTES]
//
// build: gcc -g -O1 -Wall -fno-builtin -o $OUT $SRC -lpthread
#define _GNU_SOURCE
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SLOTS = 384, SHARED = 64, MOST_THREADS = 64, STRIDE = 1021, WHOLE = 4096 };

struct slot {
    unsigned char *block;
    size_t size;
    unsigned char tag;
};

static unsigned char *passed_on[SHARED];
static long operations;
static size_t largest = 24u << 20;

static void fail(const char *what, size_t at, size_t size) {
    fprintf(stderr, "torture: %s at %zu of %zu bytes\n", what, at, size);
    abort();
}

static uint64_t next(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static size_t random_size(uint64_t *state) {
    uint64_t kind = next(state) % 100, value = next(state);
    if (kind < 70)
        return value % 512;
    if (kind < 90)
        return value % (64u << 10);
    if (kind < 97)
        return value % (2u << 20);
    return kind < 99 ? value % (largest / 2) : value % largest;
}

/* Large blocks are written and checked in steps, so that most of the time goes into allocation. */
static void fill(struct slot *slot) {
    if (slot->size <= WHOLE) {
        memset(slot->block, slot->tag, slot->size);
        return;
    }
    for (size_t at = 0; at < slot->size; at += STRIDE)
        slot->block[at] = slot->tag;
    slot->block[slot->size - 1] = slot->tag;
}

/* Checks the first `size` bytes of a block of `was` bytes that `fill` has written. */
static void check(const unsigned char *block, size_t was, size_t size, unsigned char tag, const char *what) {
    size_t step = was <= WHOLE ? 1 : STRIDE;
    for (size_t at = 0; at < size; at += step)
        if (block[at] != tag)
            fail(what, at, was);
}

static void check_zero(const unsigned char *block, size_t size) {
    for (size_t at = 0; at < size; at += size <= (64u << 10) ? 1 : 509)
        if (block[at])
            fail("calloc gave memory that is not zero", at, size);
}

static void allocate(struct slot *slot, uint64_t *state) {
    uint64_t kind = next(state) % 4;
    int error = 0;
    slot->size = random_size(state);
    slot->tag = (unsigned char)next(state) | 1;
    errno = 0;
    if (kind == 0) {
        slot->block = calloc(1, slot->size);
        if (slot->block)
            check_zero(slot->block, slot->size);
    } else if (kind == 1) {
        size_t align = (size_t)16 << next(state) % 19;
        void *block = NULL;
        /* posix_memalign returns its error; errno may be unchanged. */
        error = posix_memalign(&block, align, slot->size);
        if (error == 0 && (uintptr_t)block % align)
            fail("posix_memalign gave a wrong alignment", align, slot->size);
        slot->block = error == 0 ? block : NULL;
    } else {
        slot->block = malloc(slot->size);
    }
    if (!slot->block) {
        if (kind != 1)
            error = errno;
        if (slot->size > 0 && error != ENOMEM)
            fail("no memory, and the error does not say so", (size_t)error, slot->size);
        slot->size = 0;
        return;
    }
    if (malloc_usable_size(slot->block) < slot->size)
        fail("the usable size is too small", malloc_usable_size(slot->block), slot->size);
    fill(slot);
}

static void reallocate(struct slot *slot, uint64_t *state) {
    size_t size = random_size(state) + 1;
    unsigned char *block = realloc(slot->block, size);
    if (!block)
        return;
    check(block, slot->size, slot->size < size ? slot->size : size, slot->tag, "realloc lost contents");
    slot->block = block;
    slot->size = size;
    fill(slot);
}

static void *torture(void *argument) {
    static __thread struct slot slots[SLOTS];
    uint64_t state = (uintptr_t)argument * UINT64_C(0x9e3779b97f4a7c15) + 1;
    for (long i = 0; i < operations; i++) {
        struct slot *slot = &slots[next(&state) % SLOTS];
        uint64_t kind = next(&state) % 10;
        if (slot->block)
            check(slot->block, slot->size, slot->size, slot->tag, "contents changed");
        if (!slot->block || kind < 5) {
            free(slot->block);
            allocate(slot, &state);
        } else if (kind < 8) {
            reallocate(slot, &state);
        } else {
            /* Another thread frees it. */
            unsigned char **place = &passed_on[next(&state) % SHARED];
            free(__atomic_exchange_n(place, slot->block, __ATOMIC_ACQ_REL));
            slot->block = NULL;
        }
    }
    for (int i = 0; i < SLOTS; i++) {
        free(slots[i].block);
        slots[i].block = NULL;
    }
    return NULL;
}

static int fork_once(uint64_t *state) {
    size_t size = 1 + next(state) % (4u << 20);
    unsigned char *block = malloc(size), tag = (unsigned char)next(state);
    int status;
    memset(block, tag, size);
    pid_t child = fork();
    if (child == 0) {
        /* The parent writes at once; the child must see the contents at the fork, and continue to allocate. */
        for (size_t at = 0; at < size; at++)
            if (block[at] != tag)
                _exit(3);
        memset(block, 1, size);
        operations /= 20;
        torture((void *)(uintptr_t)(next(state) | 1));
        _exit(0);
    }
    memset(block, tag + 1, size);
    free(block);
    if (child < 0)
        return 0;
    if (waitpid(child, &status, 0) != child || status != 0) {
        fprintf(stderr, "torture: a child ended with status %#x\n", status);
        abort();
    }
    return 1;
}

int main(int count, char **words) {
    pthread_t threads[MOST_THREADS];
    long numbers[5] = {10000, 2, 0, 1, 0};
    int forked = 0;
    for (int i = 1; i < count && i < 6; i++)
        numbers[i - 1] = atol(words[i]);
    operations = numbers[0];
    if (numbers[4])
        largest = (size_t)numbers[4] << 20;
    uint64_t state = (uint64_t)numbers[3] * UINT64_C(0x2545f4914f6cdd1d);
    for (long i = 0; i < numbers[1] && i < MOST_THREADS; i++)
        pthread_create(&threads[i], NULL, torture, (void *)(uintptr_t)(next(&state) | 1));
    for (long i = 0; i < numbers[2]; i++) {
        usleep(next(&state) % 20000);
        forked += fork_once(&state);
    }
    for (long i = 0; i < numbers[1] && i < MOST_THREADS; i++)
        pthread_join(threads[i], NULL);
    printf("forked %d\n", forked);
    return 0;
}
