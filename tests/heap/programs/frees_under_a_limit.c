// Address space that a freed large block leaves behind, under a limit that counts it.
//
//   frees_under_a_limit as|data    sets the limit itself, once it has the block; small blocks then find memory
//   frees_under_a_limit hopeless   asks for blocks that no memory suffices for; free memory stays mapped
//   frees_under_a_limit mappings   has as many mappings as vm.max_map_count allows: freed blocks make room for a larger one
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

static int hopeless(void) {
    enum { BLOCK = 1 << 20, BLOCKS = 200, KEPT = 40 << 20 };
    static char *blocks[BLOCKS];
    struct rlimit limit;
    unsigned char present;
    for (int i = 0; i < BLOCKS; i++) {
        if (!(blocks[i] = malloc(BLOCK))) {
            fprintf(stderr, "no memory for block %d of %d\n", i, BLOCKS);
            return 1;
        }
        memset(blocks[i], 1, BLOCK);
    }
    for (int i = 0; i < BLOCKS; i++)
        free(blocks[i]);
    /* With a limit, more than that. */
    getrlimit(RLIMIT_AS, &limit);
    size_t size = limit.rlim_cur == RLIM_INFINITY ? (size_t)1 << 60 : limit.rlim_cur + 1;
    char *kept = malloc(KEPT), *large = malloc(LARGE / 4);
    free(kept);
    if (!kept || !large || malloc(size) || realloc(large, size)) {
        fprintf(stderr, "a block of %zu bytes is given, or none of %d\n", size, LARGE / 4);
        return 1;
    }
    if (mincore(kept, 1, &present)) {
        fprintf(stderr, "the large block is not mapped any more\n");
        return 1;
    }
    for (int i = 0; i < BLOCKS; i++) {
        char *page = (char *)((size_t)blocks[i] / 4096 * 4096);
        if (mincore(page, 1, &present)) {
            fprintf(stderr, "block %d is not mapped any more\n", i);
            return 1;
        }
    }
    return 0;
}

static int mappings(void) {
    enum { BLOCK = 8 << 20, BLOCKS = 40, PAGE = 4096 };
    char *blocks[BLOCKS];
    for (int i = 0; i < BLOCKS; i++) {
        blocks[i] = malloc(BLOCK);
        /* Keeps the kernel from joining the mappings of two blocks. */
        if (!blocks[i] || mmap(NULL, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED) {
            perror("malloc or mmap");
            return 1;
        }
        blocks[i][0] = 1;
    }
    for (int i = 0; i < BLOCKS; i++)
        free(blocks[i]);
    for (int i = 0;; i++)
        if (mmap(NULL, PAGE, i % 2 ? PROT_READ : PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED) break;
    /* No freed block is large enough. */
    if (!malloc(2ul * BLOCK * BLOCKS)) {
        fprintf(stderr, "no memory, with %d freed blocks\n", BLOCKS);
        return 1;
    }
    return 0;
}

int main(int count, char **words) {
    if (count == 2 && !strcmp(words[1], "as")) return small_blocks(RLIMIT_AS);
    if (count == 2 && !strcmp(words[1], "data")) return small_blocks(RLIMIT_DATA);
    if (count == 2 && !strcmp(words[1], "mappings")) return mappings();
    return !strcmp(words[count - 1], "hopeless") ? hopeless() : is_free();
}
