// Large code, scattered: 5120 small functions, each in a slot of 4 KiB of its own (a page, where base pages are that
// small), 20 MiB. See scattered-x86_64.s for why it looks as it does; the results are the same on both.

.set pagelift_functions, 5120
.set pagelift_slot_bytes, 4096
.set pagelift_chain, 16

.section .text.pagelift_scattered, "ax", %progbits
.p2align 12
.globl pagelift_scattered_code
.type pagelift_scattered_code, %function
pagelift_scattered_code:
.set pagelift_slot, 0
.rept pagelift_functions
    .set pagelift_f, (((pagelift_slot + pagelift_functions - 1001) % pagelift_functions) * 439) % pagelift_functions
    .set pagelift_next, ((pagelift_f + 1) * 3079 + 1001) % pagelift_functions
    .skip (1 + (pagelift_slot * 37) % 61) * 64
    movz w10, #((pagelift_f * 104729) & 0xffff)
    movk w10, #(((pagelift_f * 104729) >> 16) & 0x7fff), lsl #16
    eor x0, x0, x10
    ror x0, x0, #57
    add x0, x0, x0, lsl #1
    .if (pagelift_f % pagelift_chain) != (pagelift_chain - 1)
    b pagelift_scattered_code + pagelift_next * pagelift_slot_bytes + (1 + (pagelift_next * 37) % 61) * 64
    .else
    ret
    .endif
    .p2align 12
    .set pagelift_slot, pagelift_slot + 1
.endr
.size pagelift_scattered_code, . - pagelift_scattered_code

// u64 pagelift_walk(u64 steps, u64 seed): enters a random chain `steps` times, through a table of offsets; gives what
// the functions have made of each other's results.
.section .text.pagelift_walk, "ax", %progbits
.p2align 4
.globl pagelift_walk
.type pagelift_walk, %function
pagelift_walk:
    stp x29, x30, [sp, #-80]!
    mov x29, sp
    stp x19, x20, [sp, #16]
    stp x21, x22, [sp, #32]
    stp x23, x24, [sp, #48]
    str x25, [sp, #64]
    mov x19, x0
    mov x20, x1
    mov x0, #0
    adrp x21, pagelift_scattered_code
    add x21, x21, :lo12:pagelift_scattered_code
    adrp x22, pagelift_entries
    add x22, x22, :lo12:pagelift_entries
    // 6364136223846793005 = 0x5851f42d4c957f2d, and the increment 12345677 = 0xbc614d.
    movz x23, #0x7f2d
    movk x23, #0x4c95, lsl #16
    movk x23, #0xf42d, lsl #32
    movk x23, #0x5851, lsl #48
    movz x24, #0x614d
    movk x24, #0xbc, lsl #16
    mov x25, #(pagelift_functions / pagelift_chain)
    cbz x19, 2f
1:
    madd x20, x20, x23, x24
    lsr x9, x20, #40
    mul x9, x9, x25
    lsr x9, x9, #24
    ldr w9, [x22, x9, lsl #2]
    add x9, x21, x9
    blr x9
    subs x19, x19, #1
    b.ne 1b
2:
    ldr x25, [sp, #64]
    ldp x23, x24, [sp, #48]
    ldp x21, x22, [sp, #32]
    ldp x19, x20, [sp, #16]
    ldp x29, x30, [sp], #80
    ret
.size pagelift_walk, . - pagelift_walk

.section .rodata.pagelift_entries, "a", %progbits
.p2align 2
pagelift_entries:
.set pagelift_f, 0
.rept pagelift_functions / pagelift_chain
    .set pagelift_slot, (pagelift_f * 3079 + 1001) % pagelift_functions
    .long pagelift_slot * pagelift_slot_bytes + (1 + (pagelift_slot * 37) % 61) * 64
    .set pagelift_f, pagelift_f + pagelift_chain
.endr

// 4 MiB of initialised, writable data: no two words alike, so that nothing can be shared or compressed away.
.section .data.pagelift_routes, "aw", %progbits
.p2align 6
.globl pagelift_routes
.type pagelift_routes, %object
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
