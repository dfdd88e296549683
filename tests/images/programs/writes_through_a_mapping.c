// Changes a byte of a file through a shared mapping whose descriptor is closed, twice: before `ready`, and after a
// line.
//
// Arguments: the file, the offset, the first byte, the second byte.
//
// The mapping is removed before `changed`, and the page stays dirty. The page is read first: on a tmpfs, a page that
// was mapped by a read is written without a fault.
#define _GNU_SOURCE
#include "ready.h"
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static int fail(const char *what) {
    printf("%s: %s\n", what, strerror(errno));
    return 1;
}

int main(int count, char **arguments) {
    if (count != 5) return 2;
    long page = sysconf(_SC_PAGESIZE), offset = atol(arguments[2]);
    int file = open(arguments[1], O_RDWR);
    if (file < 0) return fail("open");
    volatile char *mapped = mmap(0, page, PROT_READ | PROT_WRITE, MAP_SHARED, file, offset & -page);
    if (mapped == MAP_FAILED) return fail("mmap");
    close(file);
    volatile char *byte = mapped + (offset & (page - 1));
    if (*byte == atoi(arguments[4])) return 2;
    *byte = (char)atoi(arguments[3]);
    ready();
    *byte = (char)atoi(arguments[4]);
    munmap((void *)mapped, page);
    printf("changed\n");
    return 0;
}
