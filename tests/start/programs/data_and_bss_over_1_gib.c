// More data and bss than a gigabyte together.
//
// needs: pool 1400M
// needs: memory 5G
// build: gcc -g -O1 -mcmodel=medium -fPIE -pie -o $OUT $SRC
// pages: hugetlb hugetlb-writable thp
// options: --max-memory 4G
// expect: lifted data bss
#define DATA_BYTES 20000000
#define BSS_BYTES 120000000
#include "every_range.h"
