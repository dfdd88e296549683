// Fills several huge pages with constants, and several with a heap, and reads or writes each page. With the argument
// `off` it disables transparent huge pages for itself first.
//
// build: gcc -g -O1 -fPIE -pie -o $OUT $SRC
#include "ready.h"
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>

#define BYTES (12u << 20)
#define HEAP (24u << 20)
__attribute__((aligned(4096))) static const unsigned char constants[BYTES] = {7, [BYTES / 2] = 11, [BYTES - 1] = 13};

int main(int count, char **words) {
    if (count > 1 && strcmp(words[1], "off") == 0 && prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0) != 0) return 1;
    void *heap = mmap(NULL, HEAP, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (heap == MAP_FAILED) return 1;
    memset(heap, 1, HEAP);
    unsigned sum = 0;
    for (unsigned at = 0; at < BYTES; at += 4096) sum += ((volatile const unsigned char *)constants)[at];
    if (sum != 7 + 11) return 1;
    ready();
    return 0;
}
