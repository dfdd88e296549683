// Its only thread waits in one call, and reports whether the call ended as it should and whether its code was right
// before and afterwards. It sleeps for the number of seconds in its argument; with `input`, it waits in epoll_wait for
// input.
//
// build: gcc -g -O1 -fPIE -pie -o $OUT $SRC
#define _GNU_SOURCE
#define CODE_PAGES 1700
#define RODATA_BYTES 7000000
#include "ranges.h"
#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <time.h>

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

/* An emulated machine may be held up for seconds by others on the same host. A wait that has begun anew ends later. */
static double most_late(void) { return getenv("PAGELIFT_TEST_EMULATED") ? 12 : 2.5; }

static const char *sleep_once(double due) {
    struct timespec t = {(time_t)due, (long)((due - (time_t)due) * 1e9)};
    double started = now();
    int error = clock_nanosleep(CLOCK_MONOTONIC, 0, &t, 0);
    double slept = now() - started;
    if (error) return strerror(error);
    return slept < due ? "woken early" : slept > due + most_late() ? "woken late" : "woken in time";
}

static const char *wait_for_input(void) {
    struct epoll_event event = {.events = EPOLLIN};
    int e = epoll_create1(0);
    if (e < 0 || epoll_ctl(e, EPOLL_CTL_ADD, 0, &event)) return strerror(errno);
    int ready = epoll_wait(e, &event, 1, -1);
    return ready < 0 ? strerror(errno) : ready == 1 ? "woken in time" : "woken early";
}

int main(int count, char **words) {
    const char *wait_for = count > 1 ? words[1] : "1";
    uint64_t sum = run_code();
    printf("ready\n");
    fflush(stdout);
    const char *end = strcmp(wait_for, "input") ? sleep_once(atof(wait_for)) : wait_for_input();
    check_ranges(0);
    printf("%s, %s\n", run_code() == sum ? "all right" : "wrong", end);
    return 0;
}
