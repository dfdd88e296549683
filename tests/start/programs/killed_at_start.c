// Is killed by SIGKILL, which no process can foresee, before its entry point.
//
// needs: pool 64M
// build: gcc -g -O1 -fPIE -pie -o $OUT $SRC
// expect: signal 9
#define CODE_PAGES 1100
#include "early.h"
#include "ranges.h"
#include <signal.h>

static void die(void) {
    printf("code sums to %lu\n", (unsigned long)run_code());
    fflush(stdout);
    raise(SIGKILL);
}

BEFORE_ENTRY(die);

int main(void) { return 1; }
