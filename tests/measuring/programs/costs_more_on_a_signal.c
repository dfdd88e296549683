// A program that works without end, and counts its units of work in the file of its first argument. A unit takes the
// nanoseconds of CPU time of the second argument, after SIGUSR1 those of the third, and after SIGUSR2 those of the
// second again. The program prints "ready" when it has begun.
//
// build: gcc -g -O1 -o $OUT $SRC
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static volatile sig_atomic_t is_switched;

static void change(int number) { is_switched = number == SIGUSR1; }

static double used(void) {
    struct timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

int main(int count, char **words) {
    if (count != 4) return 2;
    int file = open(words[1], O_WRONLY | O_CREAT, 0600);
    if (file < 0) return 3;
    double plain = atof(words[2]), switched = atof(words[3]), until = used();
    signal(SIGUSR1, change);
    signal(SIGUSR2, change);
    for (long unit = 1;; unit++) {
        // If a unit took longer than its price, the next unit takes less by the difference.
        until += is_switched ? switched : plain;
        while (used() < until)
            for (volatile int step = 0; step < 1000; step++) {}
        char text[32];
        int length = snprintf(text, sizeof text, "%020ld\n", unit);
        if (pwrite(file, text, (size_t)length, 0) != length) return 4;
        if (unit == 1) {
            puts("ready");
            fflush(stdout);
        }
    }
}
