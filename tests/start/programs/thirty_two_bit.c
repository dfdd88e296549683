// A 32-bit program: it cannot be lifted, and runs unchanged.
//
// needs: 32-bit
// build: gcc -m32 -g -O1 -o $OUT $SRC
#define CODE_PAGES 1100
#include "ranges.h"
#include "ready.h"

int main(void) {
    printf("pointers of %d bytes\n", (int)sizeof(void *));
    check_ranges(0);
    ready();
    check_ranges(0);
    return 3;
}
