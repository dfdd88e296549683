// An executable that is linked for one address.
//
// needs: pool 64M
// build: gcc -g -O1 -fno-pie -no-pie -o $OUT $SRC
// expect: lifted text rodata data bss
#include "every_range.h"
