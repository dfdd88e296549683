// The functions of storms.c in the middle of 8 MiB of code, so that they are on huge pages once the code is lifted.
//
// build: gcc -g -O1 -fno-toplevel-reorder -pthread -o $OUT $SRC

__asm__(".text\n.fill 0x400000, 1, 0x90\n");
#include "storms.c"
__asm__(".text\n.fill 0x400000, 1, 0x90\n");
