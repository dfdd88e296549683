// Position-independent and static: it relocates itself, so at its entry point no RELRO is sealed yet.
//
// needs: pool 64M
// build: gcc -g -O1 -static-pie -fPIE -o $OUT $SRC
// expect: lifted text rodata data bss
#include "every_range.h"
