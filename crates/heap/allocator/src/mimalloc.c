/* mimalloc, from the sources of the crate libmimalloc-sys, in one piece (as its own static.c has it), with a description
   of its records for those who look from outside, and with two changes for programs that fork while they have threads;
   mimalloc itself does not know of forks:
   - its locks are taken by functions of ours (locks.rs), so that none is held at a fork;
   - mi_bitmap_clear_once_set does not wait for ever for a thread that the child does not have;
   and with one for programs that have more rights than the user who has started them:
   - it takes no settings from their environment;
   and with one for programs that define functions of the C library:
   - it calls none by a name that they can define (own_calls.h);
   and with two for all:
   - free memory of arenas is returned to the kernel by amount and by time (give_back.c);
   - the C library's names are in the same piece, so that the usual cases are inlined (fast_paths.c). */
#define _GNU_SOURCE
#include <stddef.h>
#include <stdint.h>

#include "own_calls.h"

#include "mimalloc.h"
#include "mimalloc/internal.h"

#include "alloc.c"
#include "alloc-aligned.c"
#include "alloc-posix.c"
#define _mi_arenas_page_alloc arenas_page_alloc_of_mimalloc
#define _mi_arenas_page_free arenas_page_free_of_mimalloc
#define _mi_arenas_collect arenas_collect_of_mimalloc
void arenas_page_free_of_mimalloc(mi_page_t *page, mi_theap_t *theap);
#include "arena.c"
#undef _mi_arenas_page_alloc
#undef _mi_arenas_page_free
#undef _mi_arenas_collect
#include "arena-meta.c"
#define mi_bitmap_clear_once_set mi_bitmap_clear_once_set_unless_forked
#include "bitmap.c"
#undef mi_bitmap_clear_once_set
#include "heap.c"
#include "init.c"
static bool prim_getenv_unless_privileged(const char *name, char *result, size_t size) {
    return getauxval(AT_SECURE) == 0 && _mi_prim_getenv(name, result, size);
}
#define _mi_prim_getenv prim_getenv_unless_privileged
#include "libc.c"
#undef _mi_prim_getenv
#include "options.c"
#include "os.c"
#define _mi_malloc_generic malloc_generic_of_mimalloc
#include "page.c"
#undef _mi_malloc_generic
#include "page-map.c"
#include "random.c"
#include "stats.c"
/* For each thread: a seed without a system call, since no setting in use needs secret numbers, and no statistics, which
   nobody reads. */
#define _mi_random_init _mi_random_init_weak
#define _mi_stats_merge_into(to, from) ((void)(to), (void)(from))
#include "theap.c"
#undef _mi_random_init
#undef _mi_stats_merge_into
#include "threadlocal.c"
#include "prim/prim.c"

#include "give_back.c"
#include "grow.c"
#include "fast_paths.c"

/* A process that was forked waits so many milliseconds for another thread. */
enum { TIME_LIMIT_MS = 100 };

/* The process that mimalloc was set up in. */
pid_t mimalloc_process;

/* Reads the number of NUMA nodes, which would be read at the first malloc of the second thread: a sandbox may forbid that. */
void mimalloc_count_nodes(void) { (void)_mi_os_numa_node_count(); }

static long milliseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Clears the bit of a page that this thread has claimed. It is set, or another thread has cleared it, is about to find
   that the page is claimed, and sets it again: a matter of nanoseconds. Where the process was forked in that time there is
   nobody to set it, and it can be taken for cleared. */
void mi_bitmap_clear_once_set(mi_bitmap_t *bitmap, size_t index) {
    long since = 0;
    while (!mi_bitmap_clear(bitmap, index)) {
        if (since == 0)
            since = milliseconds();
        else if (milliseconds() - since > TIME_LIMIT_MS && getpid() != mimalloc_process)
            return;
        sched_yield();
    }
}

/* The size of an arena that has room for a block of so many bytes. One that takes more slices than a chunk has begins at a
   chunk in which all slices are free, as they are not in the first: it holds the records of the arena. */
size_t mimalloc_arena_for(size_t bytes) {
    size_t slices = mi_slice_count_of_size(mi_page_info_size() + _mi_os_good_alloc_size(bytes));
    size_t records = mi_arena_info_slices_needed(MI_BCHUNK_BITS, NULL);
    size_t chunks = slices + records <= MI_BCHUNK_BITS ? 1 : 1 + _mi_divide_up(slices, MI_BCHUNK_BITS);
    return chunks * MI_ARENA_MIN_SIZE;
}

/* Positions of the records of small blocks: `SmallRecords` of crates/heap/abi/src/records.rs, field by field. */
typedef struct {
    const void *arenas, *arena_count;
    uint64_t most_arenas, slice;
    uint64_t arena, arena_slices, arena_pages, arena_page_bits;
    uint64_t bitmap_chunk_count, bitmap_chunks, chunk_bits;
    uint64_t page, page_used, page_capacity, page_reserved, page_block, page_start;
} small_records_t;

const small_records_t mimalloc_small_records = {
    .arenas = &subproc_main.arenas,
    .arena_count = &subproc_main.arena_count,
    .most_arenas = MI_MAX_ARENAS,
    .slice = MI_ARENA_SLICE_SIZE,
    .arena = sizeof(mi_arena_t),
    .arena_slices = offsetof(mi_arena_t, slice_count),
    .arena_pages = offsetof(mi_arena_t, pages_meta),
    .arena_page_bits = offsetof(mi_arena_t, pages_main.pages),
    .bitmap_chunk_count = offsetof(mi_bitmap_t, chunk_count),
    .bitmap_chunks = offsetof(mi_bitmap_t, chunks),
    .chunk_bits = MI_BCHUNK_BITS,
    .page = sizeof(mi_page_t),
    .page_used = offsetof(mi_page_t, used),
    .page_capacity = offsetof(mi_page_t, capacity),
    .page_reserved = offsetof(mi_page_t, reserved),
    .page_block = offsetof(mi_page_t, block_size),
    .page_start = offsetof(mi_page_t, page_start),
};

/* The numbers in arena_sizes.rs. The records of the largest arena, the bitmaps and one record for each slice, fit into the
   first chunk of slices of the bitmaps. */
#define MOST_ARENA ((size_t)31 << 29)
#define MOST_SLICES (MOST_ARENA / MI_ARENA_SLICE_SIZE)
#define MOST_BITMAPS ((MI_ARENA_BIN_COUNT + 5) * (offsetof(mi_bbitmap_t, chunks) + MOST_SLICES / 8))
_Static_assert(MI_MAX_ARENAS == 160, "PLACES");
_Static_assert(MI_ARENA_MIN_SIZE == (size_t)32 << 20, "LEAST_ARENA");
_Static_assert(sizeof(mi_arena_t) + MOST_BITMAPS + MOST_SLICES * sizeof(mi_page_t) + 2 * MI_ARENA_SLICE_SIZE <
                   MI_ARENA_MIN_SIZE,
               "MOST_ARENA");

#define HAS_BYTES(type, field, bytes) _Static_assert(sizeof(((type *)0)->field) == (bytes), #field)
_Static_assert(sizeof(small_records_t) == 17 * 8, "as long as in Rust");
HAS_BYTES(mi_subproc_t, arena_count, 8);
HAS_BYTES(mi_subproc_t, arenas[0], 8);
HAS_BYTES(mi_arena_t, slice_count, 8);
HAS_BYTES(mi_arena_t, pages_meta, 8);
HAS_BYTES(mi_arena_t, pages_main.pages, 8);
HAS_BYTES(mi_bitmap_t, chunk_count, 8);
HAS_BYTES(mi_bchunk_t, bfields[0], 8);
HAS_BYTES(mi_page_t, used, 2);
HAS_BYTES(mi_page_t, capacity, 2);
HAS_BYTES(mi_page_t, reserved, 2);
HAS_BYTES(mi_page_t, block_size, 8);
HAS_BYTES(mi_page_t, page_start, 8);
_Static_assert(MI_PAGE_META_IS_SEPARATED && !MI_PAGE_META_ALIGNED_FREE_SMALL, "records of pages lie in tables of arenas");
