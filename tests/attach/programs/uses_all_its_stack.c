// Keeps a pattern in its main thread's whole stack, down to the lowest possible byte, and counts the frames whose
// pattern has changed. Its argument chooses the stack:
//
//   deeper     The main thread's own, further down each time, to its limit, and back.
//   bottom     The same; the whole stack has been used before the program is ready.
//   ended      None: the main thread has ended, and another one goes deeper on its own stack.
//   block      The main thread's own: after a line of input, one frame takes all but the last 512 mapped bytes.
//   elsewhere  Memory of the program's own, directly above other data: the main thread waits with 256 bytes left.
//
// It ends with its input, and prints the result.
//
// build: gcc -g -O1 -Wall -Wno-unused-function -pthread -Wl,-z,now -o $OUT $SRC
#define _GNU_SOURCE
#define CODE_PAGES 1700
#define RODATA_BYTES 5000000
#include "ranges.h"
#include "ready.h"
#include <alloca.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

enum { FRAME = 4096, WORDS = FRAME / 8 };
static long wrong, deepest, rounds;
static uint64_t wanted;

static int input_has_ended(int milliseconds) {
    struct pollfd input = {.fd = 0, .events = POLLIN};
    return poll(&input, 1, milliseconds) != 0;
}

/* The deepest frame reaches to the last page and waits a little; meanwhile all frames keep their patterns. */
__attribute__((noinline)) static int descend(long frames) {
    volatile uint64_t kept[WORDS];
    uint64_t seed = (uint64_t)frames * ODD;
    for (int i = 0; i < WORDS; i++) kept[i] = seed + (uint64_t)i;
    int ended = frames > 0 ? descend(frames - 1) : input_has_ended(2);
    long changed = 0;
    for (int i = 0; i < WORDS; i++) changed += kept[i] != seed + (uint64_t)i;
    wrong += changed != 0;
    if (frames > deepest) deepest = frames;
    return ended;
}

static long frames_of_stack(void) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_STACK, &limit) || limit.rlim_cur == RLIM_INFINITY || limit.rlim_cur > 8 << 20) return 1900;
    /* Arguments, the environment, and frames' own words need the rest. */
    return (long)(limit.rlim_cur / (FRAME + 128)) - 48;
}

static void *go_deeper(void *unused) {
    long most = frames_of_stack();
    for (long frames = 40;; frames = frames + 29 < most ? frames + 29 : 40) {
        rounds++;
        if (descend(frames)) break;
        wrong += run_code() != wanted;
    }
    return unused;
}

static int finish(void) {
    check_ranges(0);
    printf("%ld of the frames had changed after %ld rounds, of which the deepest had %ld frames\n", wrong, rounds, deepest);
    fflush(stdout);
    _exit(wrong != 0);
}

static uintptr_t lowest_of_stack(void) {
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512];
    uintptr_t lowest = 0;
    while (maps && fgets(line, sizeof line, maps))
        if (strstr(line, "[stack]")) lowest = strtoul(line, 0, 16);
    if (maps) fclose(maps);
    return lowest;
}

/* The bytes below the block remain for the kernel's and the C library's own calls, which use less. */
__attribute__((noinline)) static void take_block(uintptr_t lowest) {
    char here;
    size_t length = (uintptr_t)&here - lowest - 1024;
    volatile unsigned char *block = alloca(length);
    for (size_t i = 0; i < length; i++) block[i] = 0x5a;
    write(1, "all but the end of the stack is used\n", 37);
    input_has_ended(-1);
    for (size_t i = 0; i < length; i++) wrong += block[i] != 0x5a;
    rounds++;
}

static void *of_another_thread(void *main_thread) {
    pthread_join(*(pthread_t *)main_thread, 0);
    ready();
    go_deeper(0);
    finish();
    return 0;
}

/* Live data, and above it a stack. */
static struct {
    volatile uint64_t below[1024];
    char stack[64 << 10];
} own __attribute__((aligned(4096)));
static ucontext_t main_context, own_context;

/* Waits for input with as few bytes left as this says: a system call needs none of the stack. */
__attribute__((noinline)) static long wait_with_little_left(struct pollfd *input, uintptr_t stack) {
    long result;
#if defined(__x86_64__)
    __asm__ volatile("mov %%rsp, %%rbx\n mov %[stack], %%rsp\n syscall\n mov %%rbx, %%rsp\n"
                     : "=a"(result)
                     : "a"(SYS_poll), "D"(input), "S"(1L), "d"(3L), [stack] "r"(stack)
                     : "rbx", "rcx", "r11", "memory");
#elif defined(__aarch64__)
    static struct timespec limit;
    limit = (struct timespec){.tv_nsec = 3000000};
    register long x8 __asm__("x8") = SYS_ppoll;
    register long x0 __asm__("x0") = (long)input;
    register long x1 __asm__("x1") = 1;
    register long x2 __asm__("x2") = (long)&limit;
    register long x3 __asm__("x3") = 0;
    register long x4 __asm__("x4") = 0;
    __asm__ volatile("mov x19, sp\n mov sp, %[stack]\n svc #0\n mov sp, x19\n"
                     : "+r"(x0)
                     : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), [stack] "r"(stack)
                     : "x19", "memory");
    result = x0;
#endif
    return result;
}

static void on_own_stack(void) {
    struct pollfd input = {.fd = 0, .events = POLLIN};
    do {
        rounds++;
        for (int i = 0; i < 1024; i++) wrong += own.below[i] != (uint64_t)i * ODD;
        wrong += run_code() != wanted;
    } while (wait_with_little_left(&input, (uintptr_t)own.stack + 256) == 0);
}

int main(int count, char **words) {
    const char *which = count > 1 ? words[1] : "deeper";
    pthread_t main_thread = pthread_self(), other;
    wanted = run_code();
    if (!strcmp(which, "ended")) {
        pthread_attr_t attributes;
        pthread_attr_init(&attributes);
        pthread_attr_setstacksize(&attributes, 16 << 20);
        if (pthread_create(&other, &attributes, of_another_thread, &main_thread)) return 2;
        pthread_exit(0);
    }
    if (!strcmp(which, "elsewhere")) {
        for (int i = 0; i < 1024; i++) own.below[i] = (uint64_t)i * ODD;
        getcontext(&own_context);
        own_context.uc_stack.ss_sp = own.stack;
        own_context.uc_stack.ss_size = sizeof own.stack;
        own_context.uc_link = &main_context;
        makecontext(&own_context, on_own_stack, 0);
        ready();
        swapcontext(&main_context, &own_context);
        return finish();
    }
    if (!strcmp(which, "block")) {
        char byte;
        uintptr_t lowest = lowest_of_stack();
        ready();
        while (read(0, &byte, 1) == 1 && byte != '\n') {
        }
        take_block(lowest);
        return finish();
    }
    if (!strcmp(which, "bottom")) descend(frames_of_stack());
    ready();
    go_deeper(0);
    return finish();
}
