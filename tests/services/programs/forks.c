// A daemon with megabytes of code that leaves its starter once it is ready, and writes no file with its number; with an
// argument it does not fork.
// expect: exit 0; the child runs until it is ended
#include <stdlib.h>
#include <unistd.h>

__attribute__((noinline)) static int much_code(int number) {
    if (number > 1000000) return 0;
    __asm__ volatile(".skip 9000000, 0x90");
    return number;
}

int main(int count, char **words) {
    (void)words;
    int ready[2];
    char sign = 0;
    if (much_code(count) != count || pipe(ready) != 0) return 2;
    while (count > 1) pause();
    switch (fork()) {
    case -1: return 3;
    case 0: break;
    default:
        close(ready[1]);
        return read(ready[0], &sign, 1) == 1 ? 0 : 4;
    }
    setsid();
    // A child has no page tables for files until it accesses their mappings.
    if (much_code(count) != count) return 6;
    // Private memory for a heap on huge pages.
    char *volatile memory = malloc(8 << 20);
    for (int at = 0; at < 8 << 20; at += 4096) memory[at] = 1;
    if (write(ready[1], &sign, 1) != 1) return 5;
    close(ready[0]);
    close(ready[1]);
    for (;;) pause();
}
