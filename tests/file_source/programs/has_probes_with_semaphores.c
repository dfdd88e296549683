// Has a USDT probe with a semaphore among large data, declared by a note as in SystemTap's sys/sdt.h. For each line of
// input it executes the probe ten times and prints the semaphore.
//
// build: gcc -g -O1 -Wall -Wno-unused-function -fPIE -pie -o $OUT $SRC
#define DATA_BYTES 8388608
#define CODE_PAGES 1700
#include "ranges.h"
#include <stdio.h>

__asm__(".pushsection .data\n .balign 64\n .globl place_semaphore\n place_semaphore: .2byte 0\n .popsection\n");
PATTERN(".data", "more_data", 4194304)
extern volatile unsigned short place_semaphore __attribute__((visibility("hidden")));

__asm__(".pushsection .note.stapsdt,\"?\",\"note\"\n .balign 4\n"
        " .4byte 992f-991f, 994f-993f, 3\n991: .asciz \"stapsdt\"\n992: .balign 4\n"
        "993: .8byte place_of_probe\n .8byte _.stapsdt.base\n .8byte place_semaphore\n"
        " .asciz \"pagelift\"\n .asciz \"place\"\n .asciz \"\"\n994: .balign 4\n .popsection\n"
        " .pushsection .stapsdt.base,\"aG\",\"progbits\",.stapsdt.base,comdat\n .weak _.stapsdt.base\n"
        " .hidden _.stapsdt.base\n_.stapsdt.base: .space 1\n .size _.stapsdt.base, 1\n .popsection\n");

__attribute__((noinline)) static int pass(int number) {
    __asm__ volatile(".globl place_of_probe\n place_of_probe: nop" : "+r"(number));
    return number + 1;
}

int main(void) {
    puts("ready");
    fflush(stdout);
    char line[16];
    for (int round = 1; fgets(line, sizeof line, stdin); round++) {
        int sum = 0;
        for (int i = 0; i < 10; i++) sum = pass(sum);
        printf("semaphore %d\n%d in round %d\n", place_semaphore, sum, round);
        fflush(stdout);
    }
    check_ranges(0);
    return 0;
}
