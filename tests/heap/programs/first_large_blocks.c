// Allocates blocks of these sizes in MiB, one after the other, and writes to both ends of each. Prints `ready` and
// waits.
//
//   first_large_blocks MIB ...
//
// build: gcc -g -O1 -Wall -fno-builtin -o $OUT $SRC
#include <stdio.h>
#include <stdlib.h>

int main(int count, char **words) {
    for (int i = 1; i < count; i++) {
        size_t size = (size_t)atoi(words[i]) << 20;
        char *block = i % 2 ? malloc(size) : calloc(1, size);
        if (!block) {
            fprintf(stderr, "no block of %s MiB\n", words[i]);
            return 1;
        }
        block[0] = block[size - 1] = 1;
    }
    printf("ready\n");
    fflush(stdout);
    getchar();
    return 0;
}
