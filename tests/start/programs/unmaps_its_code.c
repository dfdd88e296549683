// Unmaps the first huge pages of its code, which it does not need any more, and then computes over constants until its
// standard input ends.
//
// build: gcc -g -O1 -fPIE -pie -fno-plt -Wl,-z,separate-code,-z,now -o $OUT $SRC
#include "ready.h"
#include <fcntl.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

#define BYTES (12u << 20)
#define HUGE (2ul << 20)
__attribute__((aligned(4096))) static const unsigned char constants[BYTES] = {7, [BYTES / 2] = 11, [BYTES - 1] = 13};

// Before all functions of this file. The first whole huge pages of the code are in here, or before it.
__asm__(".pushsection .text\n.globl unneeded\nunneeded:\n.fill 12 << 20, 1, 0x90\n.popsection");
extern const char unneeded[];
extern const char __executable_start[];

int main(void) {
    uintptr_t first = ((uintptr_t)__executable_start + HUGE) & -HUGE;
    uintptr_t last = ((uintptr_t)unneeded + (6ul << 20)) & -HUGE;
    int unmapped = munmap((void *)first, last - first);
    ready();
    fcntl(0, F_SETFL, O_NONBLOCK);
    uint64_t sum = 0;
    char byte;
    do {
        sum = 0;
        for (uint32_t at = 0; at < BYTES; at++) sum = sum * 31 + ((volatile const unsigned char *)constants)[at];
    } while (read(0, &byte, 1) != 0);
    printf("%lu, %d\n", (unsigned long)sum, unmapped);
    fflush(stdout);
    // The C library's exit code may have been in these pages.
    _exit(0);
}
