// Holds shared memory of the kind of its first argument (anonymous, memfd, file, system-v), full of a pattern, with
// three children that share it. After a line of input each process reports whether its contents are the same.
//
// The second argument is the variant:
//   full      all blocks are full
//   holes     block 1 has one page, block 2 one page less than 7/8, block 3 just 7/8, the others are full
//   writes    two threads write to it all the time, and check what they have written
//   restless  a thread empties and truncates the last quarter and fills it again all the time; others write as above
//   askew     its addresses are one page ahead of its offsets
//   advised   with MADV_NOHUGEPAGE
//   off       with PR_SET_THP_DISABLE
//   watched   a userfaultfd waits for its missing pages
//   later     the second half is empty, and filled after a first line of input
//   sparse    a terabyte, of which only the last page holds anything
//   stuck     a thread holds the lock of the file for ever, in a write from memory that never arrives
//
// build: gcc -g -O1 -Wall -fPIE -pie -pthread -o $OUT $SRC
#define _GNU_SOURCE
#include "ready.h"
#include <fcntl.h>
#include <linux/falloc.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/shm.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BLOCKS = 16, CHILDREN = 3, WRITERS = 2 };
static size_t huge, page, length;
static uint64_t *memory;
static int file = -1;
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
    if (!is("holes") || block == 0 || block > 3) return all;
    return block == 1 ? 1 : block == 2 ? all / 8 * 7 - 1 : all / 8 * 7;
}

static void fill(size_t block) {
    size_t first = block * huge / sizeof *memory;
    for (size_t word = first; word < first + filled(block) * words_of_page(); word++) memory[word] = pattern(word);
}

/* The first words of each page belong to the writers. */
static int is_the_same(size_t blocks) {
    for (size_t block = 0; block < blocks; block++) {
        size_t first = block * huge / sizeof *memory;
        for (size_t word = first; word < first + filled(block) * words_of_page(); word++)
            if (word % words_of_page() >= WRITERS && memory[word] != pattern(word)) return 0;
    }
    return 1;
}

static void *write_always(void *argument) {
    size_t own = (size_t)argument, pages = length / page;
    if (is("restless")) pages = pages / 4 * 3;
    for (uint64_t round = 1; !ending; round++) {
        for (size_t number = 0; number < pages; number++) {
            _Atomic uint64_t *word = (_Atomic uint64_t *)&memory[number * words_of_page() + own];
            if (round > 1 && *word != round - 1) wrong++;
            *word = round;
        }
    }
    return NULL;
}

static void *be_restless(void *unused) {
    size_t from = length / 4 * 3;
    while (!ending) {
        need(!fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, from, length / 8), "fallocate");
        need(!ftruncate(file, length / 8 * 7) && !ftruncate(file, length), "ftruncate");
        for (size_t at = from; at < length; at += sizeof *memory)
            if (memory[at / sizeof *memory] != 0) wrong++;
        need(!madvise((char *)memory + from, length - from, MADV_REMOVE), "MADV_REMOVE");
        for (size_t block = BLOCKS / 4 * 3; block < BLOCKS; block++) fill(block);
        need(!madvise((char *)memory + from, length - from, MADV_REMOVE), "MADV_REMOVE");
    }
    for (size_t block = BLOCKS / 4 * 3; block < BLOCKS; block++) fill(block);
    return unused;
}

static void *hold_the_lock(void *unused) {
    char *nobody = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    int watcher = syscall(SYS_userfaultfd, O_CLOEXEC);
    struct uffdio_api api = {.api = UFFD_API};
    struct uffdio_register all = {.range = {(uintptr_t)nobody, page}, .mode = UFFDIO_REGISTER_MODE_MISSING};
    need(nobody != MAP_FAILED && watcher >= 0, "userfaultfd");
    need(!ioctl(watcher, UFFDIO_API, &api) && !ioctl(watcher, UFFDIO_REGISTER, &all), "UFFDIO");
    need(pwrite(file, nobody, page, length) == 0, "pwrite");
    return unused;
}

/* An address that agrees with the offsets, whatever the kernel would choose. */
static void *place(size_t ahead) {
    char *room = mmap(NULL, length + 2 * huge, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    need(room != MAP_FAILED, "mmap");
    return (void *)((((uintptr_t)room + huge - 1) & ~(huge - 1)) + ahead);
}

static void map(const char *kind) {
    void *at = place(is("askew") ? page : 0);
    int flags = MAP_SHARED | MAP_FIXED;
    if (strcmp(kind, "memfd") == 0) {
        file = memfd_create("held\x1b[31m", MFD_CLOEXEC);
    } else if (strcmp(kind, "file") == 0) {
        const char *folder = getenv("HELD_IN");
        char name[4096];
        snprintf(name, sizeof name, "%s/pagelift-held-XXXXXX", folder ? folder : "/dev/shm");
        file = mkostemp(name, O_CLOEXEC);
        need(!unlink(name), "unlink");
    } else if (strcmp(kind, "system-v") == 0) {
        int segment = shmget(IPC_PRIVATE, length, IPC_CREAT | 0600);
        memory = shmat(segment, at, SHM_REMAP);
        need(memory == at && !shmctl(segment, IPC_RMID, NULL), "shmat");
        return;
    } else {
        flags |= MAP_ANONYMOUS;
    }
    if (file >= 0) need(!ftruncate(file, length), "ftruncate");
    memory = mmap(at, length, PROT_READ | PROT_WRITE, flags, file, 0);
    need(memory == at, "mmap");
}

static void watch(void) {
    int watcher = syscall(SYS_userfaultfd, O_CLOEXEC);
    struct uffdio_api api = {.api = UFFD_API};
    struct uffdio_register all = {.range = {(uintptr_t)memory, length}, .mode = UFFDIO_REGISTER_MODE_MISSING};
    need(watcher >= 0 && !ioctl(watcher, UFFDIO_API, &api) && !ioctl(watcher, UFFDIO_REGISTER, &all), "UFFDIO");
}

static int answer(size_t blocks) {
    int same = is_the_same(blocks) && !wrong;
    dprintf(1, same ? "the same\n" : "differs\n");
    return !same;
}

int main(int count, char **words) {
    FILE *size = fopen("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size", "r");
    need(count == 3 && size && fscanf(size, "%zu", &huge) == 1, "a kind, and how");
    how = words[2];
    page = sysconf(_SC_PAGESIZE);
    length = is("sparse") ? (size_t)1 << 40 : BLOCKS * huge;
    if (is("off")) need(!prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0), "PR_SET_THP_DISABLE");
    map(words[1]);
    if (is("advised")) need(!madvise(memory, length, MADV_NOHUGEPAGE), "MADV_NOHUGEPAGE");
    size_t blocks = is("sparse") ? 0 : BLOCKS;
    for (size_t block = 0; block < blocks / (is("later") ? 2 : 1); block++) fill(block);
    if (is("sparse")) memory[length / sizeof *memory - 1] = 1;
    int begin[2], shared[2];
    char byte;
    need(!pipe(begin) && !pipe(shared), "pipe");
    for (int child = 0; child < CHILDREN; child++) {
        if (fork()) continue;
        close(begin[1]);
        volatile uint64_t sum = is_the_same(is("later") ? 0 : blocks);
        need(write(shared[1], "x", 1) == 1 && sum <= 1, "write");
        (void)!read(begin[0], &byte, 1);
        _exit(answer(is("restless") ? blocks / 4 * 3 : blocks));
    }
    close(begin[0]);
    for (int child = 0; child < CHILDREN; child++) need(read(shared[0], &byte, 1) == 1, "read");
    pthread_t threads[WRITERS + 1];
    size_t running = 0;
    if (is("writes") || is("restless"))
        for (; running < WRITERS; running++) pthread_create(&threads[running], NULL, write_always, (void *)running);
    if (is("restless")) pthread_create(&threads[running++], NULL, be_restless, NULL);
    if (is("watched")) watch();
    pthread_t stuck;
    if (is("stuck")) pthread_create(&stuck, NULL, hold_the_lock, NULL);
    ready();
    if (is("later")) {
        for (size_t block = blocks / 2; block < blocks; block++) fill(block);
        ready();
    }
    ending = 1;
    while (running > 0) pthread_join(threads[--running], NULL);
    close(begin[1]);
    int failed = answer(blocks), status;
    while (wait(&status) > 0) failed |= status != 0;
    // Ends a thread that is stuck, too.
    _exit(failed);
}
