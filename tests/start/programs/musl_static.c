// musl, linked statically.
//
// needs: pool 64M
// needs: command musl-gcc
// build: musl-gcc -g -O1 -static -o $OUT $SRC
// expect: lifted text rodata data bss
#include "every_range.h"
