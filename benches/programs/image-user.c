/* Uses a very large library: with a size as its argument it reads that much and waits for the end of its input. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

long touch_all(long bytes);

int main(int count, char **words) {
    char c;
    if (count > 1) {
        printf("ready %ld\n", touch_all(atol(words[1])));
        fflush(stdout);
        while (read(0, &c, 1) > 0) {
        }
    }
    return 0;
}
