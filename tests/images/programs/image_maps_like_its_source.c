// Maps ranges of an image as a lift would, by private read-only mappings at agreeing addresses, and compares every byte
// with the source.
//
// Arguments: the image, the source, the huge page size, then for each range its offset in the image, its offset in the
// source, its length, and r or x. After `ready` it waits, so that a test can find the users of the image.
#define _GNU_SOURCE
#include "ready.h"
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static unsigned long huge_kib(unsigned long start, unsigned long end) {
    FILE *smaps = fopen("/proc/self/smaps", "r");
    char line[8192];
    unsigned long from, to, value, sum = 0;
    int inside = 0;
    while (fgets(line, sizeof line, smaps)) {
        if (sscanf(line, "%lx-%lx ", &from, &to) == 2) inside = from >= start && to <= end;
        if (inside && (sscanf(line, "ShmemPmdMapped: %lu", &value) == 1 ||
                       sscanf(line, "Private_Hugetlb: %lu", &value) == 1 ||
                       sscanf(line, "Shared_Hugetlb: %lu", &value) == 1))
            sum += value;
    }
    fclose(smaps);
    return sum;
}

static int fail(const char *what) {
    printf("%s: %s\n", what, strerror(errno));
    return 1;
}

int main(int count, char **arguments) {
    int image = open(arguments[1], O_RDONLY), source = open(arguments[2], O_RDONLY);
    if (image < 0 || source < 0) return fail("open");
    unsigned long huge = strtoul(arguments[3], 0, 10), bytes = 0, kib = 0;
    for (int i = 4; i + 3 < count; i += 4) {
        unsigned long at = strtoul(arguments[i], 0, 10), from = strtoul(arguments[i + 1], 0, 10);
        unsigned long length = strtoul(arguments[i + 2], 0, 10);
        int execute = *arguments[i + 3] == 'x' ? PROT_EXEC : 0;
        char *room = mmap(0, length + huge, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        char *place = (char *)(((unsigned long)room + huge - 1) / huge * huge);
        char *mapped = mmap(place, length, PROT_READ | execute, MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE, image, at);
        if (mapped != place) return fail("mmap");
        char *wanted = malloc(length);
        unsigned long done = 0;
        while (done < length) {
            long got = pread(source, wanted + done, length - done, from + done);
            if (got <= 0) return fail("pread");
            done += got;
        }
        for (unsigned long byte = 0; byte < length; byte++)
            if (mapped[byte] != wanted[byte]) {
                printf("differs at %lu of the image\n", at + byte);
                return 1;
            }
        free(wanted);
        bytes += length;
        kib += huge_kib((unsigned long)mapped, (unsigned long)mapped + length);
    }
    printf("same %lu huge %lu\n", bytes, kib * 1024);
    ready();
    printf("done\n");
    return 0;
}
