// LeakSanitizer, which traces its own process, finds a leak at the end.
//
// build: gcc -g -O1 -fsanitize=leak -o $OUT $SRC
#include <stdlib.h>

int main(void) {
    volatile char *lost = malloc(7);
    lost[0] = 1;
    lost = NULL;
    return 0;
}
