/* A program with as much code as the largest browsers: CONTENT four times. With a size as its
   argument it reads that number of bytes of each of the four and waits for the end of its input. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

__asm__(".section .text.huge, \"ax\"\n"
        ".hidden huge_text\n.globl huge_text\nhuge_text:\n"
        ".incbin \"" CONTENT "\"\n.incbin \"" CONTENT "\"\n"
        ".incbin \"" CONTENT "\"\n.incbin \"" CONTENT "\"\n"
        ".text\n");

extern const char huge_text[];

int main(int count, char **words) {
    char c;
    if (count > 1) {
        long sum = 0, bytes = atol(words[1]);
        /* A byte of every 4 KiB, the smallest page of all machines. */
        for (long i = 0; i < bytes * 4; i += 4096)
            sum += huge_text[i];
        printf("ready %ld\n", sum);
        fflush(stdout);
        while (read(0, &c, 1) > 0) {
        }
    }
    return 0;
}
