// Maps the given number of bytes of the pool without touching them: they are reserved but still counted as free. After
// a line of input it touches them all.
//
// build: gcc -g -O1 -o $OUT $SRC
#define _GNU_SOURCE
#include "ready.h"
#include <stdlib.h>
#include <sys/mman.h>

int main(int count, char **arguments) {
    size_t bytes = count > 1 ? strtoul(arguments[1], NULL, 0) : 0;
    char *area = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
    if (area == MAP_FAILED) {
        perror("mmap");
        return 1;
    }
    ready();
    for (size_t i = 0; i < bytes; i += 4096) area[i] = 1;
    printf("all pages are there\n");
    return 0;
}
