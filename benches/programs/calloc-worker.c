/* Allocates zeroed memory and frees it, untouched or touched in one place in 64 KiB. The first argument is a size in
   bytes; a step is one calloc and one free. The name of a workload shows whether memory is touched. */
#include "worker.h"

static size_t size;

static uint64_t work(int workload, uint64_t steps, uint64_t seed) {
    uint64_t sum = seed;
    for (uint64_t step = 0; step < steps; step++) {
        volatile unsigned char *block = calloc(1, size);
        if (!block) {
            fprintf(stderr, "calloc-worker: no memory\n");
            exit(1);
        }
        if (workload == 1)
            for (size_t at = 0; at < size; at += 64 << 10) {
                sum += block[at];
                block[at] = 1;
            }
        free((void *)block);
    }
    return sum;
}

int main(int count, char **words) {
    static const char *const names[] = {"untouched", "touched", NULL};
    size = count == 2 ? strtoull(words[1], NULL, 10) : 0;
    if (size == 0) {
        fprintf(stderr, "usage: calloc-worker BYTES\n");
        return 2;
    }
    return serve(names, work);
}
