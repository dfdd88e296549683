// The dynamic linker has written into the code (DT_TEXTREL): its pages differ from the file's and must stay so.
//
// needs: pool 64M
// needs: machine x86_64
// build: gcc -g -O1 -fno-pie -mcmodel=large -pie -Wl,-z,notext -o $OUT $SRC 2>&1 && readelf -dW $OUT | grep TEXTREL
// expect: lifted text rodata data bss
#include "every_range.h"

__asm__(".text\n .balign 8\n pointer_in_code: .quad large_data\n");
extern uint64_t *const pointer_in_code;

__attribute__((constructor)) static void pointer_was_relocated(void) {
    if (pointer_in_code != large_data) printf("the pointer in the code is wrong\n");
}
