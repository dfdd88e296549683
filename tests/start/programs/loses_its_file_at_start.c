// Before its entry point its own file is removed, or replaced by the file that REPLACE_BY names: the path is missing or
// names another file, while the process continues with its mappings.
//
// build: gcc -g -O1 -fPIE -pie -o $OUT $SRC
#define CODE_PAGES 1700
#define RODATA_BYTES 7000000
#define DATA_BYTES 7000000
#define BSS_BYTES 7000000
#include "early.h"
#include "ranges.h"
#include "ready.h"
#include <stdlib.h>

static void lose(int count, char **arguments, char **variables) {
    (void)count;
    const char *other = NULL;
    for (; *variables; variables++)
        if (!strncmp(*variables, "REPLACE_BY=", 11)) other = *variables + 11;
    if ((other ? rename(other, arguments[0]) : unlink(arguments[0])) != 0) printf("the file is still there\n");
}
BEFORE_ENTRY(lose);

int main(void) {
    fill_bss();
    check_ranges(0);
    ready();
    add_to_ranges(1);
    check_ranges(1);
    return 0;
}
