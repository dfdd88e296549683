// Compares the reports of mallinfo2(3), mallinfo(3), malloc_info(3) and malloc_stats(3) with the blocks that it holds.
//
// build: gcc -g -O1 -Wall -Wno-deprecated-declarations -fno-builtin -o $OUT $SRC
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition) \
    do { \
        if (!(condition)) { \
            fprintf(stderr, "line %d: %s\n", __LINE__, #condition); \
            return 1; \
        } \
    } while (0)

enum { MIB = 1 << 20, COUNT = 100000, SIZE = 320 };

static size_t number_behind(const char *text, const char *name) {
    const char *place = strstr(text, name);
    return place == NULL ? (size_t)-1 : strtoul(place + strlen(name), NULL, 10);
}

int main(void) {
    static char *blocks[COUNT];
    struct mallinfo2 before = mallinfo2();
    for (int i = 0; i < COUNT; i++)
        memset(blocks[i] = malloc(SIZE), 1, SIZE);
    char *large = malloc(40 * MIB);
    memset(large, 1, 40 * MIB);
    struct mallinfo2 held = mallinfo2();
    size_t more = held.uordblks - before.uordblks;
    CHECK(more >= (size_t)COUNT * SIZE && more < (size_t)COUNT * SIZE * 9 / 8 + MIB);
    CHECK(held.hblks == before.hblks + 1 && held.hblkhd - before.hblkhd >= 40 * MIB);
    CHECK(held.arena == held.uordblks + held.fordblks);
    struct mallinfo old = mallinfo();
    CHECK(old.uordblks > 0 && (size_t)old.uordblks >= held.uordblks && (size_t)old.hblkhd == held.hblkhd);

    char *text = NULL;
    size_t length = 0;
    FILE *stream = open_memstream(&text, &length);
    CHECK(malloc_info(1, stream) != 0);
    CHECK(malloc_info(0, stream) == 0);
    fclose(stream);
    CHECK(strncmp(text, "<malloc version=\"1\">\n", 21) == 0 && strstr(text, "</malloc>\n") != NULL);
    CHECK(number_behind(text, "<total type=\"mmap\" count=\"1\" size=\"") >= 40 * MIB);
    CHECK(number_behind(text, "<system type=\"current\" size=\"") >= held.uordblks);
    malloc_stats();

    for (int i = 0; i < COUNT; i++)
        free(blocks[i]);
    free(large);
    free(text);
    struct mallinfo2 freed = mallinfo2();
    /* The C library's streams may still have buffers. */
    CHECK(freed.uordblks + (size_t)COUNT * SIZE < held.uordblks + MIB && freed.hblks == before.hblks);
    CHECK(malloc_trim(0) == 1);
    CHECK(mallinfo2().keepcost < MIB);
    puts("all is well");
    return 0;
}
