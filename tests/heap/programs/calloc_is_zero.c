// calloc gives zeroed memory at every size, fresh and again, after the block before it was left untouched, touched in
// one place, or filled; and what a realloc of it adds keeps what was there.
//
// build: gcc -g -O1 -Wall -fno-builtin -o $OUT $SRC
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

int main(void) {
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
