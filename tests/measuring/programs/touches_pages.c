// Touches pages in turn without end, with a known number of instructions for each.
// touches_pages data N: a load from each of N pages of anonymous memory, four instructions each.
// touches_pages code: a jump to each of 2048 pages of the program's code, one instruction each.
//
// build: gcc -O1 -fPIE -pie -o $OUT $SRC
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define PAGE 4096

static void data(unsigned long pages)
{
    // The mapping is larger than the touched pages, so that they are inside of whole huge pages.
    size_t size = pages * PAGE, margin = 4 << 20;
    char *begin = mmap(NULL, size + 2 * margin, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (begin == MAP_FAILED)
        exit(1);
    begin += margin;
    for (;;) {
        unsigned long left = pages;
        char *at = begin;
#ifdef __x86_64__
        __asm__ volatile("1: movb (%0), %%al\n add %2, %0\n dec %1\n jnz 1b\n"
                         : "+r"(at), "+r"(left) : "r"((unsigned long)PAGE) : "rax", "cc", "memory");
#else
        __asm__ volatile("1: ldrb w9, [%0]\n add %0, %0, %2\n subs %1, %1, #1\n b.ne 1b\n"
                         : "+r"(at), "+r"(left) : "r"((unsigned long)PAGE) : "x9", "cc", "memory");
#endif
    }
}

#ifdef __x86_64__
#define JUMP "jmp"
#else
#define JUMP "b"
#endif

__asm__(".text\n.balign 4096\n.globl chain\nchain:\n"
        ".rept 2047\n" JUMP " . + 4096\n.balign 4096\n.endr\n" JUMP " chain\n.balign 4096\n");
extern void chain(void);

int main(int count, char **words)
{
    if (count > 1 && strcmp(words[1], "code") == 0)
        chain();
    if (count > 2)
        data(strtoul(words[2], NULL, 0));
    return 2;
}
