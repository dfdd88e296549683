// Spends its time in functions with names that only a demangler makes readable, in code of several huge pages, until it is
// killed. It does not end by itself, since a profiler whose program ends before it does ends in the same way as by a signal.
//
// build: g++ -g -O1 -fno-omit-frame-pointer -fPIE -pie -o $OUT $SRC
#include <cstdint>
#include <unistd.h>
extern "C" {
#define CODE_PAGES 1700
#include "ranges.h"
#include "ready.h"
}

/* The linker puts this section first, then the function's, then the rest: wherever huge pages begin, the function is in a
 * whole one. */
__asm__(".pushsection .text.unlikely, \"ax\"\n .fill 3500 * 1024, 1, 0x90\n .popsection");

namespace kitchen::bowl {
__attribute__((noinline, section(".text.hot"))) unsigned long stir_for_a_while(unsigned long state, unsigned turns) {
    for (unsigned i = 0; i < turns; i++) state = state * 31 + i;
    return state;
}
} // namespace kitchen::bowl

int main() {
    check_ranges(0);
    ready();
    volatile unsigned long sum = 0;
    alarm(120); /* should nobody kill it */
    for (;;) sum = kitchen::bowl::stir_for_a_while(sum, 1000000);
}
