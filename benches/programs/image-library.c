/* A shared library with a very large text and large constants: CONTENT twice as code, once as constants. */
__asm__(".section .text.large, \"ax\"\n"
        ".hidden large_text\n.globl large_text\nlarge_text:\n"
        ".incbin \"" CONTENT "\"\n.incbin \"" CONTENT "\"\nlarge_text_end:\n"
        ".section .rodata.large, \"a\"\n"
        ".hidden large_constants\n.globl large_constants\nlarge_constants:\n"
        ".incbin \"" CONTENT "\"\nlarge_constants_end:\n"
        ".text\n");

extern const char large_text[], large_constants[];

/* Reads a byte of every 4 KiB, the smallest page of all machines, of the included bytes. */
long touch_all(long bytes) {
    long sum = 0;
    for (long i = 0; i < bytes * 2; i += 4096) sum += large_text[i];
    for (long i = 0; i < bytes; i += 4096) sum += large_constants[i];
    return sum;
}
