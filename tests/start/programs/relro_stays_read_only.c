// Several huge pages of pointers that are relocated and then sealed. Writing to them, to the code or to the read-only
// data must fault, before and after a lift; writing to data must not.
//
// needs: pool 64M
// build: gcc -g -O1 -fPIE -pie -Wl,-z,now -o $OUT $SRC
// pages: hugetlb hugetlb-writable thp
// expect: lifted text rodata data
#define CODE_PAGES 1100
#define RODATA_BYTES 5000000
#define DATA_BYTES 5000000
#include "ranges.h"
#include "ready.h"
#include <setjmp.h>
#include <signal.h>

__asm__(".pushsection .data.rel.ro, \"aw\"\n .balign 64\n .globl sealed\n .hidden sealed\n sealed:\n .rept 700000\n"
        ".quad large_rodata\n .endr\n .popsection\n");
extern const uint64_t *volatile sealed[700000] __attribute__((visibility("hidden")));

static sigjmp_buf back;
static void faulted(int signal) { siglongjmp(back, signal); }

static void write_to(const char *name, volatile char *where) {
    int signal = sigsetjmp(back, 1);
    if (signal == 0) {
        *where = *where;
        printf("writing to %s: done\n", name);
    } else {
        printf("writing to %s: signal %d\n", name, signal);
    }
}

static void try_all(void) {
    for (int i = 0; i < 700000; i++)
        if (sealed[i] != large_rodata) printf("pointer %d is wrong\n", i);
    write_to("the first sealed page", (volatile char *)sealed);
    write_to("the middle of the sealed pages", (volatile char *)(sealed + 350000));
    write_to("the last sealed page but one", (volatile char *)(sealed + 699000));
    write_to("code", scattered_code + 2000 * 1000);
    write_to("read-only data", (volatile char *)large_rodata + 2000 * 1000);
    write_to("data", (volatile char *)large_data + 2000 * 1000);
    check_ranges(0);
}

int main(void) {
    struct sigaction action = {.sa_handler = faulted};
    sigaction(SIGSEGV, &action, NULL);
    sigaction(SIGBUS, &action, NULL);
    try_all();
    ready();
    try_all();
    return 0;
}
