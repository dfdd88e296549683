// Fills memory with blocks, frees most blocks, prints `held BYTES` and `freed`, and waits for a line: `idle` and `trim`
// do nothing meanwhile, `busy` allocates a few small blocks, `in_turn` a block of 2,000 bytes and one of a megabyte. `trim` then calls malloc_trim, prints `returned RESULT`
// and `trimmed`, and waits for another line.
//
// build: gcc -g -O1 -Wall -fno-builtin -o $OUT $SRC
#include <malloc.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct kind {
    const char *name;
    size_t size, count, keep;
} kinds[] = {{"middle", 2 << 20, 200, 10}, {"small", 120, 2000000, 0}, {"large", 9 << 20, 3, 0}};

/* Reads a line if standard input has one within the time. Returns true if it had. */
static int has_line(int milliseconds) {
    struct pollfd input = {.fd = 0, .events = POLLIN};
    char line[16];
    return poll(&input, 1, milliseconds) == 1 && fgets(line, sizeof line, stdin) != NULL;
}

/* The first block has a page with free blocks, the second has a page to itself. */
static void take_turns(void) {
    char *first = malloc(2000), *second = malloc(1 << 20);
    *first = *second = 1;
    free(second);
    free(first);
}

static void go_on(void) {
    for (int size = 16; size < 400; size += 8) {
        char *block = malloc(size);
        *block = 1;
        free(block);
    }
}

int main(int count, char **words) {
    const struct kind *kind = kinds;
    while (strcmp(words[1], kind->name))
        kind++;
    char **blocks = calloc(kind->count, sizeof *blocks);
    for (size_t i = 0; i < kind->count; i++)
        memset(blocks[i] = malloc(kind->size), 1, kind->size);
    size_t held = 0;
    for (size_t i = 0; i < kind->count; i++) {
        if (kind->keep != 0 && i % kind->keep == 0)
            held += kind->size;
        else
            free(blocks[i]);
    }
    printf("held %zu\nfreed\n", held);
    fflush(stdout);
    int is_in_turn = !strcmp(words[2], "in_turn"), is_busy = is_in_turn || !strcmp(words[2], "busy");
    while (!has_line(is_busy ? 5 : -1)) {
        if (is_in_turn)
            take_turns();
        else
            go_on();
    }
    if (!strcmp(words[2], "trim")) {
        printf("returned %d\ntrimmed\n", malloc_trim(0));
        fflush(stdout);
        has_line(-1);
    }
    return 0;
}
