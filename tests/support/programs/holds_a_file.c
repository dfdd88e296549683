// Maps the file that its argument names, touches one page of each part of 2 MiB, and waits to be sent a line: what is mapped
// is not dropped from the page cache.
//
// build: gcc -O1 -Wall -o $OUT $SRC
#include "ready.h"
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

int main(int count, char **words) {
    struct stat found;
    int file = count == 2 ? open(words[1], O_RDONLY) : -1;
    if (file < 0 || fstat(file, &found) || found.st_size == 0) return 1;
    const volatile char *start = mmap(0, found.st_size, PROT_READ, MAP_SHARED, file, 0);
    if (start == MAP_FAILED || madvise((void *)start, found.st_size, MADV_RANDOM)) return 2;
    long sum = 0;
    for (off_t at = 0; at < found.st_size; at += 2 << 20) sum += start[at];
    ready();
    return sum < 0;
}
