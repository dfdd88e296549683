// A program whose first segment has 6 MiB of read-only data after the ELF header, and no code.
//
// build: gcc -g -O1 -Wall -Wno-unused-function -fPIE -pie -Wl,-z,separate-code -o $OUT $SRC
#define CODE_PAGES 1700
#include "ranges.h"
#include "ready.h"

__asm__(".pushsection .note.large,\"a\",%note\n .balign 4\n .4byte 4, 6291456, 1\n .asciz \"big\"\n"
        " .fill 6291456 / 4, 4, 0x01020304\n .popsection\n");

int main(void) {
    ready();
    return run_code() == 0;
}
