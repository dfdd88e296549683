// No dynamic linker: the entry stop is the executable's own first instruction.
//
// needs: pool 64M
// build: gcc -g -O1 -static -fno-pie -no-pie -o $OUT $SRC
// expect: lifted text rodata data bss
#include "every_range.h"
