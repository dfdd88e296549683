// One thread waits most of the time, as after vfork, for the end of a process that shares its memory. That process ends
// once another thread has seen that the first one is traced: a lifter that stopped all other threads until the first
// one stops would wait for ever. The process is a child of this program's parent, so that the thread has no child. At
// the end of its input the program reports whether all processes ended as they should.
//
// build: gcc -g -O1 -Wall -Wno-unused-function -D_GNU_SOURCE -pthread -o $OUT $SRC
#define CODE_PAGES 1700
#include "ranges.h"
#include "ready.h"
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static int ends[2];
static atomic_int stop, sleeper, wrong;
static atomic_long children;

/* Volatile, since the C library declares that `clone` changes no data of the program. */
static volatile int was_read;
static char stack[1 << 16] __attribute__((aligned(16)));

static int reads(void *unused) {
    char byte;
    (void)unused;
    was_read = (int)syscall(SYS_read, ends[0], &byte, 1);
    syscall(SYS_exit, 0);
    return 0;
}

static void *sleeps(void *unused) {
    sleeper = (int)syscall(SYS_gettid);
    while (!stop) {
        was_read = 0;
        if (clone(reads, stack + sizeof stack, CLONE_VM | CLONE_VFORK | CLONE_PARENT | SIGCHLD, 0) < 0 || was_read != 1)
            wrong++;
        children++;
    }
    return unused;
}

static int is_traced(void) {
    char path[64], line[128];
    int tracer = 0;
    snprintf(path, sizeof path, "/proc/self/task/%d/status", sleeper);
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "TracerPid: %d", &tracer) == 1)
            break;
    if (file)
        fclose(file);
    return tracer != 0;
}

static void *wakes(void *unused) {
    struct timespec a_while = {0, 10 * 1000 * 1000};
    for (long woken = 0; !stop; nanosleep(&a_while, 0))
        // One byte for each child, which is counted when it has ended.
        if (children == woken && is_traced() && write(ends[1], "", 1) == 1)
            woken++;
    return unused;
}

int main(void) {
    pthread_t threads[2];
    uint64_t wanted = run_code();
    if (pipe(ends) || pthread_create(&threads[0], 0, sleeps, 0) || pthread_create(&threads[1], 0, wakes, 0))
        return 2;
    ready();
    while (getchar() != EOF) {
    }
    stop = 1;
    // For the last child, and for one that may have just been started.
    if (write(ends[1], "\0", 2) != 2)
        return 2;
    pthread_join(threads[0], 0);
    pthread_join(threads[1], 0);
    printf("%s\n", wrong || run_code() != wanted ? "wrong" : "all right");
    return wrong != 0;
}
