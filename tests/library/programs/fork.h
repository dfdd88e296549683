// Code for the tests of the fork guard: all writable memory is on pool pages, and then the pool is empty.
#ifndef FORK_H
#define FORK_H
#include "support.h"

// Placed after the bss of a static library, so that the library's bss is in the middle of the liftable range.
__attribute__((common)) char behind_the_library[4 << 20];

static inline void exhaust_pool(void)
{
    long left = free_pool_pages();
    if (left > 0) {
        void *rest = mmap(NULL, left * huge_page(), PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | MAP_POPULATE, -1, 0);
        CHECK(rest != MAP_FAILED);
        madvise(rest, left * huge_page(), MADV_DONTFORK);
    }
    CHECK(free_pool_pages() == 0);
}

// Moves data and bss to pool pages, then empties the pool.
static inline void lift_writable(void)
{
    memset(big_bss, 1, BSS_BYTES);
    pagelift_options options = PAGELIFT_OPTIONS_DEFAULT;
    options.pages = PAGELIFT_PAGES_HUGETLB;
    options.writable_pages = PAGELIFT_WRITABLE_HUGETLB;
    options.lift = PAGELIFT_LIFT_DATA | PAGELIFT_LIFT_BSS;
    pagelift_report report = PAGELIFT_REPORT_EMPTY;
    int result = pagelift_lift(&options, &report);
    if (result < 0 || report.hugetlb_bytes < 10 << 20) fail("%s", report.message);
    exhaust_pool();
}

// True if every byte of bss is `value`.
static inline int bss_is(unsigned char value)
{
    for (int index = 0; index < BSS_BYTES; index++)
        if (big_bss[index] != value) return 0;
    return 1;
}

static inline int data_is(uint64_t delta)
{
    for (uint64_t index = 0; index < WORDS; index++)
        if (big_data[index] != index * 5 + 2 + delta) return 0;
    return 1;
}

static inline void add_to_data(uint64_t delta)
{
    for (int index = 0; index < WORDS; index++) big_data[index] += delta;
}

static inline void expect_exit(pid_t child, int status)
{
    int found;
    CHECK(waitpid(child, &found, 0) == child);
    if (!WIFEXITED(found) || WEXITSTATUS(found) != status)
        fail("child: %s %d", WIFSIGNALED(found) ? "signal" : "status", WIFSIGNALED(found) ? WTERMSIG(found) : WEXITSTATUS(found));
}
#endif
