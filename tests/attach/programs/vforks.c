// Has a child by vfork most of the time; at the end of its input it reports whether every child was right.
//
// build: gcc -g -O1 -Wall -Wno-unused-function -Wno-deprecated-declarations -D_DEFAULT_SOURCE -o $OUT $SRC
#define CODE_PAGES 1700
#include "ranges.h"
#include "ready.h"
#include <poll.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static struct timespec in_child = {2, 0};

int main(void) {
    long children = 0, wrong = 0;
    uint64_t wanted = run_code();
    struct pollfd input = {.fd = 0, .events = POLLIN};
    ready();
    do {
        int status;
        pid_t child = vfork();
        if (child == 0) {
            nanosleep(&in_child, 0);
            _exit(7);
        }
        wrong += waitpid(child, &status, 0) != child || WEXITSTATUS(status) != 7 || run_code() != wanted;
        children++;
    } while (poll(&input, 1, 100) == 0);
    printf("%s\n", wrong || !children ? "wrong" : "all right");
    return wrong != 0;
}
