// Waits, then dies several calls deep, in code that is spread over huge pages; for core dumps and backtraces.
//
// build: gcc -g -O0 -fPIE -pie -o $OUT $SRC
#define CODE_PAGES 1700
#define RODATA_BYTES 5000000
#define DATA_BYTES 5000000
#define BSS_BYTES 5000000
#include "ranges.h"
#include "ready.h"
#include <stdlib.h>

struct state {
    int number;
    const char *text;
};
static struct state state_in_data = {42, "a text in rodata"};

__attribute__((noinline)) static void innermost(struct state *state, const uint64_t *words) {
    if (words[1] == 2 * ODD && state->number == 42) abort();
    printf("not where it should be\n");
}

__attribute__((noinline)) static void middle(int argument) { innermost(&state_in_data, large_data + argument - 7); }

int main(void) {
    fill_bss();
    check_ranges(0);
    ready();
    middle(7);
    return 0;
}
