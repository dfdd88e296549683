// Scattered code, of crates/measure/demo-program: so many steps as the argument says.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

uint64_t pagelift_walk(uint64_t steps, uint64_t seed);

int main(int count, char **words) {
    uint64_t steps = count > 1 ? strtoull(words[1], NULL, 10) : 10000000;
    printf("%llx\n", (unsigned long long)pagelift_walk(steps, 1));
    return 0;
}
