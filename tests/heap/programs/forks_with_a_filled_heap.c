// Fills this many MiB in small blocks, forks, and prints the result; a child must find all contents unchanged.
//
//   forks_with_a_filled_heap MEBIBYTES [aio]
//
// With `aio` the process has a context for asynchronous reads.
//
// build: gcc -g -O1 -Wall -fno-builtin -o $OUT $SRC
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SIZE = 4000 };

static size_t count;
static unsigned char **blocks;

static int is_whole(void) {
    for (size_t i = 0; i < count; i++)
        for (size_t at = 0; at < SIZE; at++)
            if (blocks[i][at] != (unsigned char)(i + 1))
                return 0;
    return 1;
}

int main(int words, char **word) {
    int status;
    count = (size_t)(words > 1 ? atoi(word[1]) : 1) * 250;
    blocks = malloc(count * sizeof *blocks);
    for (size_t i = 0; i < count; i++)
        memset(blocks[i] = malloc(SIZE), (int)(i + 1), SIZE);
    unsigned long context = 0;
    if (words > 2 && syscall(SYS_io_setup, 8, &context)) {
        perror("io_setup");
        return 2;
    }
    pid_t child = fork();
    if (child == 0)
        _exit(is_whole() ? 0 : 3);
    if (child < 0) {
        printf("refused: %d", errno);
    } else {
        if (waitpid(child, &status, 0) != child || status != 0) {
            fprintf(stderr, "the child ended with status %#x\n", status);
            return 1;
        }
        printf("forked");
    }
    if (!is_whole())
        return 1;
    printf(", went on\n");
    return 0;
}
