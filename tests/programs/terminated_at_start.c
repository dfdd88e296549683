// SIGTERM, with its default action, arrives in the constructor.
//
// needs: pool 64M
// build: gcc -g -O1 -fPIE -pie -o $OUT $SRC
// expect: signal 15
#define CODE_PAGES 1100
#include "support/ranges.h"
#include <signal.h>

__attribute__((constructor)) static void die(void) {
    printf("code sums to %lu\n", (unsigned long)run_code());
    fflush(stdout);
    raise(SIGTERM);
}

int main(void) { return 1; }
