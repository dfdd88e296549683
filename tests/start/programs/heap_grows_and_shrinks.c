// 16 MiB of heap have been filled before the entry point. The lift must keep them, and brk must continue to grow and
// shrink.
//
// needs: pool 64M
// build: gcc -g -O1 -fPIE -pie -o $OUT $SRC
// expect: lifted text data heap
#define CODE_PAGES 1100
#define DATA_BYTES 5000000
#include "heap.h"
