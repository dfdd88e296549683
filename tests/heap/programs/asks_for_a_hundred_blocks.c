// Allocates a hundred blocks of a size that nothing else allocates.
//
// build: gcc -g -O1 -Wall -fno-builtin -o $OUT $SRC
#include <stdlib.h>

int main(void) {
    for (int i = 0; i < 100; i++) {
        char *block = malloc(4321);
        if (!block) return 1;
        block[i] = 1;
        free(block);
    }
    return 0;
}
