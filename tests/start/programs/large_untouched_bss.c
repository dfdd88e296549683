// A gigabyte of bss of which only the first and the last word are used: the rest must not become resident.
//
// build: gcc -g -O1 -mcmodel=medium -fPIE -pie -o $OUT $SRC
#include "ready.h"
#include <stdint.h>

static uint64_t words[1 << 27];

int main(void) {
    words[0] = 1, words[(1 << 27) - 1] = 2;
    ready();
    printf("%d\n", (int)(words[0] + words[(1 << 27) - 1] + words[1 << 20]));
    return 0;
}
