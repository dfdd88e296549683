// A worker of io_uring is a thread of the process that never leaves the kernel: it must not be stopped with the other
// threads. The program has disabled transparent huge pages for itself (PR_SET_THP_DISABLE), and checks this afterwards.
// Only its main thread runs its code, and hardly ever waits in a call.
//
// build: gcc -g -O1 -fPIE -pie -o $OUT $SRC
#define _GNU_SOURCE
#define CODE_PAGES 1700
#define RODATA_BYTES 7000000
#include "ranges.h"
#include <fcntl.h>
#include <linux/io_uring.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

static char *map_ring(int ring, size_t size, off_t what) {
    char *at = mmap(0, size, PROT_READ | PROT_WRITE, MAP_SHARED, ring, what);
    return at == MAP_FAILED ? 0 : at;
}

/* Makes a worker read one byte from a pipe; the result is at `completed` once the read has ended. */
static int begin_read(int from, char *into, volatile struct io_uring_cqe **completed, volatile unsigned **tail) {
    struct io_uring_params params = {0};
    int ring = (int)syscall(SYS_io_uring_setup, 4, &params);
    if (ring < 0) return perror("io_uring_setup"), -1;
    size_t completions = params.cq_off.cqes + params.cq_entries * sizeof(struct io_uring_cqe);
    char *submissions = map_ring(ring, params.sq_off.array + params.sq_entries * 4, IORING_OFF_SQ_RING);
    char *completion = map_ring(ring, completions, IORING_OFF_CQ_RING);
    struct io_uring_sqe *entry = (void *)map_ring(ring, params.sq_entries * sizeof *entry, IORING_OFF_SQES);
    if (!submissions || !completion || !entry) return perror("mmap"), -1;
    memset(entry, 0, sizeof *entry);
    entry->opcode = IORING_OP_READ;
    entry->flags = IOSQE_ASYNC;
    entry->fd = from;
    entry->addr = (unsigned long)into;
    entry->len = 1;
    *(unsigned *)(submissions + params.sq_off.array) = 0;
    __atomic_store_n((unsigned *)(submissions + params.sq_off.tail), 1, __ATOMIC_RELEASE);
    *completed = (void *)(completion + params.cq_off.cqes);
    *tail = (void *)(completion + params.cq_off.tail);
    return syscall(SYS_io_uring_enter, ring, 1, 0, 0, 0, 0) == 1 ? 0 : -1;
}

int main(void) {
    volatile struct io_uring_cqe *completed;
    volatile unsigned *tail;
    int ends[2];
    char byte = 0, line = 0;
    if (pipe(ends) || prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0) || begin_read(ends[0], &byte, &completed, &tail)) return 2;
    fcntl(0, F_SETFL, O_NONBLOCK);
    printf("ready\n");
    fflush(stdout);
    uint64_t sum = run_code();
    while (read(0, &line, 1) != 1)
        for (int i = 0; i < 200; i++)
            if (run_code() != sum) return 4;
    check_ranges(0);
    if (write(ends[1], "x", 1) != 1) return 3;
    while (__atomic_load_n(tail, __ATOMIC_ACQUIRE) == 0) usleep(100);
    printf("read %c by %d, transparent huge pages %s\n", byte, completed->res,
           prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0) ? "off" : "on");
    return 0;
}
