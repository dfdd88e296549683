// SIGTERM, with its default action, arrives before the entry point.
//
// needs: pool 64M
// build: gcc -g -O1 -fPIE -pie -o $OUT $SRC
// expect: signal 15
#define CODE_PAGES 1100
#include "early.h"
#include "ranges.h"
#include <signal.h>

static void die(void) {
    printf("code sums to %lu\n", (unsigned long)run_code());
    fflush(stdout);
    raise(SIGTERM);
}

BEFORE_ENTRY(die);

int main(void) { return 1; }
