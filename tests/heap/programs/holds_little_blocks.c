// Fills 60 MB with blocks of 100 KiB, then allocates 600 blocks of 4 KiB with a large alignment. The first blocks stay on huge
// pages.
//
// build: gcc -g -O1 -Wall -fno-builtin -o $OUT $SRC
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SIZE = 100 << 10, BLOCKS = 600, LITTLE = 4096, LITTLE_BLOCKS = 600, ALIGNMENT = 2 << 20 };

/* KiB of this process on huge pages. */
static long on_huge_pages(void) {
    char line[256];
    long found = -1;
    FILE *sums = fopen("/proc/self/smaps_rollup", "r");
    while (sums != NULL && fgets(line, sizeof line, sums))
        sscanf(line, "AnonHugePages: %ld", &found);
    if (sums != NULL)
        fclose(sums);
    return found;
}

int main(void) {
    for (int i = 0; i < BLOCKS; i++) {
        char *block = malloc(SIZE);
        if (block == NULL)
            return 1;
        memset(block, 1, SIZE);
    }
    long before = on_huge_pages();
    for (int i = 0; i < LITTLE_BLOCKS; i++) {
        void *block;
        if (posix_memalign(&block, ALIGNMENT, LITTLE) != 0)
            return 1;
        memset(block, 1, LITTLE);
    }
    long after = on_huge_pages();
    printf("%ld KiB on huge pages, then %ld\n", before, after);
    return before > 0 && after < before / 2;
}
