/* Code that the program never executes and may replace by a copy. It is as large as the largest base page. */
#ifndef REPLACEABLE_CODE_H
#define REPLACEABLE_CODE_H
__asm__(".pushsection .text\n"
        ".balign 65536\n"
        ".globl code\n"
        ".type code, %function\n"
        "code:\n"
        ".skip 65536\n"
        ".size code, 65536\n"
        ".popsection\n");
extern char code[];

enum { CODE = 65536 };
#endif
