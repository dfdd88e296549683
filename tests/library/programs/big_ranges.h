// The code, read-only data and data of known contents that support.h declares. An assembler takes a second for them:
// the tests make one object of this file and link it to every program, and define BIG_RANGES_ARE_LINKED.
#if defined(__x86_64__)
#define RETURN_I "movl $i, %eax\n ret\n"
#else
#define RETURN_I "mov w0, #i\n ret\n"
#endif

__asm__(".text\n .p2align 12\n .globl big_code\n .type big_code, %function\n big_code:\n .set i, 0\n .rept 2048\n"
        ".p2align 12\n" RETURN_I ".set i, i + 1\n .endr\n .p2align 12\n"
        ".section .rodata\n .p2align 12\n .globl big_constants\n big_constants:\n .set i, 0\n .rept 786432\n"
        ".quad i * 3 + 1\n .set i, i + 1\n .endr\n"
        ".data\n .p2align 12\n .globl big_data\n big_data:\n .set i, 0\n .rept 786432\n"
        ".quad i * 5 + 2\n .set i, i + 1\n .endr\n"
        ".text\n");
