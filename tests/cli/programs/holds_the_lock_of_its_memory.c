// Holds the lock of its memory for writing: it maps other memory over changed pages of a file, whose file system does
// not answer the request to write them. A reader of the process's mappings waits for the lock. With `pool` as second
// argument it has a page of the pool, with `as USER` it belongs to this user.
//
//     holds_the_lock_of_its_memory FILE [pool | as USER]
//
// build: gcc -g -O1 -Wall -o $OUT $SRC
#define _GNU_SOURCE
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
    check(argc < 2, "needed: a file");
    int of_pool = MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | MAP_POPULATE;
    check(argc == 3 && mmap(NULL, 1, PROT_READ | PROT_WRITE, of_pool, -1, 0) == MAP_FAILED, "mmap of a page of the pool");
    int file = open(argv[1], O_RDWR);
    check(file < 0, argv[1]);
    check(argc > 3 && setresuid(atoi(argv[3]), atoi(argv[3]), atoi(argv[3])) != 0, "setresuid");
    char *mapped = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    check(mapped == MAP_FAILED, "mmap");
    *(volatile char *)mapped = 'x';
    puts("ready");
    fflush(stdout);
    void *over = mmap(mapped, length, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    check(over == MAP_FAILED, "mmap of other memory");
    return 0;
}
