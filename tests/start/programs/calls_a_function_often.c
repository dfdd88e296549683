// Calls one function in a loop, in code of several huge pages, until its input ends; then prints the number of calls.
//
// build: gcc -g -O1 -Wall -Wno-unused-function -fPIE -pie -o $OUT $SRC
#define CODE_PAGES 1700
#include "ranges.h"
#include "ready.h"
#include <poll.h>

/* The linker places this section first, then the function's, then the rest: at any base, the function is in a whole
 * huge page. */
__asm__(".pushsection .text.unlikely, \"ax\"\n .fill 3500 * 1024, 1, 0x90\n .popsection");

__attribute__((noinline, section(".text.hot"))) unsigned long ring_the_bell(unsigned long times) {
    __asm__ volatile("");
    return times + 1;
}

int main(void) {
    unsigned long times = 0;
    struct pollfd input = {.fd = 0, .events = POLLIN};
    check_ranges(0);
    ready();
    do {
        times = ring_the_bell(times);
        if (times % 100 == 0) check_ranges(0);
    } while (poll(&input, 1, 1) == 0);
    printf("%s\n", times > 0 ? "rang" : "did not ring");
    return 0;
}
