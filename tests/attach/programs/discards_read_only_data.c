// Discards a part of its read-only data for each line of input, and reports whether the kernel permitted it, and
// whether the data still equals the file. On mappings of files this changes nothing (madvise(2)). With the argument
// `mremap` it moves the pages away and keeps the mapping (MREMAP_DONTUNMAP, mremap(2)), which has the same effect on
// the mapping.
//
//   discards_read_only_data [mremap]
//
// build: gcc -g -O1 -fPIE -pie -o $OUT $SRC
#define _GNU_SOURCE
#define CODE_PAGES 600
#define RODATA_BYTES 8000000
#define DATA_BYTES 100000
#include "ranges.h"
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static int discard(char *start, size_t bytes, int by_moving) {
    if (!by_moving)
        return madvise(start, bytes, MADV_DONTNEED);
    return mremap(start, bytes, bytes, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL) == MAP_FAILED;
}

int main(int count, char **words) {
    int by_moving = count > 1 && strcmp(words[1], "mremap") == 0;
    char line[16];
    uintptr_t page = sysconf(_SC_PAGESIZE);
    const char *middle = (const char *)large_rodata + RODATA_BYTES / 2;
    char *start = (char *)((uintptr_t)middle & -page);
    uint64_t before = *(const volatile uint64_t *)middle;
    puts("ready");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin) && strcmp(line, "end\n")) {
        int refused = discard(start, page, by_moving);
        const char *error = refused ? strerrorname_np(errno) : "discarded";
        const char *now = *(const volatile uint64_t *)middle == before ? "the same" : "other data";
        printf("%s, %s\n", error, now);
        fflush(stdout);
    }
    return 0;
}
