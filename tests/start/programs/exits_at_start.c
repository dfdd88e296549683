// Ends before its entry point.
//
// needs: pool 64M
// build: gcc -g -O1 -fPIE -pie -o $OUT $SRC
// expect: exit 9
#define CODE_PAGES 1100
#include "early.h"
#include "ranges.h"
#include <stdlib.h>

static void leave(void) {
    printf("code sums to %lu\n", (unsigned long)run_code());
    exit(9);
}

BEFORE_ENTRY(leave);

int main(void) { return 1; }
