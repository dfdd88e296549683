/*
 * Pagelift: puts this process's code and data on huge pages, and takes them back.
 *
 * Link with libpagelift.so or libpagelift.a. The library needs no other library, starts no thread, keeps no file open
 * and never uses the program's allocator. Every function may be called from any thread at any time, also before main;
 * calls exclude each other. Memory that cannot be lifted stays unchanged, and the report names what was found, what was
 * needed, and the command that fixes it.
 *
 * Lift early: while other threads run, read-only memory is lifted and anonymous writable memory is collapsed onto huge
 * pages in place, but writable memory that would have to be replaced is refused.
 */
#ifndef PAGELIFT_H
#define PAGELIFT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Results of calls. A negative result other than PAGELIFT_FAULT means that nothing was changed. */
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
    /* No memory for what the library itself needs: nothing was changed. It grows with the number of mappings. */
    PAGELIFT_NO_MEMORY = -4,
    /* /proc is not mounted or not readable. */
    PAGELIFT_NOT_SEEN = -5,
    /* An unexpected change of the address space: a bug of the library, please report it. */
    PAGELIFT_FAULT = -6
};

/* Where huge pages come from. */
enum pagelift_pages {
    /* The first available source: huge folios of the file in the page cache, free pages of the hugetlb pool,
     * transparent huge pages. */
    PAGELIFT_PAGES_AUTO = 0,
    PAGELIFT_PAGES_HUGETLB = 1,
    PAGELIFT_PAGES_THP = 2,
    /* The page cache of the files themselves, for memory that is never written. */
    PAGELIFT_PAGES_FILE = 3
};

/* Where huge pages for writable memory come from. */
enum pagelift_writable_pages {
    /* Transparent huge pages: forks work as usual, without extra cost. */
    PAGELIFT_WRITABLE_THP = 0,
    /* The pool. The library copies this memory at each fork and gives the child ordinary pages, so that no child is
     * killed because the pool is empty. vfork, posix_spawn and system cost nothing. A raw clone and _Fork are not
     * guarded.
     *
     * The child sees its memory as of one moment, as after any fork. If other threads run and the pool is empty, this
     * needs the shared library, loaded with the program, and userfaultfd (Linux 5.19; CAP_SYS_PTRACE or sysctl
     * vm.unprivileged_userfaultfd=1), which delays the other threads' writes until the copy is done. Without them, a
     * page that another thread writes during the fork can be older in the child than the rest, by the duration of the
     * copy; the logger gets a note. */
    PAGELIFT_WRITABLE_HUGETLB = 1
};

/* Treatment of huge pages that hold read-only data beside code. */
enum pagelift_edges {
    /* They stay on ordinary pages; all protections stay unchanged. */
    PAGELIFT_EDGES_EXACT = 0,
    /* They are lifted; the read-only data in them becomes executable. */
    PAGELIFT_EDGES_MERGE_READ_ONLY = 1
};

/* Kinds of memory to lift: bits of pagelift_options.lift. */
#define PAGELIFT_LIFT_TEXT 1u
#define PAGELIFT_LIFT_RODATA 2u
#define PAGELIFT_LIFT_DATA 4u
#define PAGELIFT_LIFT_BSS 8u
#define PAGELIFT_LIFT_HEAP 16u
/* All kinds. */
#define PAGELIFT_LIFT_ALL 0u

/* Receives a line without its line feed. The text is valid during the call. The callback must not call the library. */
typedef void (*pagelift_logger)(const char *line, void *context);

/* Options of a lift. Initialize them with PAGELIFT_OPTIONS_DEFAULT or pagelift_options_init, then change fields. */
typedef struct pagelift_options {
    /* sizeof(pagelift_options): shows the library which fields the program knows. */
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
    /* Receives a summary line, and a line for each range; may be NULL. */
    pagelift_logger logger;
    void *context;
    /* Not 0: objects that are loaded later are lifted in the same way, before their constructors run. An object that is
     * linked without the usual start files is lifted at the next dlsym call. Only the shared library, loaded with the
     * program, can do this. A thread that has more seccomp filters by then lifts nothing. */
    int later_objects;
    /* NUMA nodes of the pages that a lift fills for this process alone: "local" (the node of the CPU on which the
     * caller runs), "interleave" (all nodes of its cpuset in turn), "node=1" (node 1 and no other); NULL for the
     * program's own memory policy and cpuset. If nodes are chosen, pages of the page cache on other nodes are not used.
     * If a node lacks pages, the report gives this as a reason; the program gets no signal. */
    const char *numa;
} pagelift_options;

#define PAGELIFT_OPTIONS_DEFAULT { sizeof(pagelift_options), 0, 0, 0, 0, 0, 0, NULL, NULL, NULL, 0, NULL }

/* The outcome of a call. Set size to sizeof(pagelift_report) before the call. */
typedef struct pagelift_report {
    size_t size;
    /* Bytes of all requested memory. */
    uint64_t considered_bytes;
    /* Bytes on huge pages as read back from the kernel: the sum, then from the pool and transparent. */
    uint64_t covered_bytes;
    uint64_t hugetlb_bytes;
    uint64_t thp_bytes;
    /* Bytes that are on huge pages from their first access on. */
    uint64_t advised_bytes;
    /* Bytes that the lift made resident. */
    uint64_t made_resident_bytes;
    /* Number of huge pages. */
    uint64_t huge_pages;
    /* Duration of the call. */
    uint64_t microseconds;
    /* Number of lifted ranges, and of ranges that were refused or not restored. */
    uint64_t lifted_ranges;
    uint64_t refused_ranges;
    /* A summary line. */
    char message[512];
    /* The part of covered_bytes that is on pages of the page cache. pagelift_query() does not count it, because this
     * memory was not replaced. */
    uint64_t file_bytes;
} pagelift_report;

#define PAGELIFT_REPORT_EMPTY { sizeof(pagelift_report), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, { 0 }, 0 }

/* Fills the options with their defaults; size is sizeof(pagelift_options). */
void pagelift_options_init(pagelift_options *options, size_t size);

/* Lifts memory that is not lifted yet. Both arguments may be NULL. Returns PAGELIFT_OK if everything that holds a whole
 * huge page is lifted, PAGELIFT_PARTIAL if only a part is. */
int pagelift_lift(const pagelift_options *options, pagelift_report *report);

/* Restores all replaced memory byte for byte: as mappings of the file if the file is unchanged, otherwise as ordinary
 * memory. Memory that was collapsed in place stays on huge pages. Writable memory is restored only while no other
 * thread runs. Returns PAGELIFT_PARTIAL if something could not be restored. The only option used is the logger. */
int pagelift_restore(const pagelift_options *options, pagelift_report *report);

/* Collapses the program's anonymous memory, of any allocator, onto transparent huge pages in place, wherever at least
 * half of a huge page is in use. Other threads continue. Call it when most of the memory is allocated. The report:
 * considered_bytes counts resident bytes of mappings that can hold huge pages, covered_bytes those on huge pages now.
 * Returns PAGELIFT_NOTHING if no more memory is on huge pages than before. Needs Linux 6.1. */
int pagelift_collapse_heap(pagelift_report *report);

/* Puts memory that the program has mapped itself on huge pages, in place: private anonymous memory, shared memory, and
 * mappings of files. For the rest the kernel uses huge pages from the first access on. Contents, addresses and protections
 * never change. Only whole huge pages of [address, address + length) count. Other threads continue, but must not unmap the
 * range, map over it or make it writable during the call. The call opens and closes a file that the program does not have
 * open: until it returns, other threads must not take record locks (fcntl(2)) on that file.
 *
 * Place the memory first: a block of a file or of shared memory can be huge only if its address and its offset agree
 * modulo the huge page. mmap chooses such an address for large mappings on most kernels. If the message names a
 * disagreement, map at an aligned address with MAP_FIXED in a larger reserved range. Files need a file system with large
 * folios (ext4 from Linux 6.16, xfs, erofs, tmpfs), and a mapping that is shared, or private and read-only. Blocks in
 * small pages of the page cache are read again, unless another process maps them; before Linux 6.18 blocks that this
 * process has accessed stay small. A mapping that may be written is collapsed only if the kernel can do that in place:
 * shared memory, and files from Linux 7.2 on.
 *
 * The report: considered_bytes counts the whole huge pages, covered_bytes those that are huge now (file_bytes for shared
 * memory and files, thp_bytes for private anonymous memory), advised_bytes blocks without any page yet; message is the reason
 * for the rest. PAGELIFT_OK if there is no rest, PAGELIFT_PARTIAL if something is huge or advised, PAGELIFT_NOTHING if nothing
 * is, PAGELIFT_INVALID if the range is empty or not all mapped. */
int pagelift_advise(void *address, size_t length, pagelift_report *report);

/* Reports the replaced memory that the kernel backs with huge pages now. */
int pagelift_query(pagelift_report *report);

/* The text of a result; never NULL. */
const char *pagelift_error_text(int result);

/* The library's version, "0.1.0" for example. */
const char *pagelift_version(void);

/* The entry point of the older technique, with the same meaning: puts the executable's code and data on huge pages. The
 * source is PAGELIFT_PAGES_AUTO, with PAGELIFT_WRITABLE_HUGETLB. Returns the number of huge pages on which they are, by
 * this call or an earlier lift; 0 on failure. The reason is passed to `logger` if it is not NULL. */
size_t remap_text_and_data_to_huge_pages(void (*logger)(const char *message));

#ifdef __cplusplus
}
#endif

#endif
