// A static program that fills 64 MiB, in blocks that its allocator maps separately and in small ones, prints `ready`
// and waits. It loads no preloaded heap.
//
// build: gcc -g -O1 -Wall -fno-builtin -static -o $OUT $SRC
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(void) {
    for (int i = 0; i < 2; i++)
        memset(malloc(16u << 20), 1, 16u << 20);
    for (int i = 0; i < 32 << 10; i++)
        memset(malloc(1000), 1, 1000);
    printf("ready\n");
    fflush(stdout);
    getchar();
    return 0;
}
