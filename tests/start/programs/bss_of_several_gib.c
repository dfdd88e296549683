// Bss that holds whole pages of 1 GiB. Only some of its words are used.
//
// build: gcc -g -O1 -mcmodel=medium -fPIE -pie -o $OUT $SRC
#include "ready.h"
#include <stdint.h>

#define BYTES (2300ull << 20)
static uint64_t words[BYTES / 8];

static uint64_t next(uint64_t i) { return (i * 6364136223846793005ull + 1442695040888963407ull) % (BYTES / 8); }

int main(void) {
    uint64_t i = 1, wrong = 0;
    for (int n = 0; n < 100000; n++, i = next(i)) wrong += words[i] != 0, words[i] = i;
    ready();
    i = 1;
    for (int n = 0; n < 100000; n++, i = next(i)) wrong += words[i] != i;
    printf("%lu wrong words\n", (unsigned long)wrong);
    return wrong != 0;
}
