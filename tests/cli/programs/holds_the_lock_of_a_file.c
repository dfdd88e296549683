// Holds the lock of a file: it writes to the file from unread memory of a silent file system. A process that asks for
// the holes of the file (lseek) waits for the lock, and cannot be killed either.
//
//     holds_the_lock_of_a_file FILE SERVED
//
// It prints `ready`, waits for a line, and writes.
//
// build: gcc -g -O1 -Wall -o $OUT $SRC
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static void check(int failed, const char *what) {
    if (failed) {
        perror(what);
        exit(1);
    }
}

int main(int argc, char **argv) {
    size_t length = sysconf(_SC_PAGESIZE);
    check(argc != 3, "needed: a file, and one of the silent file system");
    int file = open(argv[1], O_WRONLY), served = open(argv[2], O_RDONLY);
    check(file < 0, argv[1]);
    check(served < 0, argv[2]);
    char *mapped = mmap(NULL, length, PROT_READ, MAP_PRIVATE, served, 0);
    check(mapped == MAP_FAILED, "mmap");
    puts("ready");
    fflush(stdout);
    char line[16];
    check(!fgets(line, sizeof line, stdin), "input");
    check(write(file, mapped, length) < 0, "write");
    return 0;
}
