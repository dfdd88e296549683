// calloc returns zeroed memory at every size, fresh or reused, whether the previous block was untouched, written in
// some places, or filled. A realloc keeps the contents. With `sizes` each size is used, without the rounds that change
// how the heap of Pagelift treats a block.
//
//   calloc_is_zero [sizes]
//
// build: gcc -g -O1 -Wall -fno-builtin -o $OUT $SRC -lpthread
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void check(const unsigned char *block, size_t size, const char *when) {
    if (!block) {
        fprintf(stderr, "no memory for %zu bytes\n", size);
        exit(1);
    }
    for (size_t at = 0; at + 8 <= size; at += 8) {
        uint64_t word;
        memcpy(&word, block + at, 8);
        if (word) {
            fprintf(stderr, "not zero %s: byte %zu of %zu\n", when, at, size);
            exit(1);
        }
    }
}

// The pages of a block that each round writes: the first one, the distance between them, and their largest number.
struct places {
    size_t first, step, most;
};

// Blocks that are written repeatedly in few places, and read elsewhere only at the end: they move to ordinary pages,
// and only resident pages are cleared.
static void written_in_places(size_t page) {
    static const struct places all[] = {
        {0, 1, 1},       {0, 4095, 9},     {4095, 1, 3},  {7, 40, 1000000}, {3, 10, 1000000},
        {0, 3, 1000000}, {1, 1, 1000000}, {2040, 1, 16}, {5, 331, 1000000},
    };
    // The sizes differ so much that no block is reused for the next kind.
    size_t size = 9 * 1000 * 1000;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++, size += size / 3) {
        for (int round = 0; round < 6; round++) {
            unsigned char *block = calloc(1, size);
            if (!block) exit(1);
            size_t number = 0;
            for (size_t at = all[i].first * page; at < size && number < all[i].most; at += all[i].step * page, number++) {
                check(block + at, size - at < page ? size - at : page, "where it was written");
                block[at + (size - at < page ? 0 : (size_t)round * 9)] = 0x77;
            }
            free(block);
        }
        unsigned char *block = calloc(1, size);
        check(block, size, "after all rounds");
        free(block);
    }
}

// A large block whose writes alternate: for some rounds at most one page is written, then many. The heap treats the
// block by its earlier use, and the result must be correct after any change.
static void written_otherwise_than_before(size_t page) {
    size_t size = 120 * 1000 * 1000, step = 0, first = 0;
    for (int round = 0; round < 120; round++) {
        unsigned char *block = calloc(1, size);
        if (!block) exit(1);
        // Checks the places that the last round has written.
        for (size_t at = first; step && at < size; at += step) check(block + at, 8, "where it was written before");
        int kind = round / 20 % 3;
        step = kind == 0 ? size : kind == 1 ? 97 * page : 2 * page;
        first = kind == 0 && round % 2 ? size - 8 : (size_t)round * 5 * page;
        for (size_t at = first; at < size; at += step) block[at + 7] = 1;
        free(block);
    }
    unsigned char *block = calloc(1, size);
    check(block, size, "after all kinds");
    free(block);
}

static void *nothing(void *none) { return none; }

int main(int count, char **words) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    int has_rounds = count < 2 || strcmp(words[1], "sizes");
    if (has_rounds) {
        written_in_places(page);
        written_otherwise_than_before(page);
    }
    // The same once the process has had a second thread.
    pthread_t thread;
    if (pthread_create(&thread, NULL, nothing, NULL)) return 1;
    if (has_rounds) written_otherwise_than_before(page);
    pthread_join(thread, NULL);
    static const size_t sizes[] = {1,       100,     4096,        65536,       100000,      1000000,      2097152,     2097153,
                                   4194304, 8388607, 8u << 20,    10000000,    16u << 20,   31000000,     33554432,    40000000,
                                   100000000, 134217729, 300000000};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        size_t size = sizes[i];
        for (int round = 0; round < 6; round++) {
            unsigned char *block = calloc(1, size);
            check(block, size, "from calloc");
            if (round % 3 == 1) {
                block[size / 2] = 1;
                block[size - 1] = 1;
                block[size / 3] = 1;
            } else if (round % 3 == 2) {
                memset(block, 0xa5, size);
            }
            if (round == 4) {
                block = realloc(block, size + size / 2 + 1);
                if (!block || (size > 2 && block[size / 2] != 1)) {
                    fprintf(stderr, "realloc of %zu bytes lost contents\n", size);
                    return 1;
                }
                memset(block, 0x5a, size + size / 2 + 1);
            }
            free(block);
        }
    }
    if (calloc((size_t)-1 / 2, 4) || calloc(1, (size_t)-1 / 2 + 1) || malloc((size_t)-4096)) {
        fprintf(stderr, "a size that cannot be was given\n");
        return 1;
    }
    printf("all zero\n");
    return 0;
}
