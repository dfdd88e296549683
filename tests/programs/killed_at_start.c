// Is killed (SIGKILL cannot be seen coming) in its constructor.
//
// needs: pool 64M
// build: gcc -g -O1 -fPIE -pie -o $OUT $SRC
// expect: signal 9
#define CODE_PAGES 1100
#include "support/ranges.h"
#include <signal.h>

__attribute__((constructor)) static void die(void) {
    printf("code sums to %lu\n", (unsigned long)run_code());
    fflush(stdout);
    raise(SIGKILL);
}

int main(void) { return 1; }
