// Repeatedly allocates, resizes and frees large blocks, then holds one of 20 MiB. Prints `ready` and waits.
//
// build: gcc -g -O1 -Wall -fno-builtin -o $OUT $SRC
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MIB = 1 << 20, ROUNDS = 100 };

int main(void) {
    for (int i = 0; i < ROUNDS; i++) {
        char *block = malloc(20 * MIB);
        memset(block, 1, MIB);
        block = realloc(block, (i % 2 ? 30 : 12) * MIB);
        memset(block, 2, MIB);
        free(block);
    }
    char *held = malloc(20 * MIB);
    held[0] = 1;
    printf("ready\n");
    fflush(stdout);
    getchar();
    free(held);
    return 0;
}
