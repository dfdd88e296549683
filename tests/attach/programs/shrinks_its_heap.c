// Grows its heap (brk) to 40 MB and shrinks it again, until a line of input: then it checks the data that it has kept.
//
// build: gcc -g -O1 -Wall -o $OUT $SRC
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BLOCKS = 400, LENGTH = 100000 };

int main(void) {
    char *kept = malloc(LENGTH);
    memset(kept, 'k', LENGTH);
    puts("ready");
    fflush(stdout);
    struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
    while (poll(&input, 1, 0) == 0) {
        char *blocks[BLOCKS];
        for (int i = 0; i < BLOCKS; i++) {
            blocks[i] = malloc(LENGTH);
            memset(blocks[i], i, LENGTH);
        }
        usleep(10000);
        for (int i = BLOCKS; i-- > 0;) {
            for (int at = 0; at < LENGTH; at += 997)
                if (blocks[i][at] != (char)i) {
                    puts("another byte");
                    return 1;
                }
            free(blocks[i]);
        }
        usleep(10000);
    }
    for (int at = 0; at < LENGTH; at++)
        if (kept[at] != 'k') {
            puts("another byte");
            return 1;
        }
    puts("0 faults");
    return 0;
}
