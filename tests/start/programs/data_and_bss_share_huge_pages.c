// The last bytes of data and the first of bss share a huge page, and even a base page, whose rest the kernel has
// zeroed. Every word of both ranges is checked.
//
// needs: pool 64M
// build: gcc -g -O1 -fPIE -pie -o $OUT $SRC
// pages: hugetlb hugetlb-writable thp
// expect: lifted data bss
#define CODE_PAGES 10
#define RODATA_BYTES 8192
#define DATA_BYTES 5000008
#define BSS_BYTES 5000008
#include "every_range.h"

__attribute__((constructor)) static void they_share_a_page(void) {
    uintptr_t data_end = (uintptr_t)large_data + DATA_BYTES, bss_start = (uintptr_t)large_bss;
    if (data_end > bss_start || (bss_start - data_end) > 4096) printf("data and bss are not neighbours\n");
}
