// Advises, locks, protects and writes its own code and constants in every way: one page, one huge page, or several huge
// pages at a time. Prints the kernel's results, and whether the contents equal the file's.
//
// build: gcc -g -O1 -fno-pie -no-pie -o $OUT $SRC
#define _GNU_SOURCE
#define CODE_PAGES 2000
#define RODATA_BYTES 8000000
#include "ranges.h"
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* 2 MiB on all tested machines; on others the blocks are just larger or smaller than a huge page. */
#define HUGE (2ul << 20)

struct part {
    const char *name;
    char *start;
    size_t bytes;
    int protection;
};

static sigjmp_buf fault;

static void on_fault(int signal) {
    siglongjmp(fault, signal);
}

static uint64_t sum_of(const struct part *part) {
    uint64_t sum = 0;
    for (size_t i = 0; i < part->bytes; i += 8)
        sum = sum * 31 + *(volatile uint64_t *)(part->start + i);
    return sum;
}

static uint64_t expected;

static void report(const struct part *part, const char *what, int result) {
    const char *answer = result ? strerrorname_np(errno) : "done";
    printf("%s: %s: %s, %s\n", part->name, what, answer, sum_of(part) == expected ? "the same" : "other data");
}

#define ADVICE(name) {#name, name}
static const struct {
    const char *name;
    int value;
} advices[] = {
    ADVICE(MADV_NORMAL),     ADVICE(MADV_RANDOM),        ADVICE(MADV_SEQUENTIAL),     ADVICE(MADV_WILLNEED),
    ADVICE(MADV_DONTNEED),   ADVICE(MADV_FREE),          ADVICE(MADV_REMOVE),         ADVICE(MADV_DONTFORK),
    ADVICE(MADV_DOFORK),     ADVICE(MADV_MERGEABLE),     ADVICE(MADV_UNMERGEABLE),    ADVICE(MADV_WIPEONFORK),
    ADVICE(MADV_KEEPONFORK), ADVICE(MADV_DONTDUMP),      ADVICE(MADV_DODUMP),         ADVICE(MADV_COLD),
    {"MADV_POPULATE_READ", 22}, {"MADV_POPULATE_WRITE", 23}, {"MADV_DONTNEED_LOCKED", 24}, ADVICE(MADV_HUGEPAGE),
    ADVICE(MADV_NOHUGEPAGE), ADVICE(MADV_DONTNEED),      ADVICE(MADV_HUGEPAGE),       {"of no meaning", 12345},
};

static void advise(const struct part *part) {
    for (size_t i = 0; i < sizeof advices / sizeof *advices; i++)
        report(part, advices[i].name, madvise(part->start, part->bytes, advices[i].value));
}

static void lock(const struct part *part) {
    report(part, "mlock", mlock(part->start, part->bytes));
    report(part, "MADV_DONTNEED of locked memory", madvise(part->start, part->bytes, MADV_DONTNEED));
    report(part, "munlock", munlock(part->start, part->bytes));
    report(part, "msync", msync(part->start, part->bytes, MS_SYNC));
}

static void protect(const struct part *part) {
    int result = mprotect(part->start, part->bytes, PROT_NONE);
    int signal = sigsetjmp(fault, 1);
    if (signal == 0)
        (void)*(volatile char *)(part->start + part->bytes / 2);
    printf("%s: a read of PROT_NONE: %s\n", part->name, signal ? sigabbrev_np(signal) : "no signal");
    /* Another protection follows PROT_NONE, so that the sum can be read. */
    result |= mprotect(part->start, part->bytes, PROT_READ);
    report(part, "PROT_NONE, PROT_READ", result);
    result = mprotect(part->start, part->bytes, PROT_READ | PROT_WRITE);
    report(part, "PROT_WRITE", result);
    volatile char *middle = part->start + part->bytes / 2;
    char before = *middle;
    *middle = (char)~before;
    report(part, "written to", 0);
    *middle = before;
    report(part, "written back", 0);
    *middle = (char)~before;
    report(part, "its own protection", mprotect(part->start, part->bytes, part->protection));
    report(part, "what was written, discarded", madvise(part->start, part->bytes, MADV_DONTNEED));
}

int main(void) {
    char line[16], *code = scattered_code, *constants = (char *)large_rodata;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char *in_code = (char *)(((uintptr_t)code + HUGE - 1) & -HUGE);
    char *in_constants = (char *)(((uintptr_t)constants + HUGE - 1) & -HUGE);
    const struct part parts[] = {
        {"a page of code", in_code + HUGE / 2, page, PROT_READ | PROT_EXEC},
        {"a huge page of code", in_code, HUGE, PROT_READ | PROT_EXEC},
        {"code", in_code, HUGE + HUGE / 2, PROT_READ | PROT_EXEC},
        {"a page of constants", in_constants + HUGE / 2, page, PROT_READ},
        {"a huge page of constants", in_constants, HUGE, PROT_READ},
        {"constants", in_constants, 2 * HUGE + HUGE / 2, PROT_READ},
    };
    for (int signal = SIGSEGV; signal; signal = signal == SIGSEGV ? SIGBUS : 0)
        sigaction(signal, &(struct sigaction){.sa_handler = on_fault}, NULL);
    puts("ready");
    fflush(stdout);
    if (!fgets(line, sizeof line, stdin))
        return 1;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        expected = sum_of(&parts[i]);
        advise(&parts[i]);
        lock(&parts[i]);
        protect(&parts[i]);
    }
    check_ranges(0);
    return 0;
}
