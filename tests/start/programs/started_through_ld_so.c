// Started as an argument of the dynamic linker: to the kernel, the linker is the executable.
//
// needs: pool 64M
// needs: file /lib64/ld-linux-x86-64.so.2
// build: gcc -g -O1 -fPIE -pie -o $OUT $SRC
// run: /lib64/ld-linux-x86-64.so.2 $OUT
// expect: lifted-object started_through_ld_so text rodata data bss
#include "every_range.h"
