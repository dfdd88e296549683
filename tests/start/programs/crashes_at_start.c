// Dies of a fault before its entry point.
//
// needs: pool 64M
// build: gcc -g -O1 -fPIE -pie -o $OUT $SRC
// expect: signal 11
#define CODE_PAGES 1100
#include "early.h"
#include "ranges.h"
#include <sys/prctl.h>

static void crash(void) {
    prctl(PR_SET_DUMPABLE, 0);
    printf("code sums to %lu\n", (unsigned long)run_code());
    fflush(stdout);
    *(volatile int *)8 = 1;
}

BEFORE_ENTRY(crash);

int main(void) { return 1; }
