// Code and data without any library, at a fixed address: nothing of the process is libc's, not even a stack protector.
// The code is spread over 1,200 pages, each of which adds a number out of its own page of data.
//
// needs: pool 64M
// needs: machine x86_64
// build: gcc -nostdlib -static -no-pie -o $OUT $SRC
// expect: lifted text data
// expect: exit 42

        .set    pages, 1200
        .globl  _start
        .text
_start: call    add_all
        lea     word(%rip), %rsi
        mov     $6, %edx
        call    print
        xor     %eax, %eax              // read(0, byte, 1): the test has looked
        xor     %edi, %edi
        lea     byte(%rip), %rsi
        mov     $1, %edx
        syscall
        call    add_all
        mov     $60, %eax               // exit
        mov     $42, %edi
        syscall

print:  mov     $1, %eax                // write(1, rsi, rdx)
        mov     $1, %edi
        syscall
        ret

// Calls every page's function; prints "right" where the sum is 1 + 2 + … + pages.
add_all:
        xor     %ebx, %ebx
        lea     functions(%rip), %r12
        mov     $pages, %r13d
1:      call    *%r12
        add     $4096, %r12
        dec     %r13d
        jnz     1b
        lea     right(%rip), %rsi
        lea     wrong(%rip), %rax
        cmp     $(pages * (pages + 1) / 2), %rbx
        cmovne  %rax, %rsi
        mov     $6, %edx
        jmp     print

        .balign 4096
functions:
        .set    i, 0
        .rept   pages
        .balign 4096
        add     numbers + 4096 * i(%rip), %rbx
        ret
        .set    i, i + 1
        .endr
        .balign 4096

        .data
        .balign 4096
numbers:
        .set    i, 1
        .rept   pages
        .balign 4096
        .quad   i
        .set    i, i + 1
        .endr
        .balign 4096
byte:   .byte   0
word:   .ascii  "ready\n"
right:  .ascii  "right\n"
wrong:  .ascii  "wrong\n"
        .section .note.GNU-stack, "", %progbits
