// Memory that a driver maps by pages of its own, here the submission queue of io_uring, is readable after a call that advises
// it: the driver would not map the pages again.
//
// link: shared
// needs: thp
#include "support.h"
#include <linux/io_uring.h>
#include <sys/syscall.h>

// io_uring lets nobody choose the address: the kernel goes downwards, so that a mapping above moves the next one.
static void *map_aligned(int fd, size_t size, size_t huge)
{
    for (int tries = 0; tries < 8; tries++) {
        char *at = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, IORING_OFF_SQES);
        CHECK(at != MAP_FAILED);
        size_t off = (uintptr_t)at % huge;
        if (off == 0) return at;
        CHECK(munmap(at, size) == 0);
        CHECK(mmap(NULL, off, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0) != MAP_FAILED);
    }
    return NULL;
}

int main(void)
{
    struct io_uring_params parameters = {0};
    pagelift_report report = PAGELIFT_REPORT_EMPTY;
    int fd = syscall(SYS_io_uring_setup, 32768, &parameters);
    size_t size = (size_t)parameters.sq_entries * sizeof(struct io_uring_sqe), huge = huge_page();
    const volatile char *queue = fd < 0 || size < huge ? NULL : map_aligned(fd, size, huge);
    if (queue) {
        CHECK(pagelift_advise((void *)queue, size, &report) == PAGELIFT_NOTHING && report.considered_bytes >= huge);
        for (size_t at = 0; at < size; at += 64) CHECK(queue[at] == 0);
    } else {
        printf("no io_uring with a queue of a huge page\n");
    }
    puts("ok");
    return 0;
}
