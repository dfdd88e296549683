/* A whole program with code, read-only data, data and bss of several huge pages each. The program checks all of this
 * before the test inspects it, afterwards, and once more after changing it. */
#ifndef CODE_PAGES
#define CODE_PAGES 1700
#endif
#ifndef RODATA_BYTES
#define RODATA_BYTES 7000000
#endif
#ifndef DATA_BYTES
#define DATA_BYTES 7000000
#endif
#ifndef BSS_BYTES
#define BSS_BYTES 9000000
#endif
#include "ranges.h"
#include "ready.h"

int main(void) {
    fill_bss();
    check_ranges(0);
    ready();
    check_ranges(0);
    add_to_ranges(5);
    check_ranges(5);
    return 0;
}
