// Linked with 2 MiB alignment, as an earlier adopter of huge pages would have done.
//
// needs: pool 64M
// build: gcc -g -O1 -fPIE -pie -Wl,-z,max-page-size=0x200000 -Wl,-z,common-page-size=0x200000 -o $OUT $SRC
// expect: lifted text rodata data bss
#include "every_range.h"
