// Computes over constants of several megabytes, with a heap that is larger, until its standard input ends.
//
// build: gcc -g -O1 -fPIE -pie -Wl,-z,separate-code -o $OUT $SRC
#include "ready.h"
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#define BYTES (12u << 20)
#define HEAP (40u << 20)
__attribute__((aligned(4096))) static const unsigned char constants[BYTES] = {7, [BYTES / 2] = 11, [BYTES - 1] = 13};

int main(void) {
    memset(sbrk(HEAP), 1, HEAP);
    ready();
    fcntl(0, F_SETFL, O_NONBLOCK);
    uint64_t sum = 0;
    char byte;
    do {
        sum = 0;
        for (uint32_t at = 0; at < BYTES; at++) sum = sum * 31 + ((volatile const unsigned char *)constants)[at];
    } while (read(0, &byte, 1) != 0);
    printf("%lu\n", (unsigned long)sum);
    return 0;
}
