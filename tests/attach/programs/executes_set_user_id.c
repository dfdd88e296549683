// Shares its memory with another process, and executes the set-user-ID program of its first argument during a lift. The
// second argument says when:
//
//   call     instead of an injected call: the other process replaces that in the call page
//   between  by itself, when the call page shows that a lift is in progress
//   thread   a thread that is not the first executes it as soon as it is traced
//
// build: gcc -g -O1 -Wall -Wno-unused-function -static -no-pie -fno-pie -pthread -Wl,--section-start=.steered=0x10000000 -o $OUT $SRC
#define _GNU_SOURCE
#define CODE_PAGES 1700
#include "ranges.h"
#include "call_page.h"
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>

static char *victim[2], *none[1];
static pid_t parent;

// The smallest segment with code: the lifter puts its own code here, and the first thread waits here.
__asm__(".pushsection .steered, \"ax\", @progbits\n .rept 200\n nop\n .endr\n wait_for_ever: mov $34, %eax\n syscall\n"
        " jmp wait_for_ever\n .popsection\n");
void wait_for_ever(void) __attribute__((noreturn));

static int by_call;

static int keep_memory(void *unused) {
    (void)unused;
    uint64_t arguments[3] = {(uintptr_t)victim[0], (uintptr_t)victim, (uintptr_t)none};
    // Lives as long as its parent, which may have executed another program.
    while (getppid() == parent) {
        if (!by_call) usleep(1000);
        uintptr_t page = by_call ? find_call_page() : 0;
        for (int i = 0; page && i < 1000000; i++)
            if (replace_call(page, SYS_execve, arguments, 3) < 0) page = 0;
    }
    _exit(0);
}

static int is_traced(void) {
    char text[2048];
    int file = open("/proc/thread-self/status", O_RDONLY);
    ssize_t length = read(file, text, sizeof text - 1);
    close(file);
    text[length > 0 ? length : 0] = 0;
    char *tracer = strstr(text, "TracerPid:\t");
    return tracer && tracer[11] != '0';
}

static void *execute_when_traced(void *unused) {
    while (!is_traced()) {
    }
    execve(victim[0], victim, none);
    return unused;
}

static void *wait_in_thread(void *unused) {
    for (;;) pause();
    return unused;
}

static void start(void *(*what)(void *)) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, what, NULL)) exit(3);
}

int main(int count, char **words) {
    if (count < 3) return 2;
    victim[0] = words[1];
    parent = getpid();
    by_call = !strcmp(words[2], "call");
    int between = !strcmp(words[2], "between");
    if (run_code() == 0) return 2;
    char *stack = mmap(NULL, 1 << 16, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (clone(keep_memory, stack + (1 << 16), CLONE_VM | SIGCHLD, NULL) < 0) return 3;
    if (!by_call && !between) {
        for (int i = 0; i < 40; i++) start(wait_in_thread);
        start(execute_when_traced);
    }
    printf("ready\n");
    fflush(stdout);
    if (between) {
        // This thread has made the first call, and more calls will follow.
        while (!find_call_page()) sched_yield();
        execve(victim[0], victim, none);
    }
    wait_for_ever();
}
