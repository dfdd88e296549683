// Started with a limit of address space. Fills most of the limit with small blocks, frees them, and takes a large block
// that fits only into the same memory. Repeats this several times.
//
// build: gcc -g -O1 -Wall -fno-builtin -o $OUT $SRC
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MIB = 1 << 20, SMALL = 1000, COUNT = 700 * MIB / SMALL, LARGE = 400 * MIB, ROUNDS = 12 };

static char *blocks[COUNT];

int main(void) {
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < COUNT; i++) {
            if ((blocks[i] = malloc(SMALL)) == NULL) {
                fprintf(stderr, "round %d: no memory for block %d of %d\n", round, i, COUNT);
                return 1;
            }
            memset(blocks[i], round + 1, SMALL);
        }
        for (int i = 0; i < COUNT; i++) {
            if (blocks[i][SMALL - 1] != round + 1) {
                fprintf(stderr, "round %d: block %d was overwritten\n", round, i);
                return 1;
            }
            free(blocks[i]);
        }
        char *large = calloc(1, LARGE);
        if (large == NULL) {
            fprintf(stderr, "round %d: no memory for a block of %d MiB\n", round, LARGE / MIB);
            return 1;
        }
        for (int i = 0; i < LARGE; i += 4096) {
            if (large[i] != 0) {
                fprintf(stderr, "round %d: byte %d is not zero\n", round, i);
                return 1;
            }
            large[i] = 1;
        }
        free(large);
    }
    return 0;
}
