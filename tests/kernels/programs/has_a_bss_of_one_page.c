// Bss that holds exactly one whole page of PAGE bytes at any base. Some of its words are used.
//
// build: gcc -g -O1 -mcmodel=medium -fPIE -pie -o $OUT $SRC
#include "ready.h"
#include <stdint.h>

#ifndef PAGE
#define PAGE (1ull << 30)
#endif
#define BYTES (2 * PAGE - 4096)
static uint64_t words[BYTES / 8];

static uint64_t next(uint64_t i) { return (i * 6364136223846793005ull + 1442695040888963407ull) % (BYTES / 8); }

/* A word may be visited again: it then holds the last written value. */
static uint64_t use(uint64_t wrong) {
    uint64_t i = 1;
    for (int n = 0; n < 1000; n++, i = next(i)) wrong += words[i] != 0 && words[i] != i, words[i] = i;
    return wrong;
}

int main(void) {
    uint64_t wrong = use(0);
    ready();
    wrong = use(wrong);
    printf("%lu wrong words\n", (unsigned long)wrong);
    return wrong != 0;
}
