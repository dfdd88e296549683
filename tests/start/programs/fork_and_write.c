// Children, and children of children, write to all data and bss on the parent's huge pages; each process keeps its own
// contents. Writable ranges are on transparent pages, which the kernel copies by itself.
//
// needs: pool 64M
// build: gcc -g -O1 -fPIE -pie -o $OUT $SRC
// expect: lifted text rodata data bss
#define CODE_PAGES 1100
#define RODATA_BYTES 5000000
#define DATA_BYTES 6000000
#define BSS_BYTES 6000000
#include "ranges.h"
#include "ready.h"
#include <stdlib.h>
#include <sys/wait.h>

static void family(uint64_t plus, int depth) {
    for (int child = 1; depth > 0 && child <= 3; child++) {
        fflush(stdout);
        pid_t pid = fork();
        if (pid == 0) {
            add_to_ranges(child);
            family(plus + child, depth - 1);
            check_ranges(plus + child);
            exit(10 * depth + child);
        }
        int status;
        waitpid(pid, &status, 0);
        printf("child %d at depth %d: status %x\n", child, depth, status);
        check_ranges(plus);
    }
}

int main(void) {
    fill_bss();
    ready();
    family(0, 2);
    return 0;
}
