// A program of which nearly every base has as many whole huge pages of code.
// expect: prints "ready", waits for a line, exit 0
#include <stdio.h>

__attribute__((noinline)) static int much_code(int number) {
    if (number > 1000000) return 0;
    __asm__ volatile(".balign 4\n.skip 6 * 1024 * 1024 - 65536");
    return number;
}

int main(int count, char **words) {
    (void)words;
    // The code is never run, so its contents need not be instructions.
    if (much_code(count + 1000000) != 0) return 2;
    puts("ready");
    fflush(stdout);
    getchar();
    return 0;
}
