// Address space that a freed large block leaves behind, under a limit that counts it.
//
//   frees_under_a_limit as|data    sets the limit itself, once it has the block; small blocks then find memory
//   frees_under_a_limit hopeless   asks for blocks that no memory suffices for; free memory stays mapped
//   frees_under_a_limit mappings   has as many mappings as vm.max_map_count allows: freed blocks make room for a larger one
//   frees_under_a_limit one-mapping  the same: the freed blocks are adjacent, in one mapping of the kernel's
//   frees_under_a_limit is-free    is started under one: what is freed is not mapped any more, so that mmap finds room
//   frees_under_a_limit trimmed    sets the limit itself: the last free block is found while another thread trims the heap
//   frees_under_a_limit taken      the same: small blocks find one unmapped part of an arena if another one is in use
//
// build: gcc -g -O1 -Wall -fno-builtin -o $OUT $SRC -lpthread
#define _GNU_SOURCE
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

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
    /* If there is a limit, more than the limit. */
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

static int mappings(int separate) {
    enum { BLOCK = 8 << 20, BLOCKS = 40, PAGE = 4096 };
    char *blocks[BLOCKS], *edges[2];
    edges[0] = malloc(BLOCK);
    for (int i = 0; i < BLOCKS; i++) {
        blocks[i] = malloc(BLOCK);
        /* The kernel does not join the mappings of two blocks with this page between them. */
        if (!blocks[i] ||
            (separate && mmap(NULL, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED)) {
            perror("malloc or mmap");
            return 1;
        }
        blocks[i][0] = 1;
    }
    /* The kernel does not join the blocks with others beside them, of which these have other flags. */
    edges[1] = malloc(BLOCK);
    for (int i = 0; i < 2; i++)
        if (!edges[i] || madvise(edges[i], BLOCK, MADV_DONTDUMP)) {
            perror("malloc or madvise");
            return 1;
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

/* With its record a block takes a huge page of 2 MiB of an arena. */
enum { HUGE = 2 << 20, BLOCK = HUGE - (64 << 10), MOST = 1000 };
static char *blocks[MOST];

/* Limits address space, and takes blocks as long as there are any. Returns their number. */
static int fill(void) {
    unsigned long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (!file || fscanf(file, "%lu", &pages) != 1) return 0;
    fclose(file);
    size_t most = pages * sysconf(_SC_PAGESIZE) + (256 << 20);
    struct rlimit limit = {most, most};
    if (setrlimit(RLIMIT_AS, &limit)) return 0;
    int count = 0;
    while (count < MOST && (blocks[count] = malloc(BLOCK)) != NULL)
        count++;
    return count;
}

static volatile int has_ended;

static void *trim(void *argument) {
    while (!has_ended)
        malloc_trim(0);
    return argument;
}

static int trimmed(void) {
    enum { ROUNDS = 5000, LONGEST_US = 200 };
    pthread_t thread;
    int count, result = 0;
    if (pthread_create(&thread, NULL, trim, NULL) || (count = fill()) == 0) {
        fprintf(stderr, "no thread, no limit or no block\n");
        return 1;
    }
    for (int i = 0; i < ROUNDS && !result; i++) {
        memset(blocks[count - 1], 1, BLOCK);
        free(blocks[count - 1]);
        usleep(rand() % LONGEST_US);
        if (!(blocks[count - 1] = malloc(BLOCK))) {
            fprintf(stderr, "round %d: no memory for the block that was freed\n", i);
            result = 1;
        }
    }
    has_ended = 1;
    pthread_join(thread, NULL);
    return result;
}

static int compare(const void *one, const void *other) {
    const char *a = *(char *const *)one, *b = *(char *const *)other;
    return (a > b) - (a < b);
}

/* The first of so many blocks that follow each other without a gap, from a place on; -1 if there are none. */
static int adjacent(int from, int wanted, int count) {
    for (int i = from; i + wanted <= count; i++)
        if (blocks[i + wanted - 1] - blocks[i] == (wanted - 1) * (long)HUGE) return i;
    return -1;
}

static int taken(void) {
    enum { FEW = 3, MANY = 6, LARGE_BLOCK = 4 * HUGE, FOUND = 3, PAGE = 4096 };
    unsigned long huge = 0;
    FILE *file = fopen("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size", "r");
    if (!file || fscanf(file, "%lu", &huge) != 1 || huge != HUGE) return 0;
    int count = fill();
    qsort(blocks, count, sizeof *blocks, compare);
    int few = adjacent(0, FEW, count), many = few < 0 ? -1 : adjacent(few + FEW + 1, MANY, count);
    if (many < 0) {
        fprintf(stderr, "of %d blocks too few are adjacent\n", count);
        return 1;
    }
    while (mmap(NULL, HUGE / 2, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != MAP_FAILED)
        ;
    for (int i = 0; i < FEW; i++)
        free(blocks[few + i]);
    for (int i = 0; i < MANY; i++)
        free(blocks[many + i]);
    /* Fits once the huge pages of those blocks are unmapped. */
    char *large = malloc(LARGE_BLOCK);
    char *inside = (char *)(((size_t)blocks[few] + HUGE - 1) / HUGE * HUGE);
    if (!large || mmap(inside, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) != inside) {
        perror("a large block, or a page in the place of a freed one");
        return 1;
    }
    free(large);
    for (int i = 0; i < FOUND; i++) {
        if (!(blocks[i] = malloc(BLOCK))) {
            fprintf(stderr, "no memory for block %d of %d\n", i, FOUND);
            return 1;
        }
        memset(blocks[i], 1, BLOCK);
    }
    return 0;
}

int main(int count, char **words) {
    if (count == 2 && !strcmp(words[1], "as")) return small_blocks(RLIMIT_AS);
    if (count == 2 && !strcmp(words[1], "data")) return small_blocks(RLIMIT_DATA);
    if (count == 2 && !strcmp(words[1], "mappings")) return mappings(1);
    if (count == 2 && !strcmp(words[1], "one-mapping")) return mappings(0);
    if (count == 2 && !strcmp(words[1], "trimmed")) return trimmed();
    if (count == 2 && !strcmp(words[1], "taken")) return taken();
    return !strcmp(words[count - 1], "hopeless") ? hopeless() : is_free();
}
