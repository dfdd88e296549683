// musl's dynamic linker, which is libc itself.
//
// needs: pool 64M
// needs: command musl-gcc
// build: musl-gcc -g -O1 -fPIE -pie -o $OUT $SRC
// expect: lifted text rodata data bss
#include "every_range.h"
