// Grows blocks of 1 to 7 MiB by realloc. A block with free memory behind it keeps its address, also at the beginning of a huge
// page, where large blocks begin; a block in front of another block leaves that block unchanged.
//
// build: gcc -g -O1 -Wall -fno-builtin -o $OUT $SRC
#include <malloc.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KIB = 1 << 10, MIB = 1 << 20, STEP = 100 * KIB, MOST = 7 * MIB, MOST_MOVES = 2, BLOCKS = 6, MANY = 64, HUGE_PAGE = 2 * MIB, ODD = MIB + 64 * KIB };

#define CHECK(condition)                                                  \
    do {                                                                  \
        if (!(condition)) {                                               \
            fprintf(stderr, "line %d: %s\n", __LINE__, #condition);       \
            exit(1);                                                      \
        }                                                                 \
    } while (0)

static char *grown_to(char *block, size_t old, size_t size, int *moves) {
    char *now = realloc(block, size);
    CHECK(now && malloc_usable_size(now) >= size);
    *moves += now != block;
    memset(now + old, (int)(size / STEP), size - old);
    return now;
}

/* Each step has written its own value. */
static void check_steps(const char *block, size_t first, size_t size) {
    for (size_t at = 0; at < first; at++)
        CHECK(block[at] == 1);
    for (size_t end = first + STEP; end <= size; end += STEP)
        for (size_t at = end - STEP; at < end; at++)
            CHECK(block[at] == (char)(end / STEP));
}

static void check_all(const char *block, size_t size, char value) {
    for (size_t at = 0; at < size; at++)
        CHECK(block[at] == value);
}

/* The number of the block behind a block; -1 if there is none. Part of a page is between the two. */
static int block_behind(char **blocks, int number) {
    for (int i = 0; i < MANY; i++) {
        ptrdiff_t distance = blocks[i] ? blocks[i] - blocks[number] : 0;
        if (distance > 0 && distance < MIB + MIB / 2)
            return i;
    }
    return -1;
}

/* Blocks of this size have one in 16 at the beginning of a huge page: each takes 18 parts of 64 KiB. */
static void grow_at_the_beginning_of_a_huge_page(void) {
    char *blocks[MANY];
    for (int i = 0; i < MANY; i++) {
        CHECK((blocks[i] = malloc(ODD)));
        memset(blocks[i], i, ODD);
    }
    int grown = 0;
    for (int i = 0; i < MANY; i++) {
        int behind = (uintptr_t)blocks[i] % HUGE_PAGE == 0 ? block_behind(blocks, i) : -1;
        if (behind < 0)
            continue;
        free(blocks[behind]);
        blocks[behind] = NULL;
        CHECK(realloc(blocks[i], ODD + 5 * STEP) == blocks[i]);
        CHECK(malloc_usable_size(blocks[i]) >= ODD + 5 * STEP);
        memset(blocks[i] + ODD, i, 5 * STEP);
        check_all(blocks[i], ODD + 5 * STEP, (char)i);
        grown++;
    }
    CHECK(grown > 0);
    for (int i = 0; i < MANY; i++)
        free(blocks[i]);
}

int main(void) {
    int moves = 0, other_moves = 0;
    size_t size = MIB;
    char *block = malloc(size);
    CHECK(block);
    memset(block, 1, size);
    for (; size + STEP <= MOST; size += STEP)
        block = grown_to(block, size, size + STEP, &moves);
    check_steps(block, MIB, size);
    CHECK(moves <= MOST_MOVES);

    char *blocks[BLOCKS];
    for (int i = 0; i < BLOCKS; i++) {
        CHECK((blocks[i] = malloc(MIB)));
        memset(blocks[i], 'a' + i, MIB);
    }
    for (int i = 0; i < BLOCKS; i += 2) {
        blocks[i] = grown_to(blocks[i], MIB, 3 * MIB, &other_moves);
        memset(blocks[i], 'a' + i, 3 * MIB);
    }
    for (int i = 0; i < BLOCKS; i++)
        check_all(blocks[i], i % 2 ? MIB : 3 * MIB, 'a' + i);
    check_steps(block, MIB, size);

    /* All memory of a grown block is free again. */
    free(block);
    for (int i = 0; i < BLOCKS; i++)
        free(blocks[i]);
    for (int round = 0; round < 60; round++) {
        char *again = malloc(MIB);
        CHECK(again);
        memset(again, round, MIB);
        again = grown_to(again, MIB, MOST, &other_moves);
        check_all(again, MIB, (char)round);
        free(again);
    }
    grow_at_the_beginning_of_a_huge_page();
    printf("all is well\n");
    return 0;
}
