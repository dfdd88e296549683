// A thread of a constructor waits in vfork, where no signal stops it, until main has begun: the program cannot be
// lifted, but starts.
//
// build: gcc -g -O1 -fPIC -shared -DLIBRARY -o $BUILD/libvforks.so $SRC -lpthread
// build: gcc -g -O1 -fPIE -pie -o $OUT $SRC -L$BUILD -Wl,--no-as-needed -lvforks -Wl,-rpath,$BUILD -lpthread
// pages: thp
// expect: unlifted sleeps uninterruptibly
#define _GNU_SOURCE
#ifdef LIBRARY
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

static int begun[2];
static pthread_t thread;
static atomic_int waits;

static void *wait_in_vfork(void *argument) {
    static volatile int status;
    pid_t child = vfork();
    if (child == 0) {
        char byte;
        atomic_store(&waits, 1);
        _exit(read(begun[0], &byte, 1) == 1 ? 5 : 6);
    }
    int ended = 0;
    waitpid(child, &ended, 0);
    status = WEXITSTATUS(ended);
    return (void *)(long)status;
}

__attribute__((constructor)) static void start(void) {
    if (pipe(begun) || pthread_create(&thread, NULL, wait_in_vfork, NULL)) _exit(9);
    while (!atomic_load(&waits)) {
    }
}

void end_vfork(void) {
    void *status;
    if (write(begun[1], "+", 1) != 1 || pthread_join(thread, &status)) _exit(8);
    printf("the child has ended with %ld\n", (long)status);
}
#else
#define CODE_PAGES 1100
#define DATA_BYTES 5000000
#include "ranges.h"
#include "ready.h"

void end_vfork(void);

int main(void) {
    end_vfork();
    ready();
    check_ranges(0);
    return 0;
}
#endif
