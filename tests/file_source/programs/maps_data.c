// Maps the data file of its argument by ordinary pages, in four ways: shared and private for reading, shared for
// writing, and one page ahead of its offsets. With a second argument the mappings are longer than the file. Once it has read a line,
// it compares all mappings with the file.
//
// build: gcc -g -O1 -Wall -o $OUT $SRC
#define _GNU_SOURCE
#include "ready.h"
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

enum { WAYS = 4, HUGE = 2 << 20 };
static size_t length, mapped;

static void need(int is_met, const char *what) {
    if (is_met) return;
    perror(what);
    exit(3);
}

static char *map(int file, int protection, int flags, size_t ahead) {
    size_t all = mapped + 2 * HUGE;
    char *room = mmap(NULL, all, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    need(room != MAP_FAILED, "mmap");
    char *at = (char *)(((uintptr_t)room + HUGE - 1) & ~(uintptr_t)(HUGE - 1)) + ahead;
    need(mmap(at, mapped, protection, flags | MAP_FIXED, file, 0) == at, "mmap");
    need(!madvise(at, length, MADV_NOHUGEPAGE), "MADV_NOHUGEPAGE");
    for (size_t page = 0; page < length; page += 4096) (void)*(volatile char *)(at + page);
    // Only the small page tables stay.
    need(!madvise(at, length, MADV_HUGEPAGE), "MADV_HUGEPAGE");
    return at;
}

int main(int count, char **words) {
    struct stat status;
    int file = count >= 2 ? open(words[1], O_RDWR) : -1;
    need(file >= 0 && !fstat(file, &status), "open");
    length = status.st_size;
    mapped = count == 3 ? length + 16 * (size_t)HUGE : length;
    char *ways[WAYS] = {
        map(file, PROT_READ, MAP_SHARED, 0),
        map(file, PROT_READ, MAP_PRIVATE, 0),
        map(file, PROT_READ | PROT_WRITE, MAP_SHARED, 0),
        map(file, PROT_READ, MAP_SHARED, 4096),
    };
    char *bytes = malloc(length);
    need(bytes && pread(file, bytes, length, 0) == (ssize_t)length, "pread");
    ways[2][length / 2] = bytes[length / 2];
    ready();
    int same = 1;
    for (int way = 0; way < WAYS; way++) same &= memcmp(ways[way], bytes, length) == 0;
    puts(same ? "the same" : "differs");
    return !same;
}
