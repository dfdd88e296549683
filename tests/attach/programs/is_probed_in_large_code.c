// Two threads call a function in the middle of large code in a loop that ends when a line is read.
//
// build: gcc -g -O1 -Wall -pthread -o $OUT $SRC
#define CODE_PAGES 2560
#include "ranges.h"
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

/* The function on this page is called and probed. */
enum { PROBED = 1280 };

static int is_right(uintptr_t number) {
    uintptr_t (*function)(uintptr_t) = (uintptr_t(*)(uintptr_t))(void *)(scattered_code + 4096 * PROBED);
    return function(number) == 3 * number + PROBED;
}

static void *calls(void *unused) {
    for (uintptr_t number = 0;; number++) {
        if (!is_right(number)) abort();
        if (number % 4096 == 0) usleep(200);
    }
    return unused;
}

int main(void) {
    uint64_t first = run_code();
    pthread_t other;
    pthread_create(&other, NULL, calls, NULL);
    printf("ready\n");
    fflush(stdout);
    struct pollfd input = {.fd = 0, .events = POLLIN};
    while (poll(&input, 1, 1) == 0)
        if (!is_right(1)) abort();
    printf(run_code() == first ? "right\n" : "wrong\n");
    return 0;
}
