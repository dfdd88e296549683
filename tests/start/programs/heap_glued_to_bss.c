// A static executable at a fixed address without randomisation: heap and bss are neighbours and may even appear as one
// mapping. A huge page over both would make all further brk calls fail.
//
// needs: pool 64M
// needs: command setarch
// launch: setarch -R
// build: gcc -g -O1 -static -fno-pie -no-pie -o $OUT $SRC
// pages: hugetlb hugetlb-writable thp
// expect: lifted text data bss
#define CODE_PAGES 1100
#define DATA_BYTES 5000000
#define BSS_BYTES 5000000
#define HEAP_IS_GLUED
#include "heap.h"
