// A position-independent executable linked with the distribution's defaults: 4 KiB alignment, no lazy binding, RELRO.
//
// needs: pool 64M
// build: gcc -g -O1 -fPIE -pie -o $OUT $SRC
// expect: lifted text rodata data bss
#include "every_range.h"
