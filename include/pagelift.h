/*
 * Pagelift: puts this process's code and data on huge pages, and takes them back.
 *
 * Link with libpagelift.so or libpagelift.a. The library needs no other library, starts no thread, keeps no file open
 * and never uses the program's allocator. Every function may be called from any thread at any time, before main too;
 * calls exclude each other. Whatever fails, memory is as it was, and the report says what was found, what was needed
 * and the command that fixes it.
 *
 * With other threads running, read-only memory is lifted all the same; writable memory that would have to be replaced
 * is refused, and anonymous writable memory is turned into huge pages where it lies. So lift early.
 */
#ifndef PAGELIFT_H
#define PAGELIFT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Results. Every function returns one; negative ones mean that nothing has been changed. */
enum pagelift_result {
    PAGELIFT_OK = 0,
    /* Done in part: the report says what is left and why. */
    PAGELIFT_PARTIAL = 1,
    /* An option or an argument has no valid value. */
    PAGELIFT_INVALID = -1,
    /* Nothing could be lifted. */
    PAGELIFT_NOTHING = -2,
    /* Called from the library's own callback. */
    PAGELIFT_BUSY = -3,
    /* No memory for the library's own state. */
    PAGELIFT_NO_MEMORY = -4,
    /* /proc is not mounted or not readable. */
    PAGELIFT_NOT_SEEN = -5,
    /* The address space differs where it should not: a fault of the library, please report it. */
    PAGELIFT_FAULT = -6
};

/* Where huge pages come from. */
enum pagelift_pages {
    /* The page cache where it holds a file in huge folios, else the hugetlb pool where pages are free, else transparent
     * huge pages. */
    PAGELIFT_PAGES_AUTO = 0,
    PAGELIFT_PAGES_HUGETLB = 1,
    PAGELIFT_PAGES_THP = 2,
    /* The page cache of the files themselves, for what is never written. */
    PAGELIFT_PAGES_FILE = 3
};

/* Where huge pages for writable memory come from. */
enum pagelift_writable_pages {
    /* Transparent: forks work as ever, at no cost. */
    PAGELIFT_WRITABLE_THP = 0,
    /* The pool. The library then copies this memory at each fork, so that no child is ever killed for want of a pool
     * page: the child gets ordinary pages. vfork, posix_spawn and system cost nothing. A raw clone and _Fork are not
     * guarded.
     *
     * The child sees its memory as of one moment, as after any fork. While other threads run and the pool is empty,
     * that takes the shared library, loaded with the program, and userfaultfd (Linux 5.19; CAP_SYS_PTRACE or sysctl
     * vm.unprivileged_userfaultfd=1), by which the others' writes wait for the copy. Else a page that another thread
     * writes to during the fork can be older in the child than the rest, by as long as the copying took; the logger is
     * told so. */
    PAGELIFT_WRITABLE_HUGETLB = 1
};

/* What to do with huge pages that hold read-only data and code side by side. */
enum pagelift_edges {
    /* Leave them on ordinary pages; every protection stays as it was. */
    PAGELIFT_EDGES_EXACT = 0,
    /* Lift them; the read-only data in them becomes executable. */
    PAGELIFT_EDGES_MERGE_READ_ONLY = 1
};

/* What to lift: bits of pagelift_options.lift. */
#define PAGELIFT_LIFT_TEXT 1u
#define PAGELIFT_LIFT_RODATA 2u
#define PAGELIFT_LIFT_DATA 4u
#define PAGELIFT_LIFT_BSS 8u
#define PAGELIFT_LIFT_HEAP 16u
/* All of them. */
#define PAGELIFT_LIFT_ALL 0u

/* A line for the caller, without its end. The text lives during the call. The callback must not call the library. */
typedef void (*pagelift_logger)(const char *line, void *context);

/* What to lift and from where. Fill it with PAGELIFT_OPTIONS_DEFAULT or pagelift_options_init, then change fields. */
typedef struct pagelift_options {
    /* sizeof(pagelift_options): tells the library which fields the program knows. */
    size_t size;
    /* enum pagelift_pages. */
    int pages;
    /* enum pagelift_writable_pages. */
    int writable_pages;
    /* enum pagelift_edges. */
    int edges;
    /* Bits PAGELIFT_LIFT_...; 0 for all. */
    unsigned lift;
    /* Size of huge pages in bytes; 0 for the machine's usual one. */
    uint64_t page_size;
    /* Most bytes that may become resident; 0 for no bound. */
    uint64_t max_memory;
    /* "exe", "all", or patterns such as "libjvm*,libz.so.1"; NULL for the executable and every object that holds at
     * least one whole huge page. */
    const char *objects;
    /* Gets a line about the whole and one about each range; may be NULL. */
    pagelift_logger logger;
    void *context;
    /* Not 0: objects that are loaded later are lifted in the same way, before their constructors run; those that are
     * linked without the usual start files, when a symbol is first looked up after that. Only the shared library, loaded
     * with the program, can do that. A thread that is under more seccomp filters by then lifts nothing. */
    int later_objects;
    /* NUMA nodes of the pages that a lift fills for this process alone: "local" (the node of the CPU on which the caller
     * runs), "interleave" (all nodes of its cpuset in turn), "node=1" (node 1 and no other); NULL for the program's own
     * memory policy and cpuset. What lies elsewhere in the page cache is then not used. Pages that a node lacks are a
     * reason in the report, never a signal. */
    const char *numa;
} pagelift_options;

#define PAGELIFT_OPTIONS_DEFAULT { sizeof(pagelift_options), 0, 0, 0, 0, 0, 0, NULL, NULL, NULL, 0, NULL }

/* What became of a call. Set size to sizeof(pagelift_report) before. */
typedef struct pagelift_report {
    size_t size;
    /* Bytes of all memory asked for. */
    uint64_t considered_bytes;
    /* Bytes that the kernel says are on huge pages, all together and by source. */
    uint64_t covered_bytes;
    uint64_t hugetlb_bytes;
    uint64_t thp_bytes;
    /* Bytes that become huge when they are first touched. */
    uint64_t advised_bytes;
    /* Bytes that became resident by the lift. */
    uint64_t made_resident_bytes;
    /* Number of huge pages. */
    uint64_t huge_pages;
    /* How long it took. */
    uint64_t microseconds;
    /* Ranges that are lifted, and ranges that are not. */
    uint64_t lifted_ranges;
    uint64_t refused_ranges;
    /* One line about the whole. */
    char message[512];
    /* Of covered_bytes, what pagelift_lift() has put on the file's own pages in the page cache. It is not replaced, so
     * pagelift_query() does not count it. */
    uint64_t file_bytes;
} pagelift_report;

#define PAGELIFT_REPORT_EMPTY { sizeof(pagelift_report), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, { 0 }, 0 }

/* Fills the options with their defaults; size is sizeof(pagelift_options). */
void pagelift_options_init(pagelift_options *options, size_t size);

/* Lifts what is not lifted yet. Both may be NULL. PAGELIFT_OK where everything that holds a whole huge page is lifted,
 * PAGELIFT_PARTIAL where something is. */
int pagelift_lift(const pagelift_options *options, pagelift_report *report);

/* Gives everything that was replaced back: mappings of the file where the file is unchanged, ordinary memory elsewhere,
 * byte for byte. Memory that was collapsed where it lies stays. Writable memory is given back only while no other thread
 * runs; PAGELIFT_PARTIAL where something was not. Of the options only the logger counts. */
int pagelift_restore(const pagelift_options *options, pagelift_report *report);

/* Collapses anonymous memory that the program has allocated, by whatever allocator, onto transparent huge pages where it
 * lies, as far as at least half of each is in use; other threads go on. To be called when most of it is there. In the
 * report considered_bytes is what was resident where there was something to collapse, covered_bytes what of it is on huge
 * pages now. PAGELIFT_NOTHING where nothing more is on huge pages than before. Needs Linux 6.1. */
int pagelift_collapse_heap(pagelift_report *report);

/* Puts memory that the program has mapped itself on huge pages, in place: private anonymous memory, shared memory, and
 * mappings of files. For the rest the kernel uses huge pages from the first access on. Contents, addresses and protections
 * never change. Only whole huge pages of [address, address + length) count. Other threads continue, but must not unmap the
 * range, map over it or make it writable during the call. The call opens a file that the program has not open, and closes it:
 * until it returns, other threads must not take record locks (fcntl(2)) on that file.
 *
 * Place the memory first: a block of a file or of shared memory can be huge only if its address and its offset agree modulo
 * the huge page. mmap chooses such an address for large mappings on most kernels. If the message names a disagreement, map at
 * an aligned address with MAP_FIXED in a larger reserved range. Files need a file system with large folios (ext4 from Linux
 * 6.16, xfs, tmpfs), and a mapping that is shared, or private and read-only. Blocks in small pages of the page cache are read
 * again, unless another process maps them; before Linux 6.18 blocks that this process has accessed stay small. A mapping that
 * may be written is collapsed only if the kernel can do that in place: shared memory, and files from Linux 7.2 on.
 *
 * The report: considered_bytes counts the whole huge pages, covered_bytes those that are huge now (file_bytes for shared
 * memory and files, thp_bytes for private anonymous memory), advised_bytes blocks without any page yet; message is the reason
 * for the rest. PAGELIFT_OK if there is no rest, PAGELIFT_PARTIAL if something is huge or advised, PAGELIFT_NOTHING if nothing
 * is, PAGELIFT_INVALID if the range is empty or not all mapped. */
int pagelift_advise(void *address, size_t length, pagelift_report *report);

/* What the kernel backs with huge pages now, of what was replaced. */
int pagelift_query(pagelift_report *report);

/* The text of a result; never NULL. */
const char *pagelift_error_text(int result);

/* The library's version, "0.1.0" for example. */
const char *pagelift_version(void);

/* The entry point of the older technique, with the same meaning: puts the executable's code and data on huge pages, of
 * its own file where the page cache has it in huge folios, else of the pool where it has enough. Returns the number of
 * huge pages that they are on, by this call or an earlier lift, 0 on failure. The logger, which may be NULL, is told
 * what could not be done. */
size_t remap_text_and_data_to_huge_pages(void (*logger)(const char *message));

#ifdef __cplusplus
}
#endif

#endif
