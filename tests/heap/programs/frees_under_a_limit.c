// Address space that a freed large block leaves behind, under a limit that counts it.
//
//   frees_under_a_limit as|data    sets the limit itself, once it has the block; small blocks then find memory
//   frees_under_a_limit is-free    is started under one: what is freed is not mapped any more, so that mmap finds room
//
// build: gcc -g -O1 -Wall -fno-builtin -o $OUT $SRC
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

enum { LIMIT = 1 << 30, LARGE = 800 << 20, SMALL = 1024, COUNT = 400 << 10 };

static int small_blocks(int resource) {
    struct rlimit limit = {LIMIT, LIMIT};
    char *large = malloc(LARGE);
    if (!large || setrlimit(resource, &limit)) {
        perror("malloc or setrlimit");
        return 1;
    }
    free(large);
    for (int i = 0; i < COUNT; i++) {
        char *block = malloc(SMALL);
        if (!block) {
            fprintf(stderr, "no memory for block %d of %d\n", i, COUNT);
            return 1;
        }
        block[0] = 1;
    }
    return 0;
}

static int is_free(void) {
    unsigned char present;
    char *large = malloc(LARGE);
    if (!large) {
        perror("malloc");
        return 1;
    }
    large[0] = 1;
    free(large);
    if (!mincore(large, 1, &present) || errno != ENOMEM) {
        fprintf(stderr, "the freed block is still mapped\n");
        return 1;
    }
    if (mmap(NULL, LARGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED) {
        perror("mmap");
        return 1;
    }
    return 0;
}

int main(int count, char **words) {
    if (count == 2 && !strcmp(words[1], "as")) return small_blocks(RLIMIT_AS);
    if (count == 2 && !strcmp(words[1], "data")) return small_blocks(RLIMIT_DATA);
    return is_free();
}
