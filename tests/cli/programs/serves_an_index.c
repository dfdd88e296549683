// An index in memory: a table of some MiB from malloc, which is searched at random. With a number of rounds it ends after
// these; otherwise it waits for a line.
//
// build: gcc -g -O1 -o $OUT $SRC
#include "ready.h"
#include <stdint.h>
#include <stdlib.h>

#define LOOKUPS 100000

int main(int count, char **words) {
    if (count < 2) return 2;
    size_t entries = ((size_t)atol(words[1]) << 20) / sizeof(uint64_t);
    uint64_t *table = malloc(entries * sizeof *table);
    if (!table) return 1;
    for (size_t index = 0; index < entries; index++) table[index] = index;
    uint64_t random = 1, sum = 0;
    for (long round = count > 2 ? atol(words[2]) : 1; round-- > 0;)
        for (int lookup = 0; lookup < LOOKUPS; lookup++) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            sum += table[(random >> 20) % entries];
        }
    if (count > 2)
        printf("%llu\n", (unsigned long long)sum);
    else
        ready();
    free(table);
    return sum == 0;
}
