// Reads by io_uring into the heap are in progress while the process forks: one into a registered buffer, which the
// kernel knows by its pages, and one by a worker, which knows the address. The data of both must arrive in every round.
// A thread writes all the time. A child finds the heap unchanged, uses it and forks again.
//
//   reads_while_it_forks ROUNDS MEBIBYTES
//
// build: gcc -g -O1 -Wall -fno-builtin -o $OUT $SRC -lpthread
#define _GNU_SOURCE
#include <errno.h>
#include <linux/io_uring.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ENTRIES = 4, BUFFER = 8192, SMALL = 3000, SECONDS = 60 };

static char *submissions, *completions;
static struct io_uring_sqe *entries;
static struct io_uring_params params;
static int ring;
static size_t count;
static unsigned char **blocks;
static volatile uint64_t *written;
static volatile int ended;

static void fail(const char *what) {
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
    _exit(9);
}

static unsigned *field(char *of, unsigned offset) { return (unsigned *)(of + offset); }

static void set_up(void *buffer) {
    ring = (int)syscall(SYS_io_uring_setup, ENTRIES, &params);
    if (ring < 0) fail("io_uring_setup");
    size_t length = params.cq_off.cqes + params.cq_entries * sizeof(struct io_uring_cqe);
    int both = PROT_READ | PROT_WRITE;
    submissions = mmap(0, params.sq_off.array + ENTRIES * 4, both, MAP_SHARED, ring, IORING_OFF_SQ_RING);
    completions = mmap(0, length, both, MAP_SHARED, ring, IORING_OFF_CQ_RING);
    entries = mmap(0, ENTRIES * sizeof *entries, both, MAP_SHARED, ring, IORING_OFF_SQES);
    if (submissions == MAP_FAILED || completions == MAP_FAILED || entries == MAP_FAILED) fail("mmap");
    struct iovec vector = {buffer, BUFFER};
    if (syscall(SYS_io_uring_register, ring, IORING_REGISTER_BUFFERS, &vector, 1)) fail("io_uring_register");
}

static void begin_read(int operation, int flags, int from, void *into) {
    unsigned *tail = field(submissions, params.sq_off.tail), slot = *tail % ENTRIES;
    memset(&entries[slot], 0, sizeof entries[slot]);
    entries[slot].opcode = (unsigned char)operation;
    entries[slot].flags = (unsigned char)flags;
    entries[slot].fd = from;
    entries[slot].addr = (uintptr_t)into;
    entries[slot].len = BUFFER;
    field(submissions, params.sq_off.array)[slot] = slot;
    __atomic_store_n(tail, *tail + 1, __ATOMIC_RELEASE);
    if (syscall(SYS_io_uring_enter, ring, 1, 0, 0, 0, 0) != 1) fail("io_uring_enter");
}

static void await(unsigned completed) {
    unsigned *tail = field(completions, params.cq_off.tail);
    while (__atomic_load_n(tail, __ATOMIC_ACQUIRE) != completed)
        if (syscall(SYS_io_uring_enter, ring, 0, 1, IORING_ENTER_GETEVENTS, 0, 0) < 0 && errno != EINTR) fail("wait");
    for (unsigned i = completed - 2; i != completed; i++) {
        struct io_uring_cqe *event = (void *)(completions + params.cq_off.cqes);
        if (event[i % params.cq_entries].res != BUFFER) fail("a read was cut short");
    }
    *field(completions, params.cq_off.head) = completed;
}

static int is_whole(void) {
    for (size_t i = 0; i < count; i++)
        for (size_t at = 0; at < SMALL; at++)
            if (blocks[i][at] != (unsigned char)(i + 1)) return 0;
    return 1;
}

static void *write_on(void *none) {
    for (uint64_t round = 0; !ended; round++)
        for (size_t i = 0; i < 1 << 20; i += 512) {
            if (written[i] != round) fprintf(stderr, "a write is lost\n"), abort();
            written[i] = round + 1;
        }
    return none;
}

static int child(uint64_t least) {
    int status;
    alarm(SECONDS);
    if (!is_whole() || written[0] < least) return 3;
    for (size_t size = 16; size < 16 << 20; size *= 2) free(memset(malloc(size), 1, size));
    pid_t own = fork();
    if (own == 0) _exit(is_whole() ? 0 : 4);
    if (own < 0 || waitpid(own, &status, 0) != own || status) return 5;
    return 0;
}

int main(int words, char **word) {
    int by_pages[2], by_address[2], status, refused = 0, rounds = words > 1 ? atoi(word[1]) : 1;
    pthread_t writer;
    alarm(2 * SECONDS);
    count = (size_t)(words > 2 ? atoi(word[2]) : 8) * 340;
    blocks = malloc(count * sizeof *blocks);
    for (size_t i = 0; i < count; i++) memset(blocks[i] = malloc(SMALL), (int)(i + 1), SMALL);
    char *registered = calloc(1, BUFFER), *other = calloc(1, BUFFER), *sent = malloc(BUFFER);
    written = calloc(sizeof *written, 1 << 20);
    if (pipe(by_pages) || pipe(by_address)) fail("pipe");
    set_up(registered);
    pthread_create(&writer, NULL, write_on, NULL);
    for (int round = 1; round <= rounds; round++) {
        begin_read(IORING_OP_READ_FIXED, 0, by_pages[0], registered);
        begin_read(IORING_OP_READ, IOSQE_ASYNC, by_address[0], other);
        uint64_t least = written[0];
        pid_t process = fork();
        if (process == 0) _exit(child(least));
        if (process < 0 && errno != ENOMEM) fail("fork");
        refused += process < 0;
        memset(sent, round, BUFFER);
        if (write(by_pages[1], sent, BUFFER) != BUFFER || write(by_address[1], sent, BUFFER) != BUFFER) fail("write");
        await(2 * (unsigned)round);
        if (memcmp(registered, sent, BUFFER) || memcmp(other, sent, BUFFER)) {
            fprintf(stderr, "round %d: a read is lost\n", round);
            return 2;
        }
        if (process > 0 && (waitpid(process, &status, 0) != process || status)) {
            fprintf(stderr, "round %d: the child ended with status %#x\n", round, status);
            return 3;
        }
        if (!is_whole()) return 4;
    }
    ended = 1;
    pthread_join(writer, NULL);
    printf("%d of %d forks refused\n", refused, rounds);
    return 0;
}
