// Computes with a known value in each general register, all or no arithmetic flags set, and a pattern in the 128 bytes
// below its stack pointer, which no signal handler may touch. It counts changes, ends with its input, and prints the
// counts.
//
// build: gcc -g -O1 -Wall -Wno-unused-function -o $OUT $SRC
#define CODE_PAGES 1700
#define RODATA_BYTES 5000000
#include "ranges.h"
#include "ready.h"
#include <poll.h>

enum { REGISTERS = 13, RED_ZONE = 16, FLAGS = 0xcd5 };
#define HIDDEN __attribute__((visibility("hidden"))) volatile uint64_t
HIDDEN before[REGISTERS], after[REGISTERS], red_zone[RED_ZONE], flags_before, flags_after, pattern;

/* No instruction of the loop changes a flag. Direction is among the flags, so that nothing else may run in between. */
void compute(void);
__asm__(".text\n compute:\n push %rbx\n push %rbp\n push %r12\n push %r13\n push %r14\n push %r15\n"
        "mov pattern(%rip), %rax\n"
        ".set at, 8\n .rept 16\n mov %rax, -at(%rsp)\n .set at, at + 8\n .endr\n"
        "push flags_before(%rip)\n popf\n mov %rax, -8(%rsp)\n"
        "mov before(%rip), %rax\n mov before+8(%rip), %rbx\n mov before+16(%rip), %rdx\n mov before+24(%rip), %rsi\n"
        "mov before+32(%rip), %rdi\n mov before+40(%rip), %rbp\n mov before+48(%rip), %r8\n mov before+56(%rip), %r9\n"
        "mov before+64(%rip), %r10\n mov before+72(%rip), %r11\n mov before+80(%rip), %r12\n mov before+88(%rip), %r13\n"
        "mov before+96(%rip), %r14\n mov before(%rip), %r15\n"
        "mov $3000000, %ecx\n 1: lea -1(%rcx), %rcx\n jrcxz 2f\n jmp 1b\n 2:\n"
        "mov %rax, after(%rip)\n mov %rbx, after+8(%rip)\n mov %rdx, after+16(%rip)\n mov %rsi, after+24(%rip)\n"
        "mov %rdi, after+32(%rip)\n mov %rbp, after+40(%rip)\n mov %r8, after+48(%rip)\n mov %r9, after+56(%rip)\n"
        "mov %r10, after+64(%rip)\n mov %r11, after+72(%rip)\n mov %r12, after+80(%rip)\n mov %r13, after+88(%rip)\n"
        "mov %r14, after+96(%rip)\n"
        ".set at, 8\n .rept 16\n mov -at(%rsp), %rax\n mov %rax, red_zone+at-8(%rip)\n .set at, at + 8\n .endr\n"
        "pushf\n pop flags_after(%rip)\n cld\n"
        "pop %r15\n pop %r14\n pop %r13\n pop %r12\n pop %rbp\n pop %rbx\n ret\n");

int main(void) {
    long wrong = 0, rounds = 0;
    struct pollfd input = {.fd = 0, .events = POLLIN};
    uint64_t wanted = run_code();
    ready();
    do {
        for (int i = 0; i < REGISTERS; i++) before[i] = ODD * (uint64_t)(++rounds);
        pattern = ODD * (uint64_t)rounds;
        flags_before = 0x202 | (rounds & 1 ? FLAGS : 0);
        compute();
        for (int i = 0; i < REGISTERS; i++) wrong += after[i] != before[i];
        for (int i = 0; i < RED_ZONE; i++) wrong += red_zone[i] != pattern;
        wrong += (flags_after & FLAGS) != (flags_before & FLAGS);
        wrong += run_code() != wanted;
    } while (poll(&input, 1, 0) == 0);
    check_ranges(0);
    printf("%ld of the registers had changed after %ld rounds\n", wrong, rounds);
    return wrong != 0;
}
