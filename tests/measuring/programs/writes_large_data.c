// Has code, data and bss of some huge pages each, and repeatedly changes one word of every writable page, with one
// system call per round. SIGTERM ends it.
//
// build: gcc -g -O1 -fPIE -pie -o $OUT $SRC
#define CODE_PAGES 1700
#define DATA_BYTES 9000000
#define BSS_BYTES 9000000
#include "ranges.h"
#include <signal.h>
#include <unistd.h>

static volatile sig_atomic_t told_to_end;

static void end(int signal) {
    (void)signal;
    told_to_end = 1;
}

int main(void) {
    signal(SIGTERM, end);
    memset(large_bss, 0, sizeof large_bss);
    uint64_t sum = run_code();
    printf("ready\n");
    fflush(stdout);
    while (!told_to_end) {
        for (uint64_t i = 0; i < DATA_BYTES / 8; i += 512) {
            ((volatile uint64_t *)large_data)[i] += 1;
            ((volatile uint64_t *)large_bss)[i] += 1;
        }
        getppid();
    }
    printf("%s\n", run_code() == sum ? "all right" : "wrong");
    return 0;
}
