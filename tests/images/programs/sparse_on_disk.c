// A program with 64 MiB of read-only zeros; a file system that stores no zeros stores almost nothing.
//
// build: gcc -O1 -fPIE -pie -o $OUT.dense $SRC && cp --sparse=always $OUT.dense $OUT && rm $OUT.dense
#include "ready.h"

__asm__(".section .rodata\n .balign 4096\n .globl hole\n .hidden hole\n hole: .fill 64 << 20, 1, 0\n .text\n");
extern const volatile char hole[] __attribute__((visibility("hidden")));

int main(void) {
    ready();
    return hole[12345];
}
