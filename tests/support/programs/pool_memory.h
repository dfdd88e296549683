/* KiB of the pool that this process has. Uses thread-self, because /proc/self has no memory once the first thread has
 * ended. */
#ifndef POOL_MEMORY_H
#define POOL_MEMORY_H
#include <stdio.h>
#include <stdlib.h>

static long of_pool(void) {
    char line[4096];
    long sum = 0, kib;
    FILE *smaps = fopen("/proc/thread-self/smaps", "r");
    if (!smaps) {
        perror("smaps");
        _Exit(9);
    }
    while (fgets(line, sizeof line, smaps))
        if (sscanf(line, "Private_Hugetlb: %ld", &kib) == 1 || sscanf(line, "Shared_Hugetlb: %ld", &kib) == 1) sum += kib;
    fclose(smaps);
    return sum;
}
#endif
