// Large code, and 16 MiB in one block on ordinary pages.
//
// build: gcc -g -O1 -fPIE -pie -o $OUT $SRC
#define CODE_PAGES 1100
#define DATA_BYTES 5000000
#include "ranges.h"
#include "ready.h"
#include <stdlib.h>
#include <string.h>

enum { LARGE = 16 << 20 };

int main(void) {
    unsigned char *large = malloc(LARGE);
    memset(large, 7, LARGE);
    ready();
    for (int i = 0; i < LARGE; i++)
        if (large[i] != 7) return 1;
    return 0;
}
