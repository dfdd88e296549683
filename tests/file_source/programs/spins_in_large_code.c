// Calls a function in the middle of large code until its input ends, for at least half a second of CPU time.
//
// build: gcc -g -O1 -fno-toplevel-reorder -fPIE -pie -o $OUT $SRC
#include "ready.h"
#include <poll.h>
#include <time.h>
#include <unistd.h>

/* More than two huge pages of code around the function that is called. */
__asm__(".text\n .rept 3145728\n nop\n .endr\n");

__attribute__((noinline)) long spin_amid_code(long n) {
    volatile long sum = 0;
    for (long i = 0; i < n; i++) sum = sum * 3 + i;
    return sum;
}

__asm__(".text\n .rept 3145728\n nop\n .endr\n");

int main(void) {
    ready();
    long sum = 0;
    struct pollfd input = {.fd = 0, .events = POLLIN};
    alarm(200); /* in case nothing else ends it */
    while (clock() < CLOCKS_PER_SEC / 2 || poll(&input, 1, 0) == 0) sum += spin_amid_code(100000);
    printf("done %d\n", sum != 0);
    return 0;
}
