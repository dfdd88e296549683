// Installed as a set-user-ID program and executed by `executes_set_user_id.c` during a lift. It reports how it ends: as
// it should, or because its user has chosen where it continues. The code that reports the second is at an address where
// the first program has code, too.
//
// build: gcc -g -O1 -Wall -no-pie -fno-pie -static -Wl,--section-start=.steered=0x10000000 -o $OUT $SRC
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

// The stack pointer still belongs to the other program.
__attribute__((used)) char own_stack[65536 + 64] __attribute__((aligned(16)));

__attribute__((used)) static void steered(void) {
    static const char text[] = "gained: goes on where its user chose\n";
    (void)!write(1, text, sizeof text - 1);
    _exit(42);
}

// Execution reaches the end from wherever in this page it continues.
__asm__(".pushsection .steered, \"ax\", @progbits\n .rept 3500\n nop\n .endr\n lea own_stack + 65536(%rip), %rsp\n call steered\n .popsection\n");

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

int main(void) {
    static uint64_t words[4096];
    uint64_t sum = 0;
    // Long enough for the lifter to make several more calls, with the program's own system calls in between.
    for (double end = now() + 0.3; now() < end;) {
        for (unsigned i = 0; i < 4096; i++) words[i] += i;
        for (unsigned i = 0; i < 4096; i++) sum += words[i] % (i + 1);
        getppid();
    }
    // The sum is of multiples of i modulo i + 1, so that it shows each word that others have written.
    uint64_t rounds = words[1];
    for (unsigned i = 0; i < 4096; i++)
        if (words[i] != rounds * i) return printf("gained: word %u was written by others\n", i), 43;
    printf("set-user-ID program of user %d ended as it should%s\n", (int)geteuid(), sum ? "" : ".");
    return 0;
}
