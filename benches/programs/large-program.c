/* A program with a large text, large constants and large initialised data, all file-backed, that ends at once.
   The bytes are CONTENT, included by the assembler; they are never run or read. */
__asm__(".section .text.large, \"ax\"\n"
        ".globl large_text\nlarge_text:\n"
        ".incbin \"" CONTENT "\"\n.incbin \"" CONTENT "\"\n"
        ".section .rodata.large, \"a\"\n"
        ".globl large_constants\nlarge_constants:\n"
        ".incbin \"" CONTENT "\"\n"
        ".section .data.large, \"aw\"\n"
        ".globl large_data\nlarge_data:\n"
        ".incbin \"" CONTENT "\"\n"
        ".text\n");

extern char large_text[], large_constants[], large_data[];

int main(void) {
    /* Keeps the three from being dropped by a linker that collects garbage. */
    return &large_text[0] == &large_data[0] || &large_constants[0] == &large_data[0];
}
