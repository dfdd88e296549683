// Threads that read memory whose translations the kernel removes. The argument is the cause:
//
//   merged     pages of equal contents that KSM may merge; the first thread writes them again
//   paged-out  a mapped file; the first thread asks the kernel to page out the parts that it has read
//   collapsed  memory with holes that khugepaged collapses; the first thread makes the holes again
//   in-pieces  the first thread frees every second page, so that memory can be compacted
//
// Runs until SIGTERM.
//
// build: gcc -g -O1 -pthread -o $OUT $SRC

#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef MADV_PAGEOUT
#define MADV_PAGEOUT 21
#endif

enum { THREADS = 3, PAGE = 4096, HUGE = 2 << 20, HOLES = 16 };
enum cause { MERGED, PAGED_OUT, COLLAPSED, IN_PIECES };
static const char *const names[] = {"merged", "paged-out", "collapsed", "in-pieces"};
static const size_t sizes[] = {4 << 20, 4 << 20, 16 << 20, 64 << 20};

static volatile sig_atomic_t ended;
static volatile char *memory;
static enum cause cause;
static size_t bytes;

static void end(int signal) {
    (void)signal;
    ended = 1;
}

static void read_all(void) {
    for (size_t at = 0; at < bytes; at += PAGE)
        (void)memory[at];
}

__attribute__((noinline)) static void page_out(void) {
    for (size_t at = 0; at < bytes; at += 16 * PAGE)
        madvise((void *)(memory + at), 16 * PAGE, MADV_PAGEOUT);
}

// The kernel copies the pages that KSM has merged.
static void write_all(void) {
    for (size_t at = 0; at < bytes; at += PAGE)
        memory[at] = 7;
}

// If the second page is resident, khugepaged has filled the holes.
static int has_holes(char *start) {
    unsigned char is_there = 0;
    mincore(start + PAGE, PAGE, &is_there);
    return !(is_there & 1);
}

__attribute__((noinline)) static void make_holes(void) {
    for (char *start = (char *)memory; start < (char *)memory + bytes; start += HUGE) {
        if (has_holes(start) && start[0])
            continue;
        madvise(start, HUGE, MADV_NOHUGEPAGE);
        madvise(start, HUGE, MADV_DONTNEED);
        for (size_t at = 0; at < HUGE; at += HOLES * PAGE)
            start[at] = 7;
        madvise(start, HUGE, MADV_HUGEPAGE);
    }
}

static void leave_every_second_page(void) {
    write_all();
    for (size_t at = 0; at < bytes; at += 2 * PAGE)
        madvise((void *)(memory + at), PAGE, MADV_DONTNEED);
}

static void *work(void *first) {
    static void (*const acts[])(void) = {write_all, page_out, make_holes, leave_every_second_page};
    while (!ended) {
        read_all();
        if (first)
            acts[cause]();
    }
    return NULL;
}

static void *map_anonymous(void) {
    char *start = mmap(NULL, bytes + HUGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (start == MAP_FAILED)
        return start;
    start += -(unsigned long)start % HUGE;
    if (madvise(start, bytes, MADV_NOHUGEPAGE) || (cause == MERGED && madvise(start, bytes, MADV_MERGEABLE)))
        return MAP_FAILED;
    return start;
}

static void *map(void) {
    if (cause != PAGED_OUT)
        return map_anonymous();
    char name[] = "/var/tmp/storms-XXXXXX";
    int file = mkstemp(name);
    if (file < 0 || unlink(name))
        return MAP_FAILED;
    for (size_t at = 0; at < bytes; at += PAGE) {
        char page[PAGE];
        memset(page, 1 + at / PAGE % 100, PAGE);
        if (write(file, page, PAGE) != PAGE)
            return MAP_FAILED;
    }
    // The kernel must write dirty pages before it can page them out.
    fsync(file);
    return mmap(NULL, bytes, PROT_READ, MAP_SHARED, file, 0);
}

int main(int count, char **words) {
    if (count != 2)
        return 2;
    while (strcmp(words[1], names[cause]))
        if (++cause > IN_PIECES)
            return 2;
    bytes = sizes[cause];
    memory = map();
    if (memory == MAP_FAILED)
        return 4;
    if (cause == MERGED)
        write_all();
    // khugepaged has the same nice value, so it gets CPU time beside these threads.
    if (cause == COLLAPSED && nice(19) < 0)
        return 5;
    signal(SIGTERM, end);
    signal(SIGALRM, end);
    alarm(120);
    pthread_t threads[THREADS];
    for (int index = 0; index < THREADS; index++)
        if (pthread_create(&threads[index], NULL, work, index ? NULL : words))
            return 3;
    puts("ready");
    fflush(stdout);
    for (int index = 0; index < THREADS; index++)
        pthread_join(threads[index], NULL);
    puts("all right");
    return 0;
}
