// Fills so many megabytes with blocks of one kind, twice, and checks their contents. The process is in a cgroup that
// allows hardly more.
//
// build: gcc -g -O1 -Wall -fno-builtin -o $OUT $SRC
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 1 << 20, PAGE = 4096 };

static struct {
    unsigned char *start;
    size_t bytes;
} blocks[MOST];

static size_t size_of(const char *kind, size_t index) {
    if (!strcmp(kind, "large"))
        return 9000000;
    if (!strcmp(kind, "middle"))
        return 3000000;
    static const size_t mixed[] = {700, 9000000, 102400, 3000000, 40000, 2500, 8500000, 5};
    return mixed[index % (sizeof mixed / sizeof mixed[0])];
}

static void stamp(size_t index) {
    for (size_t at = 0; at < blocks[index].bytes; at += PAGE)
        blocks[index].start[at] = (unsigned char)(index + at / PAGE) | 1;
    blocks[index].start[blocks[index].bytes - 1] = 77;
}

static int is_stamped(size_t index) {
    const unsigned char *start = blocks[index].start;
    size_t last = blocks[index].bytes - 1;
    for (size_t at = 0; at < last; at += PAGE)
        if (start[at] != ((unsigned char)(index + at / PAGE) | 1))
            return 0;
    return start[last] == 77;
}

/* Every third block is requested as zeroed, every fifth is extended to its size. */
static int allocate(size_t index) {
    size_t bytes = blocks[index].bytes;
    unsigned char *start = index % 3 == 0 ? calloc(1, bytes) : malloc(index % 5 == 0 ? bytes / 2 + 1 : bytes);
    if (start != NULL && index % 3 != 0 && index % 5 == 0)
        start = realloc(start, bytes);
    blocks[index].start = start;
    for (size_t at = 0; start != NULL && index % 3 == 0 && at < bytes; at += PAGE / 2)
        if (start[at] != 0)
            return 0;
    return start != NULL;
}

int main(int count, char **words) {
    size_t wanted = strtoull(words[2], NULL, 10) * 1000000;
    for (int round = 0; round < 2; round++) {
        size_t filled = 0, number = 0;
        for (; filled < wanted && number < MOST; number++) {
            blocks[number].bytes = size_of(words[1], number);
            if (!allocate(number)) {
                printf("no memory, or not zero: block %zu after %zu bytes\n", number, filled);
                return 1;
            }
            stamp(number);
            filled += blocks[number].bytes;
        }
        for (size_t i = 0; i < number; i++) {
            if (!is_stamped(i)) {
                printf("block %zu of %zu has other contents\n", i, number);
                return 1;
            }
            free(blocks[i].start);
        }
    }
    printf("filled\n");
    return 0;
}
