// Maps a page of the file of its first argument, as often as the second says: alternately readable and not, so that the
// kernel keeps the mappings separate. With `huge` as third argument it has memory on huge pages, with `without` it
// first replaces some of its own code by a copy, so that the code has no file.
//
// build: gcc -O1 -o $OUT $SRC
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "replaceable_code.h"

int main(int argc, char **argv) {
    int file = argc > 2 ? open(argv[1], O_RDONLY) : -1;
    int failed = file < 0;
    for (int i = 0; !failed && i < atoi(argv[2]); i++)
        failed = mmap(NULL, 1, i % 2 ? PROT_NONE : PROT_READ, MAP_PRIVATE, file, 0) == MAP_FAILED;
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    if (!failed && argc > 3 && !strcmp(argv[3], "without"))
        failed = mmap(code, CODE, PROT_READ | PROT_EXEC, flags, -1, 0) == MAP_FAILED;
    if (!failed && argc > 3 && !strcmp(argv[3], "huge")) {
        char *memory = mmap(NULL, 8 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        failed = memory == MAP_FAILED || madvise(memory, 8 << 20, MADV_HUGEPAGE) || !memset(memory, 1, 8 << 20);
    }
    if (failed) {
        perror(argv[0]);
        return 1;
    }
    puts("ready");
    fflush(stdout);
    char line[16];
    return fgets(line, sizeof line, stdin) == NULL;
}
