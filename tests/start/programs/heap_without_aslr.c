// As heap_grows_and_shrinks, with address randomisation switched off: the heap begins right behind bss.
//
// needs: pool 64M
// needs: command setarch
// launch: setarch -R
// build: gcc -g -O1 -fPIE -pie -o $OUT $SRC
// expect: lifted text data heap
#define CODE_PAGES 1100
#define DATA_BYTES 5000000
#define BSS_BYTES 5000000
#include "heap.h"
