// Before its entry point it has used up all but a few of the mappings that vm.max_map_count allows; MAPPINGS_LEFT in
// its environment is the number left. Splitting and moving ranges hits the limit; no range may be damaged.
//
// build: gcc -g -O1 -fPIE -pie -o $OUT $SRC
#define _GNU_SOURCE
#define CODE_PAGES 1700
#define RODATA_BYTES 7000000
#define DATA_BYTES 7000000
#define BSS_BYTES 7000000
#include "early.h"
#include "ranges.h"
#include "ready.h"
#include <stdlib.h>
#include <sys/mman.h>

static void use_up(int count, char **arguments, char **variables) {
    (void)count, (void)arguments;
    int left = 0;
    for (; *variables; variables++)
        if (!strncmp(*variables, "MAPPINGS_LEFT=", 14)) left = atoi(*variables + 14);
    long page = 4096, pages = 300000;
    char *area = mmap(NULL, pages * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    long made = 0;
    while (made < pages / 2 - 1 && mprotect(area + 2 * made * page, page, PROT_READ) == 0) made++;
    /* Each of these was a separate mapping between two others: removing one joins three to one. */
    for (int i = 0; i < left; i += 2) mprotect(area + 2 * (made - 1 - i / 2) * page, page, PROT_NONE);
}
BEFORE_ENTRY(use_up);

int main(void) {
    fill_bss();
    check_ranges(0);
    ready();
    add_to_ranges(3);
    check_ranges(3);
    return 0;
}
