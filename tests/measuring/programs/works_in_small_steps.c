// Works in steps of about 20 microseconds, each with one system call, and counts them in the file that its first
// argument names, until SIGTERM. SIGUSR1 makes each step longer by the percentage of its second argument; SIGUSR2 ends
// this.
//
// build: gcc -g -O1 -fPIE -pie -o $OUT $SRC
#define _GNU_SOURCE
#define CODE_PAGES 1700
#include "ranges.h"
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static volatile sig_atomic_t slow, told_to_end;

static void change(int signal) { slow = signal == SIGUSR1; }
static void end(int signal) {
    (void)signal;
    told_to_end = 1;
}

int main(int count, char **words) {
    if (count < 2) return 2;
    int file = open(words[1], O_RDWR | O_CREAT | O_TRUNC, 0644);
    if (file < 0 || ftruncate(file, 64)) return 3;
    volatile unsigned long *steps = mmap(NULL, 64, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (steps == MAP_FAILED) return 3;
    double percent = count > 2 ? atof(words[2]) : 0;
    unsigned long usual = 20000, longer = usual + (unsigned long)(usual * percent / 100);
    signal(SIGUSR1, change);
    signal(SIGUSR2, change);
    signal(SIGTERM, end);
    uint64_t sum = run_code();
    printf("ready\n");
    fflush(stdout);
    unsigned long state = 1;
    while (!told_to_end) {
        for (unsigned long i = slow ? longer : usual; i; i--) __asm__ volatile("imul $31, %0" : "+r"(state));
        ++*steps;
        getppid();
    }
    check_ranges(0);
    printf("%s\n", run_code() == sum ? "all right" : "wrong");
    return 0;
}
