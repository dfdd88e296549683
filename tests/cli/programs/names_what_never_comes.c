// Maps the file that its argument names, readable and executable, and makes the dynamic linker's list of objects point
// to an unread page of the file. A part of the program's code has no file any more, so that a reader of its objects
// follows the list.
//
// build: gcc -O1 -o $OUT $SRC
#define _GNU_SOURCE
#include <fcntl.h>
#include <link.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>
#include "replaceable_code.h"

int main(int argc, char **argv) {
    int file = argc > 1 ? open(argv[1], O_RDONLY) : -1;
    long page = sysconf(_SC_PAGESIZE);
    char *mapped = file < 0 ? MAP_FAILED : mmap(NULL, 16 * page, PROT_READ | PROT_EXEC, MAP_PRIVATE, file, 0);
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    if (mapped == MAP_FAILED || mmap(code, CODE, PROT_READ | PROT_EXEC, flags, -1, 0) == MAP_FAILED) {
        perror(argv[0]);
        return 1;
    }
    struct link_map *first = _r_debug.r_map;
    _r_debug.r_map = (struct link_map *)(mapped + 8 * page);
    puts("ready");
    fflush(stdout);
    char line[16];
    int failed = fgets(line, sizeof line, stdin) == NULL;
    // The dynamic linker follows the list at exit.
    _r_debug.r_map = first;
    return failed;
}
