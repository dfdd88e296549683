// The executable and a shared object each have data of several huge pages, which both write to after the lift.
//
// needs: pool 64M
// build: gcc -g -O1 -fPIC -shared -DLIBRARY -o $BUILD/liblarge.so $SRC
// build: gcc -g -O1 -fPIE -pie -o $OUT $SRC -L$BUILD -Wl,--no-as-needed -llarge -Wl,-rpath,$BUILD
// pages: hugetlb hugetlb-writable thp
// expect: lifted text data
// expect: lifted-object liblarge.so data
#define DATA_BYTES 6000000
#ifdef LIBRARY
#include "ranges.h"

/* Adds one to each word and returns their sum. */
uint64_t add_to_data_of_library(void) {
    uint64_t sum = 0;
    for (uint64_t i = 0; i < DATA_BYTES / 8; i++) sum += ++large_data[i];
    return sum;
}
#else
#define CODE_PAGES 1100
#include "ranges.h"
#include "ready.h"

uint64_t add_to_data_of_library(void);

int main(void) {
    uint64_t own = 0;
    ready();
    for (uint64_t i = 0; i < DATA_BYTES / 8; i++) own += ++large_data[i];
    printf("code %lu, own data %lu, the library's %lu\n", (unsigned long)run_code(), (unsigned long)own,
           (unsigned long)add_to_data_of_library());
    return 0;
}
#endif
