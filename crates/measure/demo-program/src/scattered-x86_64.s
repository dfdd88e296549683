# Large code, scattered: 5120 small functions, each on a page of its own (4 KiB, the base page of x86-64), 20 MiB.
#
# They form 320 chains of 16. A chain's functions jump from one to the next; where they lie is a permutation, so that
# neither the next page nor the next line is what a prefetcher would guess. This is how a large server's code is met by
# a request: some hundred entry points, from each a path over many pages.
#
# Function `f` of the chains stands in slot (f * 3079 + 1001) mod 5120; 439 is the inverse of 3079. The line in the slot
# varies too, or all functions would meet in one set of the cache.
#
# AT&T syntax, for rustc's assembler and for gas alike.

.set pagelift_functions, 5120
.set pagelift_slot_bytes, 4096
.set pagelift_chain, 16

.section .text.pagelift_scattered, "ax", @progbits
.p2align 12, 0xcc
.globl pagelift_scattered_code
.type pagelift_scattered_code, @function
pagelift_scattered_code:
.set pagelift_slot, 0
.rept pagelift_functions
    .set pagelift_f, (((pagelift_slot + pagelift_functions - 1001) % pagelift_functions) * 439) % pagelift_functions
    .set pagelift_next, ((pagelift_f + 1) * 3079 + 1001) % pagelift_functions
    .skip (1 + (pagelift_slot * 37) % 61) * 64, 0xcc
    xorq $((pagelift_f * 104729) & 0x7fffffff), %rdi
    rolq $7, %rdi
    leaq (%rdi, %rdi, 2), %rdi
    .if (pagelift_f % pagelift_chain) != (pagelift_chain - 1)
    jmp pagelift_scattered_code + pagelift_next * pagelift_slot_bytes + (1 + (pagelift_next * 37) % 61) * 64
    .else
    movq %rdi, %rax
    ret
    .endif
    .p2align 12, 0xcc
    .set pagelift_slot, pagelift_slot + 1
.endr
.size pagelift_scattered_code, . - pagelift_scattered_code

# u64 pagelift_walk(u64 steps, u64 seed): enters a random chain `steps` times, through a table of offsets; gives what
# the functions have made of each other's results.
.section .text.pagelift_walk, "ax", @progbits
.p2align 4, 0xcc
.globl pagelift_walk
.type pagelift_walk, @function
pagelift_walk:
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rdi, %rbx
    movq %rsi, %r12
    xorl %eax, %eax
    leaq pagelift_scattered_code(%rip), %r13
    leaq pagelift_entries(%rip), %r14
    movabsq $6364136223846793005, %r15
    testq %rbx, %rbx
    jz 2f
1:
    imulq %r15, %r12
    addq $12345677, %r12
    movq %r12, %rcx
    shrq $40, %rcx
    imulq $(pagelift_functions / pagelift_chain), %rcx
    shrq $24, %rcx
    movl (%r14, %rcx, 4), %ecx
    addq %r13, %rcx
    movq %rax, %rdi
    call *%rcx
    decq %rbx
    jnz 1b
2:
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    ret
.size pagelift_walk, . - pagelift_walk

.section .rodata.pagelift_entries, "a", @progbits
.p2align 2
pagelift_entries:
.set pagelift_f, 0
.rept pagelift_functions / pagelift_chain
    .set pagelift_slot, (pagelift_f * 3079 + 1001) % pagelift_functions
    .long pagelift_slot * pagelift_slot_bytes + (1 + (pagelift_slot * 37) % 61) * 64
    .set pagelift_f, pagelift_f + pagelift_chain
.endr

# 4 MiB of initialised, writable data: no two words alike, so that nothing can be shared or compressed away.
.section .data.pagelift_routes, "aw", @progbits
.p2align 6
.globl pagelift_routes
.type pagelift_routes, @object
pagelift_routes:
.set pagelift_word, 1
.rept 65536
    .quad pagelift_word * 0x1e3779b97f4a7c15, pagelift_word * 0x3f58476d1ce4e5b9
    .quad pagelift_word * 0x14d049bb133111eb, pagelift_word * 0x2545f4914f6cdd1d
    .quad pagelift_word * 0x5851f42d4c957f2d, pagelift_word * 0x27bb2ee687b0b0fd
    .quad pagelift_word * 0x3c6ef372fe94f82b, pagelift_word * 0x510e527fade682d1
    .set pagelift_word, pagelift_word + 1
.endr
.size pagelift_routes, . - pagelift_routes
.text
