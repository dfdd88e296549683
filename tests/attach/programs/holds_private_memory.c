// Holds private anonymous memory of the kind of its first argument (anon, jit), full of a pattern. Memory of kind jit
// has a function in each page. After a line of input it reports whether its contents are the same, and calls each
// function.
//
// The second argument is the variant:
//   full       all blocks are full
//   holes      block 1 has one page, block 2 one page less than 7/8, block 3 just 7/8, the others are full
//   zeros      block 1 was only read but for one page, the others are full
//   writes     two threads write to it all the time, and check what they have written
//   restless   a thread discards the last quarter and fills it again all the time; others write as above
//   forked     a child has the same pages, and ends with it
//   locked     by mlock
//   merges     with MADV_MERGEABLE
//   watched    a userfaultfd waits for its missing pages
//   guarded    with a guard page (MADV_GUARD_INSTALL) in block 1; exits with 4 if the kernel has none
//   advised    with MADV_NOHUGEPAGE
//   off        with PR_SET_THP_DISABLE
//   pieces     each second page is not mapped
//   later      the second half is empty, and filled after a first line of input
//   sparse     a terabyte, of which only the last page holds anything
//
// build: gcc -g -O1 -Wall -fPIE -pie -pthread -o $OUT $SRC
#define _GNU_SOURCE
#include "ready.h"
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef MADV_GUARD_INSTALL
#define MADV_GUARD_INSTALL 102
#endif

enum { BLOCKS = 16, WRITERS = 2, CODE = 2, FIRST = CODE + WRITERS };
static size_t huge, page, length;
static uint64_t *memory;
static int is_code;
static const char *how;
static atomic_int ending, wrong;

static void need(int is_met, const char *what) {
    if (is_met) return;
    perror(what);
    exit(3);
}

static int is(const char *word) { return strcmp(how, word) == 0; }

static uint64_t pattern(size_t word) { return (word + 1) * 0x9e3779b97f4a7c15u; }

static size_t words_of_page(void) { return page / sizeof *memory; }

/* Pages of a block that hold something. */
static size_t filled(size_t block) {
    size_t all = huge / page;
    if (is("zeros")) return block == 1 ? 1 : all;
    if (!is("holes") || block == 0 || block > 3) return all;
    return block == 1 ? 1 : block == 2 ? all / 8 * 7 - 1 : all / 8 * 7;
}

static int is_mapped(size_t number) {
    return is("guarded") ? number != huge / page + 1 : !is("pieces") || number % 2 == 0;
}

/* A function that returns its number. */
static void write_function(void *at, uint32_t number) {
#if defined __x86_64__
    unsigned char code[] = {0xb8, number, number >> 8, number >> 16, number >> 24, 0xc3};
#else
    uint32_t code[] = {0x52800000 | (number & 0xffff) << 5, 0x72a00000 | (number >> 16) << 5, 0xd65f03c0};
#endif
    memcpy(at, code, sizeof code);
    __builtin___clear_cache((char *)at, (char *)at + sizeof code);
}

static void fill(size_t block) {
    for (size_t number = block * (huge / page), end = number + filled(block); number < end; number++) {
        if (!is_mapped(number)) continue;
        size_t first = number * words_of_page();
        for (size_t word = first; word < first + words_of_page(); word++) memory[word] = pattern(word);
        if (is_code) write_function(&memory[first], number);
    }
}

/* The first words of each page are code, or belong to the writers. */
static int is_the_same(size_t blocks) {
    for (size_t block = 0; block < blocks; block++) {
        for (size_t number = block * (huge / page), end = number + filled(block); number < end; number++) {
            if (!is_mapped(number)) continue;
            size_t first = number * words_of_page();
            for (size_t word = first + FIRST; word < first + words_of_page(); word++)
                if (memory[word] != pattern(word)) return 0;
            if (is_code && ((uint32_t(*)(void))&memory[first])() != number) return 0;
        }
    }
    return 1;
}

static void *write_always(void *argument) {
    size_t own = (size_t)argument, pages = length / page;
    if (is("restless")) pages = pages / 4 * 3;
    for (uint64_t round = 1; !ending; round++) {
        for (size_t number = 0; number < pages; number++) {
            _Atomic uint64_t *word = (_Atomic uint64_t *)&memory[number * words_of_page() + CODE + own];
            if (round > 1 && *word != round - 1) wrong++;
            *word = round;
        }
    }
    return NULL;
}

static void *be_restless(void *unused) {
    size_t from = length / 4 * 3;
    while (!ending) {
        need(!madvise((char *)memory + from, length - from, MADV_DONTNEED), "MADV_DONTNEED");
        for (size_t at = from; at < length; at += page)
            if (memory[at / sizeof *memory] != 0) wrong++;
        for (size_t block = BLOCKS / 4 * 3; block < BLOCKS; block++) fill(block);
    }
    return unused;
}

/* Whole blocks between pages that cannot be merged with them. */
static void map(void) {
    char *room = mmap(NULL, length + 3 * huge, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    need(room != MAP_FAILED, "mmap");
    memory = (void *)(((uintptr_t)room + 2 * huge - 1) & ~(huge - 1));
    int protection = PROT_READ | PROT_WRITE | (is_code ? PROT_EXEC : 0);
    need(!mprotect(memory, length, protection), "mprotect");
    for (size_t number = 0; is("pieces") && number < length / page; number++)
        if (!is_mapped(number)) need(!mprotect((char *)memory + number * page, page, PROT_NONE), "mprotect");
}

static void watch(void) {
    int watcher = syscall(SYS_userfaultfd, O_CLOEXEC);
    struct uffdio_api api = {.api = UFFD_API};
    struct uffdio_register all = {.range = {(uintptr_t)memory, length}, .mode = UFFDIO_REGISTER_MODE_MISSING};
    need(watcher >= 0 && !ioctl(watcher, UFFDIO_API, &api) && !ioctl(watcher, UFFDIO_REGISTER, &all), "UFFDIO");
}

int main(int count, char **words) {
    FILE *size = fopen("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size", "r");
    need(count == 3 && size && fscanf(size, "%zu", &huge) == 1, "a kind, and how");
    is_code = strcmp(words[1], "jit") == 0;
    how = words[2];
    page = sysconf(_SC_PAGESIZE);
    length = is("sparse") ? (size_t)1 << 40 : BLOCKS * huge;
    if (is("off")) need(!prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0), "PR_SET_THP_DISABLE");
    map();
    size_t blocks = is("sparse") ? 0 : BLOCKS;
    if (is("advised")) need(!madvise(memory, length, MADV_NOHUGEPAGE), "MADV_NOHUGEPAGE");
    for (size_t block = 0; block < blocks / (is("later") ? 2 : 1); block++) fill(block);
    for (size_t at = huge + page; is("zeros") && at < 2 * huge; at += page)
        need(*(volatile uint64_t *)((char *)memory + at) == 0, "zeros");
    if (is("sparse")) memory[length / sizeof *memory - 1] = 1;
    if (is("locked")) need(!mlock(memory, length), "mlock");
    if (is("merges")) need(!madvise(memory, length, MADV_MERGEABLE), "MADV_MERGEABLE");
    if (is("guarded") && madvise((char *)memory + huge + page, page, MADV_GUARD_INSTALL)) return 4;
    int begin[2];
    char byte;
    need(!pipe(begin), "pipe");
    if (is("forked") && !fork()) {
        close(begin[1]);
        (void)!read(begin[0], &byte, 1);
        _exit(!is_the_same(blocks));
    }
    pthread_t threads[WRITERS + 1];
    size_t running = 0;
    if (is("writes") || is("restless"))
        for (; running < WRITERS; running++) pthread_create(&threads[running], NULL, write_always, (void *)running);
    if (is("restless")) pthread_create(&threads[running++], NULL, be_restless, NULL);
    if (is("watched")) watch();
    ready();
    if (is("later")) {
        for (size_t block = blocks / 2; block < blocks; block++) fill(block);
        ready();
    }
    ending = 1;
    while (running > 0) pthread_join(threads[--running], NULL);
    close(begin[1]);
    int status = 0, failed = wrong || !is_the_same(blocks);
    while (wait(&status) > 0) failed |= status != 0;
    dprintf(1, failed ? "differs\n" : "the same\n");
    return failed;
}
