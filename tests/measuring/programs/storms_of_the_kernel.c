// Threads that read memory whose translations the kernel takes away. The argument says why: `merged` (pages of equal contents
// that KSM may merge; the first thread writes them again), `paged-out` (a mapped file of which the first thread has the kernel
// page out what it has read). Runs until SIGTERM.
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

enum { THREADS = 3, BYTES = 4 << 20, PAGE = 4096 };

static volatile sig_atomic_t ended;
static volatile char *memory;
static int merged;

static void end(int signal) {
    (void)signal;
    ended = 1;
}

static void read_all(void) {
    for (size_t at = 0; at < BYTES; at += PAGE)
        (void)memory[at];
}

__attribute__((noinline)) static void page_out(void) {
    for (size_t at = 0; at < BYTES; at += 16 * PAGE)
        madvise((void *)(memory + at), 16 * PAGE, MADV_PAGEOUT);
}

static void *work(void *first) {
    while (!ended) {
        read_all();
        if (!first)
            continue;
        if (merged)
            // Pages that KSM has merged are copied.
            for (size_t at = 0; at < BYTES; at += PAGE)
                memory[at] = 7;
        else
            page_out();
    }
    return NULL;
}

static void *map(void) {
    if (merged) {
        void *start = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (start != MAP_FAILED && (madvise(start, BYTES, MADV_NOHUGEPAGE) || madvise(start, BYTES, MADV_MERGEABLE)))
            return MAP_FAILED;
        return start;
    }
    char name[] = "/var/tmp/storms-XXXXXX";
    int file = mkstemp(name);
    if (file < 0 || unlink(name))
        return MAP_FAILED;
    for (int at = 0; at < BYTES; at += PAGE) {
        char page[PAGE];
        memset(page, 1 + at / PAGE % 100, PAGE);
        if (write(file, page, PAGE) != PAGE)
            return MAP_FAILED;
    }
    // Dirty pages are written first, and only then paged out.
    fsync(file);
    return mmap(NULL, BYTES, PROT_READ, MAP_SHARED, file, 0);
}

int main(int count, char **words) {
    if (count != 2)
        return 2;
    merged = strcmp(words[1], "merged") == 0;
    memory = map();
    if (memory == MAP_FAILED)
        return 4;
    if (merged)
        memset((void *)memory, 7, BYTES);
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
