/* The least that a lift has to do: map huge pages, populate them, copy BYTES of FILE into them.
   usage: plain-copy hugetlb|thp memcpy|read BYTES FILE      prints the nanoseconds and the kernel's account of it
   `memcpy` copies from a private mapping of the file, as a program has it; `read` lets the kernel copy. */
#define _GNU_SOURCE
#include "worker.h"
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

static void fail(const char *what) {
    fprintf(stderr, "plain-copy: %s: %s\n", what, strerror(errno));
    exit(1);
}

/* The default huge page size, from the machine. */
static size_t huge_page_bytes(void) {
    char line[128];
    unsigned long kib = 0;
    FILE *meminfo = fopen("/proc/meminfo", "r");
    while (meminfo && fgets(line, sizeof line, meminfo))
        if (sscanf(line, "Hugepagesize: %lu kB", &kib) == 1)
            break;
    if (meminfo)
        fclose(meminfo);
    if (kib == 0) {
        fprintf(stderr, "plain-copy: /proc/meminfo names no huge page size\n");
        exit(1);
    }
    return kib << 10;
}

static unsigned long huge_kib_of(const void *start) {
    char line[256];
    unsigned long first, last, kib, huge = 0;
    int inside = 0;
    FILE *smaps = fopen("/proc/self/smaps", "r");
    while (smaps && fgets(line, sizeof line, smaps)) {
        if (sscanf(line, "%lx-%lx ", &first, &last) == 2 && strchr(line, '-') < strchr(line, ' '))
            inside = first <= (unsigned long)start && (unsigned long)start < last;
        else if (inside && (sscanf(line, "AnonHugePages: %lu kB", &kib) == 1 ||
                            sscanf(line, "Private_Hugetlb: %lu kB", &kib) == 1))
            huge += kib;
    }
    if (smaps)
        fclose(smaps);
    return huge;
}

int main(int count, char **words) {
    if (count != 5) {
        fprintf(stderr, "usage: plain-copy hugetlb|thp memcpy|read BYTES FILE\n");
        return 2;
    }
    const int hugetlb = strcmp(words[1], "hugetlb") == 0, by_memcpy = strcmp(words[2], "memcpy") == 0;
    const size_t huge = huge_page_bytes(), bytes = strtoull(words[3], NULL, 10) / huge * huge;
    const int file = open(words[4], O_RDONLY | O_CLOEXEC);
    if (file < 0)
        fail(words[4]);
    const char *source = NULL;
    if (by_memcpy && (source = mmap(NULL, bytes, PROT_READ, MAP_PRIVATE, file, 0)) == MAP_FAILED)
        fail("mmap of the file");

    uint64_t time = nanoseconds(CLOCK_MONOTONIC);
    const size_t room = bytes + (hugetlb ? 0 : huge);
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | (hugetlb ? MAP_HUGETLB : MAP_NORESERVE);
    char *place = mmap(NULL, room, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (place == MAP_FAILED)
        fail("mmap of huge pages");
    if (!hugetlb) {
        place = (char *)(((uintptr_t)place + huge - 1) & ~(uintptr_t)(huge - 1));
        if (madvise(place, bytes, MADV_HUGEPAGE) != 0)
            fail("madvise(MADV_HUGEPAGE)");
    }
    if (madvise(place, bytes, MADV_POPULATE_WRITE) != 0)
        fail("madvise(MADV_POPULATE_WRITE)");
    if (by_memcpy)
        memcpy(place, source, bytes);
    else
        for (size_t done = 0; done < bytes;) {
            ssize_t got = pread(file, place + done, bytes - done, (off_t)done);
            if (got <= 0)
                fail("pread");
            done += (size_t)got;
        }
    time = nanoseconds(CLOCK_MONOTONIC) - time;
    printf("%" PRIu64 " %zu %lu\n", time, bytes, huge_kib_of(place) << 10);
    return 0;
}
