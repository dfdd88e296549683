// Discards a part of its read-only data each time it is told to, and says whether the kernel has let it, and whether it still
// reads what its file holds. On memory of a file that changes nothing (madvise(2)).
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

int main(void) {
    char line[16];
    uintptr_t page = sysconf(_SC_PAGESIZE);
    const char *middle = (const char *)large_rodata + RODATA_BYTES / 2;
    char *start = (char *)((uintptr_t)middle & -page);
    uint64_t before = *(const volatile uint64_t *)middle;
    puts("ready");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin) && strcmp(line, "end\n")) {
        int refused = madvise(start, page, MADV_DONTNEED);
        const char *error = refused ? strerrorname_np(errno) : "discarded";
        const char *now = *(const volatile uint64_t *)middle == before ? "the same" : "other data";
        printf("%s, %s\n", error, now);
        fflush(stdout);
    }
    return 0;
}
