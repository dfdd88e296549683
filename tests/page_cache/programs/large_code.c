// Has more than three huge pages of code, touches each page of the code and waits for the end of its input. `$OUT` has
// a fixed address that agrees with the file's offsets, `large_code.pie` any address that the kernel chooses.
//
// build: gcc -g -O1 -Wall -fno-toplevel-reorder -fno-pie -no-pie -Wl,-z,noseparate-code -o $OUT $SRC
// build: gcc -g -O1 -Wall -fno-toplevel-reorder -fPIE -pie -Wl,-z,noseparate-code -o $BUILD/large_code.pie $SRC
#include "ready.h"

#if defined(__aarch64__)
__asm__(".text\n .globl code\n code: .fill 2097152, 4, 0xd503201f\n .globl code_end\n code_end:\n");
#else
__asm__(".text\n .globl code\n code: .fill 8388608, 1, 0x90\n .globl code_end\n code_end:\n");
#endif
extern const volatile char code[], code_end[];

int main(void) {
    long sum = 0;
    for (const volatile char *at = code; at < code_end; at += 4096) sum += *at;
    ready();
    return sum == 0;
}
