// Works without end in units, each of which makes one system call. A unit takes PLAIN steps, or LIFTED steps while
// memory of this process is on huge pages. The program reports that it is ready when it has used 0.3 s of CPU time. For
// each line of input it reports whether its code was right.
//
//   costs_less_when_lifted PLAIN LIFTED
//
// build: gcc -g -O1 -Wall -Wno-unused-function -fPIE -pie -o $OUT $SRC
#define _GNU_SOURCE
#define CODE_PAGES 1700
#include "ranges.h"
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static double used(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

/* True if a page in the middle of the code is anonymous (Documentation/admin-guide/mm/pagemap.rst). This check costs
 * the same in both states; a read of smaps costs less if there are huge pages, which is a gain of a percent. */
static int is_lifted(void) {
    static int file = -1;
    uint64_t entry = 0;
    uintptr_t middle = (uintptr_t)scattered_code + 4096 * (CODE_PAGES / 2);
    if (file < 0) file = open("/proc/self/pagemap", O_RDONLY);
    if (pread(file, &entry, sizeof entry, middle / 4096 * sizeof entry) != sizeof entry) return 0;
    int is_present = entry >> 63 & 1, is_of_file = entry >> 61 & 1;
    return is_present && !is_of_file;
}

int main(int count, char **words) {
    if (count != 3) return 2;
    long plain = atol(words[1]), lifted = atol(words[2]), steps = plain;
    uint64_t sum = run_code();
    int is_ready = 0;
    for (unsigned long unit = 0;; unit++) {
        if (unit % 64 == 0) {
            struct pollfd input = {.fd = 0, .events = POLLIN};
            char line[16];
            steps = is_lifted() ? lifted : plain;
            if (poll(&input, 1, 0) > 0) {
                if (!fgets(line, sizeof line, stdin)) return run_code() == sum ? 0 : 1;
                printf(run_code() == sum ? "all right\n" : "wrong\n");
                fflush(stdout);
            }
            if (!is_ready && used() > 0.3) {
                is_ready = printf("ready\n") > 0;
                fflush(stdout);
            }
        }
        for (volatile long step = 0; step < steps; step++) {}
        syscall(SYS_getppid);
    }
}
