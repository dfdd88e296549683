// Defines malloc and related functions itself. Prints whether its blocks are its own, and the number of free pool
// pages, for example `own 12`. The argument is the file with that number.
//
// build: gcc -g -O1 -Wall -fno-builtin -o $OUT $SRC
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char room[8 << 20] __attribute__((aligned(16)));
static size_t used;

void *malloc(size_t size) {
    size_t start = __atomic_fetch_add(&used, (size + 31) & ~(size_t)15, __ATOMIC_RELAXED);
    if (start + size + 16 > sizeof room)
        return NULL;
    *(size_t *)(room + start) = size;
    return room + start + 16;
}

void free(void *block) {
}

void *calloc(size_t count, size_t size) {
    return malloc(count * size);
}

void *realloc(void *block, size_t size) {
    void *new = malloc(size);
    if (new && block) {
        size_t old = *(size_t *)((char *)block - 16);
        memcpy(new, block, old < size ? old : size);
    }
    return new;
}

int main(int count, char **words) {
    char *block = strdup("a block of the C library's function");
    int is_own = block >= room && block < room + sizeof room;
    unsigned long free_pages = 0;
    FILE *file = count > 1 ? fopen(words[1], "r") : NULL;
    if (file && fscanf(file, "%lu", &free_pages) != 1)
        return 1;
    printf("%s %lu\n", is_own ? "own" : "another's", free_pages);
    free(block);
    return 0;
}
