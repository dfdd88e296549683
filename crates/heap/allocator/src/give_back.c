/* Returns free memory of arenas to the kernel. mimalloc would do so only when a page is freed, abandoned, or after 10,000
   slow calls, and then for all free memory at once. Here:
   - By amount, when a page is freed: a program that never calls again keeps no more than `most_kept`.
   - By time, whenever a thread calls malloc's slow path or a large block is allocated or freed: memory that was free
     throughout an interval is not needed. A program that uses its free memory again within the interval keeps it.
   - Whole huge pages first. Parts of a huge page are returned only if they are more than `most_kept_in_parts`, the emptiest
     huge pages first. mimalloc takes low addresses first, so memory is returned from high addresses down.
   Included by mimalloc.c. */

/* Bytes of free memory that are kept: the larger of this and a share of the memory in use. */
#define LEAST_KEPT ((size_t)16 << 20)
enum { KEPT_SHARE = 8, KEPT_SHARE_IN_PARTS = 4 };
/* More is kept if memory is needed again within this time, up to this amount, and no more than was in use at once lately. It
   is halved after a while. */
enum { IN_VAIN_MS = 1000, EXTRA_LASTS_MS = 10000 };
#define MOST_EXTRA ((size_t)512 << 20)
/* A slow call in so many reads the clock. */
enum { SLOW_CALLS = 16 };
/* Passes that one free makes for others. */
enum { MOST_PASSES = 8 };
/* Bytes that are returned while the lock is held once. */
#define MOST_AT_ONCE ((size_t)8 << 20)

/* Counts of bytes. They may be slightly wrong if threads change them at the same time; a pass over the arenas corrects
   `dirty`. */
static struct {
    _Atomic(size_t) in_use;
    /* Free memory that was in use since it was last returned. Below 0 for a moment if a thread takes memory that another has
       freed and not added yet: `dirty_now`. */
    _Atomic(size_t) dirty;
    /* Least value of `dirty` in this interval. */
    _Atomic(size_t) least_dirty;
    /* Value of `dirty` from which the next pass is made. */
    _Atomic(size_t) next_pass;
    /* Kept beside the usual amount. */
    _Atomic(size_t) extra;
    /* Returned by amount and not needed again so far. */
    _Atomic(size_t) returned;
    /* Greatest values of `in_use` in this period of EXTRA_LASTS_MS and in the one before. */
    _Atomic(size_t) peak, peak_before;
    _Atomic(mi_msecs_t) returned_at, extra_since, peak_since, interval_since;
    /* The thread that makes a pass; 0 if there is none. */
    _Atomic(uintptr_t) passing_thread;
} free_memory;

/* Held while slices are claimed, so that no fork finds them claimed; guards `holes`, too. A pass releases it between runs of
   slices: a fork, and a thread that needs memory, wait for one run at most. */
static pthread_mutex_t claiming;
/* The thread that holds it; 0 if there is none. */
static _Atomic(uintptr_t) claiming_thread;

/* Number of threads that have found no memory. As long as there is one, no pass claims slices. */
static _Atomic(size_t) searching_threads;

static void begin_claim(void) {
    pthread_mutex_lock(&claiming);
    mi_atomic_store_relaxed(&claiming_thread, _mi_thread_id());
}

static void end_claim(void) {
    mi_atomic_store_relaxed(&claiming_thread, 0);
    pthread_mutex_unlock(&claiming);
}

/* Waits until no pass has claimed slices, and keeps passes from claiming any. */
void mimalloc_begin_search(void) {
    mi_atomic_add_relaxed(&searching_threads, (size_t)1);
    begin_claim();
    end_claim();
}

/* In the child of a fork: ends the pass of a thread that does not exist there, and releases that thread's lock. The wait of
   a fork for the lock is bounded (locks.rs). A run of slices that was claimed at the fork stays claimed in the child, since
   the child cannot know whether it was released. Each of `holes` is whole, and one that is already mapped is not mapped
   again. */
void mimalloc_forget_other_threads(void) {
    uintptr_t own = _mi_thread_id();
    if (mi_atomic_load_relaxed(&free_memory.passing_thread) != own)
        mi_atomic_store_relaxed(&free_memory.passing_thread, 0);
    if (mi_atomic_load_relaxed(&claiming_thread) != own) {
        mi_atomic_store_relaxed(&claiming_thread, 0);
        claiming = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    }
    mi_atomic_store_relaxed(&searching_threads, 0);
}

/* Time of this thread's last search for its own free pages; 0 if its time is not counted yet. */
static __thread mi_msecs_t collected_at;

static size_t load(_Atomic(size_t) * count) { return mi_atomic_load_relaxed(count); }

static void subtract(_Atomic(size_t) * count, size_t bytes) {
    size_t old = load(count);
    while (!mi_atomic_cas_weak_relaxed(count, &old, old > bytes ? old - bytes : 0)) {
    }
}

static size_t dirty_now(void) {
    intptr_t bytes = (intptr_t)load(&free_memory.dirty);
    return bytes > 0 ? (size_t)bytes : 0;
}

void mimalloc_end_search(void) { subtract(&searching_threads, 1); }

static size_t larger(size_t one, size_t other) { return one > other ? one : other; }

static size_t most_kept(size_t share) {
    size_t in_use = load(&free_memory.in_use), peak = larger(load(&free_memory.peak), load(&free_memory.peak_before));
    size_t extra = load(&free_memory.extra), before = peak > in_use ? peak - in_use : 0;
    return larger(in_use / share, LEAST_KEPT) + (extra < before ? extra : before);
}

/* A pass over all arenas. */
typedef struct {
    /* Bytes to return, and those returned, of memory that was in use. */
    size_t wanted, returned;
    /* Least number of free slices of a huge page; all for whole huge pages. */
    size_t least;
    /* Slices of a huge page. */
    size_t group;
} pass_t;

static size_t group_slices(void) {
    size_t slices = mi_slice_count_of_size(_mi_os_minimal_purge_size());
    return slices < MI_BCHUNK_BITS ? slices : MI_BCHUNK_BITS;
}

/* Numbers of slices: free ones, and those among them that were in use since they were last returned. A huge page that was
   touched also has memory for free slices that were never in use. */
typedef struct {
    size_t free, dirty;
} slices_t;

static slices_t count_slices(mi_arena_t *arena, size_t start, size_t count) {
    slices_t slices = {0, 0};
    for (size_t at = start, end = start + count, next; at < end; at = next) {
        size_t chunk = at / MI_BCHUNK_BITS, field = at % MI_BCHUNK_BITS / MI_BFIELD_BITS, bit = at % MI_BFIELD_BITS;
        next = at - bit + MI_BFIELD_BITS < end ? at - bit + MI_BFIELD_BITS : end;
        mi_bfield_t mask = (~(mi_bfield_t)0 >> (MI_BFIELD_BITS - (next - at))) << bit;
        mi_bfield_t free = mi_atomic_load_relaxed(&arena->slices_free->chunks[chunk].bfields[field]) & mask;
        slices.free += mi_popcount(free);
        slices.dirty += mi_popcount(free & mi_atomic_load_relaxed(&arena->slices_purge->chunks[chunk].bfields[field]));
    }
    return slices;
}

/* Bytes of slices that were in use since they were last returned. The slices are claimed: their marks stay while they are in
   use. */
static size_t marked_bytes(mi_arena_t *arena, size_t start, size_t count) {
    return mi_size_of_slices(mi_bitmap_popcountN(arena->slices_purge, start, count));
}

/* Removes the marks of claimed slices that are returned, and returns their bytes. */
static size_t unmark(mi_arena_t *arena, size_t start, size_t count) {
    size_t marked = marked_bytes(arena, start, count);
    mi_bitmap_clearN(arena->slices_purge, start, count);
    mi_atomic_sub_relaxed(&free_memory.dirty, marked);
    return marked;
}

static bool is_free(mi_arena_t *arena, size_t slice) { return count_slices(arena, slice, 1).free == 1; }

static void return_run(mi_arena_t *arena, size_t start, size_t count, pass_t *pass) {
    begin_claim();
    if (load(&searching_threads) == 0 && mi_bbitmap_try_clearNC(arena->slices_free, start, count)) {
        pass->returned += unmark(arena, start, count);
        mi_arena_purge(arena, start, count);
        mi_bbitmap_setN(arena->slices_free, start, count);
    }
    end_claim();
}

/* Returns slices run by run, from the end, each of whole huge pages if all are whole. */
static void return_slices(mi_arena_t *arena, size_t start, size_t count, pass_t *pass) {
    size_t most = _mi_align_up(mi_slice_count_of_size(MOST_AT_ONCE), pass->group);
    while (count > 0) {
        size_t run = count < most ? count : most;
        count -= run;
        return_run(arena, start + count, run, pass);
    }
}

static void return_parts(mi_arena_t *arena, size_t start, size_t end, pass_t *pass) {
    while (start < end) {
        size_t count = 0;
        while (start + count < end && is_free(arena, start + count))
            count++;
        if (count > 0)
            return_slices(arena, start, count, pass);
        start += count + 1;
    }
}

static bool is_whole(mi_arena_t *arena, size_t start, size_t group) {
    slices_t slices = count_slices(arena, start, group);
    return slices.free == group && slices.dirty > 0;
}

/* Returns the slices of an arena whose huge pages are free enough. Adjacent ones are returned together. */
static void pass_over(mi_arena_t *arena, pass_t *pass) {
    size_t end = arena->slice_count / pass->group * pass->group;
    while (end > arena->info_slices && pass->returned < pass->wanted) {
        size_t start = end - pass->group;
        slices_t slices = count_slices(arena, start, pass->group);
        if (slices.dirty > 0 && slices.free == pass->group) {
            size_t chunk = start / MI_BCHUNK_BITS * MI_BCHUNK_BITS;
            while (start > chunk && mi_size_of_slices(end - start) < pass->wanted - pass->returned &&
                   is_whole(arena, start - pass->group, pass->group))
                start -= pass->group;
            return_slices(arena, start, end - start, pass);
        } else if (slices.dirty > 0 && slices.free >= pass->least) {
            return_parts(arena, start, end, pass);
        }
        end = start;
    }
}

/* Passes over arenas, the last first. */
static void pass_over_all(pass_t *pass, size_t least) {
    pass->least = least;
    for (size_t i = mi_arenas_get_count(&subproc_main); i > 0 && pass->returned < pass->wanted; i--) {
        mi_arena_t *arena = mi_arena_from_index(&subproc_main, i - 1);
        if (arena != NULL && !arena->memid.is_pinned)
            pass_over(arena, pass);
    }
}

static size_t all_dirty(void) {
    size_t slices = 0;
    for (size_t i = 0; i < mi_arenas_get_count(&subproc_main); i++) {
        mi_arena_t *arena = mi_arena_from_index(&subproc_main, i);
        if (arena != NULL && !arena->memid.is_pinned)
            slices += count_slices(arena, 0, arena->slice_count).dirty;
    }
    return mi_size_of_slices(slices);
}

/* Counts `dirty` anew, unless another thread frees or takes memory meanwhile: its change would be lost. */
static void correct_dirty(void) {
    size_t before = load(&free_memory.dirty);
    size_t counted = all_dirty();
    mi_atomic_cas_strong_acq_rel(&free_memory.dirty, &before, counted);
}

static bool begin_pass(void) {
    uintptr_t nobody = 0;
    return mi_atomic_cas_strong_acq_rel(&free_memory.passing_thread, &nobody, _mi_thread_id());
}

/* The next `return_excess` has to see what another thread has freed before it found this pass. Without the fence, and that
   of `page_was_freed`, AArch64 may read the count before the other thread sees the end. */
static void end_pass(void) {
    mi_atomic_exchange_acq_rel(&free_memory.passing_thread, (uintptr_t)0);
    atomic_thread_fence(memory_order_seq_cst);
}

/* Returns so many bytes if there are as many, and keeps at least `kept_in_parts` bytes of parts of huge pages. False if
   another thread makes a pass; otherwise `returned` is the number of bytes that were returned. */
static bool make_pass(size_t wanted, size_t kept_in_parts, size_t *returned) {
    if (!begin_pass())
        return false;
    pass_t pass = {.wanted = wanted, .group = group_slices()};
    size_t at_first = dirty_now();
    pass_over_all(&pass, pass.group);
    correct_dirty();
    size_t dirty = dirty_now();
    for (int share = 3; share >= 0 && dirty > kept_in_parts && pass.returned < wanted; share--) {
        size_t before = pass.returned, rest = wanted - before;
        pass.wanted = before + (dirty - kept_in_parts < rest ? dirty - kept_in_parts : rest);
        size_t least = pass.group * share / 4;
        pass_over_all(&pass, least > 0 ? least : 1);
        dirty -= pass.returned - before < dirty ? pass.returned - before : dirty;
    }
    if (load(&free_memory.least_dirty) > dirty)
        mi_atomic_store_relaxed(&free_memory.least_dirty, dirty);
    /* Without memory that other threads have freed during the pass: another pass may return that. */
    size_t rest = at_first > pass.returned ? at_first - pass.returned : 0;
    mi_atomic_store_relaxed(&free_memory.next_pass, (rest < dirty ? rest : dirty) + LEAST_KEPT / 4);
    end_pass();
    *returned = pass.returned;
    return true;
}

/* As `make_pass`. Returns the number of bytes that were returned. */
static size_t return_bytes(size_t wanted, size_t kept_in_parts) {
    size_t returned = 0;
    make_pass(wanted, kept_in_parts, &returned);
    return returned;
}

/* Returns memory until no more than the usual amount is free. Called after each free, and after each pass: threads that have
   freed memory during a pass may never call again. A pass that returns nothing does not end it, since another thread may have
   freed memory meanwhile: `next_pass` does. */
static void return_excess(void) {
    for (int passes = 0; passes < MOST_PASSES && mi_arena_purge_delay() > 0; passes++) {
        size_t dirty = dirty_now(), most = most_kept(KEPT_SHARE);
        if (dirty <= most || dirty < load(&free_memory.next_pass))
            return;
        size_t returned = 0;
        if (!make_pass(dirty - most * 3 / 4, most_kept(KEPT_SHARE_IN_PARTS), &returned))
            return;
        if (returned == 0)
            continue;
        mi_atomic_add_relaxed(&free_memory.returned, returned);
        mi_atomic_storei64_relaxed(&free_memory.returned_at, _mi_clock_now());
    }
}

/* By amount. */
static void page_was_freed(size_t bytes) {
    subtract(&free_memory.in_use, bytes);
    /* Otherwise mimalloc has not marked the slices: it has returned them, or never does. */
    if (mi_arena_purge_delay() <= 0)
        return;
    mi_atomic_add_relaxed(&free_memory.dirty, bytes);
    /* As in `end_pass`. Once for a page (mimalloc's), not for each block. */
    atomic_thread_fence(memory_order_seq_cst);
    return_excess();
}

/* Called when arenas hold more memory; small.rs sets it. A pointer, since a program may define any name. */
static void nothing(void) {}
void (*mimalloc_grew)(void) = nothing;

/* Counts memory that was returned and is needed again at once. */
static void was_returned_in_vain(size_t bytes) {
    size_t returned = load(&free_memory.returned);
    if (bytes == 0 || returned == 0)
        return;
    mi_msecs_t now = _mi_clock_now();
    if (now - mi_atomic_loadi64_relaxed(&free_memory.returned_at) >= IN_VAIN_MS) {
        mi_atomic_store_relaxed(&free_memory.returned, 0);
    } else if (load(&free_memory.extra) < MOST_EXTRA) {
        size_t again = bytes < returned ? bytes : returned;
        subtract(&free_memory.returned, again);
        mi_atomic_add_relaxed(&free_memory.extra, again);
        mi_atomic_storei64_relaxed(&free_memory.extra_since, now);
    }
}

/* Counts slices of an arena that are in use now; `is_new` if all are in use for the first time. Its system calls may fail,
   madvise(2) for locked memory for example. A successful malloc(3) or realloc(3) leaves errno as it is. */
static void slices_were_taken(mi_arena_t *arena, size_t start, size_t count, bool is_new) {
    int error = errno;
    size_t bytes = mi_size_of_slices(count), marked = marked_bytes(arena, start, count);
    size_t in_use = mi_atomic_add_relaxed(&free_memory.in_use, bytes) + bytes;
    if (in_use > load(&free_memory.peak))
        mi_atomic_store_relaxed(&free_memory.peak, in_use);
    if (!is_new)
        was_returned_in_vain(bytes - marked);
    mi_atomic_sub_relaxed(&free_memory.dirty, marked);
    size_t dirty = dirty_now();
    if (dirty < load(&free_memory.least_dirty))
        mi_atomic_store_relaxed(&free_memory.least_dirty, dirty);
    mimalloc_grew();
    errno = error;
}

static void page_was_taken(mi_page_t *page) {
    size_t start, count;
    mi_arena_t *arena = mi_arena_from_memid(page->memid, &start, &count);
    slices_were_taken(arena, start, count, page->memid.initially_zero);
}

/* Returns large blocks that were freed long ago; small.rs sets it. A pointer, since a program may define any name. */
void (*mimalloc_time_passes)(void) = nothing;

/* By time. */
static void pass_by(mi_theap_t *theap) {
    const long interval = mi_arena_purge_delay();
    mi_msecs_t now = _mi_clock_now();
    if (interval <= 0)
        return;
    /* A new thread has no free pages yet. */
    if (collected_at == 0)
        collected_at = now;
    if (now - collected_at >= interval && mi_theap_is_initialized(theap)) {
        collected_at = now;
        _mi_theap_collect_retired(theap, true);
        mi_theap_collect(theap, false);
    }
    mi_msecs_t since = mi_atomic_loadi64_relaxed(&free_memory.interval_since);
    if (now - since < interval || !mi_atomic_casi64_strong_acq_rel(&free_memory.interval_since, &since, now))
        return;
    size_t unused = load(&free_memory.least_dirty);
    mi_atomic_store_relaxed(&free_memory.least_dirty, dirty_now());
    if (unused > 0)
        return_bytes(unused, most_kept(KEPT_SHARE_IN_PARTS));
    return_excess();
    if (now - mi_atomic_loadi64_relaxed(&free_memory.extra_since) >= EXTRA_LASTS_MS) {
        size_t extra = load(&free_memory.extra);
        mi_atomic_store_relaxed(&free_memory.extra, extra > LEAST_KEPT ? extra / 2 : 0);
        mi_atomic_storei64_relaxed(&free_memory.extra_since, now);
    }
    if (now - mi_atomic_loadi64_relaxed(&free_memory.peak_since) >= EXTRA_LASTS_MS) {
        mi_atomic_store_relaxed(&free_memory.peak_before, load(&free_memory.peak));
        mi_atomic_store_relaxed(&free_memory.peak, load(&free_memory.in_use));
        mi_atomic_storei64_relaxed(&free_memory.peak_since, now);
    }
    mimalloc_time_passes();
}

/* For calls that concern large blocks. */
void mimalloc_pass_by(void) { pass_by(_mi_theap_default()); }

/* malloc_trim(3): true if memory was returned. */
bool mimalloc_trim(size_t kept) {
    mi_theap_collect(_mi_theap_default(), true);
    size_t dirty = all_dirty();
    size_t returned = dirty > kept ? return_bytes(dirty - kept, 0) : 0;
    return_excess();
    return returned > 0;
}

/* Free slices of an arena whose addresses are unmapped: under a limit of address space large blocks can have them. They
   count as in use until they are mapped again. */
typedef struct {
    mi_arena_t *arena;
    size_t start, count;
} hole_t;
enum { MOST_HOLES = 1024 };
/* None crosses a page, so that the child of a fork has it as it was before a change or after it. */
static struct {
    _Alignas(32) hole_t hole;
} holes[MOST_HOLES];
static _Atomic(size_t) hole_count;

static bool unmap_claimed(mi_arena_t *arena, size_t start, size_t count) {
    size_t place = load(&hole_count);
    if (place == MOST_HOLES || !mi_bbitmap_try_clearNC(arena->slices_free, start, count))
        return false;
    if (munmap(mi_arena_slice_start(arena, start), mi_size_of_slices(count)) != 0) {
        mi_bbitmap_setN(arena->slices_free, start, count);
        return false;
    }
    unmark(arena, start, count);
    holes[place].hole = (hole_t){arena, start, count};
    mi_atomic_store_release(&hole_count, place + 1);
    return true;
}

static bool unmap_slices(mi_arena_t *arena, size_t start, size_t count) {
    begin_claim();
    bool is_unmapped = unmap_claimed(arena, start, count);
    end_claim();
    return is_unmapped;
}

/* Finds the free whole huge pages of an arena, unmaps them if that is wanted, and returns the number of slices. Runs do not
   cross chunks. */
static size_t free_whole_of(mi_arena_t *arena, size_t group, bool unmap) {
    size_t slices = 0, end = 0;
    for (size_t start = _mi_align_up(arena->info_slices, group); start + group <= arena->slice_count; start = end) {
        end = start;
        while (end + group <= arena->slice_count && end / MI_BCHUNK_BITS == start / MI_BCHUNK_BITS &&
               count_slices(arena, end, group).free == group)
            end += group;
        if (end > start && (!unmap || unmap_slices(arena, start, end - start)))
            slices += end - start;
        if (end == start)
            end += group;
    }
    return slices;
}

/* Returns the number of bytes of free whole huge pages; they are unmapped if that is wanted. */
size_t mimalloc_free_whole(bool unmap) {
    size_t slices = 0;
    for (size_t i = mi_arenas_get_count(&subproc_main); i > 0; i--) {
        mi_arena_t *arena = mi_arena_from_index(&subproc_main, i - 1);
        if (arena != NULL && !arena->memid.is_pinned)
            slices += free_whole_of(arena, group_slices(), unmap);
    }
    return mi_size_of_slices(slices);
}

/* The smallest hole of at least so many slices among those behind `last` in the order of sizes; NULL if there is none. */
static hole_t *next_hole(size_t slices, const hole_t *last) {
    hole_t *best = NULL;
    for (size_t i = 0; i < load(&hole_count); i++) {
        hole_t *hole = &holes[i].hole;
        bool is_behind = last == NULL || hole->count > last->count || (hole->count == last->count && hole > last);
        if (is_behind && hole->count >= slices && (best == NULL || hole->count < best->count))
            best = hole;
    }
    return best;
}

/* Maps a hole again; false if something else is at its addresses, or if there is no memory. */
static bool map_hole(hole_t *hole) {
    void *start = mi_arena_slice_start(hole->arena, hole->start);
    size_t size = mi_size_of_slices(hole->count);
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE;
    void *mapped = mmap(start, size, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (mapped != start) {
        /* Before Linux 4.17 the flag is not known. */
        if (mapped != MAP_FAILED)
            munmap(mapped, size);
        return false;
    }
    madvise(start, size, MADV_HUGEPAGE);
    mi_bbitmap_setN(hole->arena->slices_free, hole->start, hole->count);
    size_t last = load(&hole_count) - 1;
    *hole = holes[last].hole;
    mi_atomic_store_release(&hole_count, last);
    return true;
}

/* Maps the smallest hole with room for a block of this many bytes again, and whose addresses are free. Returns its size, or
   0 if there is none. */
size_t mimalloc_map_hole(size_t bytes) {
    size_t size = 0;
    /* Usually there is none, and no thread has to wait here for one that returns memory. */
    if (load(&hole_count) == 0)
        return 0;
    begin_claim();
    size_t slices = mi_slice_count_of_size(mi_page_info_size() + _mi_os_good_alloc_size(bytes));
    for (hole_t *hole = next_hole(slices, NULL); hole != NULL && size == 0; hole = next_hole(slices, hole)) {
        size_t wanted = mi_size_of_slices(hole->count);
        size = map_hole(hole) ? wanted : 0;
    }
    end_claim();
    return size;
}

/* Bytes of blocks in use, of their pages (mimalloc's), and of free memory that would be returned; and the number of free
   blocks in those pages. `SmallUsage` of small.rs. */
typedef struct {
    size_t live, pages, dirty, free_blocks;
} usage_t;

static void add_pages(mi_arena_t *arena, usage_t *usage) {
    mi_bitmap_t *pages = arena->pages_main.pages;
    for (size_t chunk = 0; chunk < mi_bitmap_chunk_count(pages); chunk++) {
        for (size_t field = 0; field < MI_BCHUNK_FIELDS; field++) {
            mi_bfield_t bits = mi_atomic_load_relaxed(&pages->chunks[chunk].bfields[field]);
            size_t bit;
            while (mi_bfield_foreach_bit(&bits, &bit)) {
                mi_page_t *page = &arena->pages_meta[chunk * MI_BCHUNK_BITS + field * MI_BFIELD_BITS + bit];
                size_t used = page->used, capacity = page->capacity;
                usage->live += used * page->block_size;
                usage->free_blocks += capacity > used ? capacity - used : 0;
                usage->pages += mi_page_full_size(page);
            }
        }
    }
}

/* The numbers may be slightly wrong if other threads change them at the same time. */
void mimalloc_usage(usage_t *usage) {
    *usage = (usage_t){.dirty = all_dirty()};
    for (size_t i = 0; i < mi_arenas_get_count(&subproc_main); i++) {
        mi_arena_t *arena = mi_arena_from_index(&subproc_main, i);
        if (arena != NULL)
            add_pages(arena, usage);
    }
}

/* True before one slow call in `SLOW_CALLS`, and before a thread's first one. Both functions that count slow calls check this before
   they count: if one counted first, a program in which they take turns could pass every multiple unseen. */
static inline bool reads_the_clock(mi_theap_t *theap) { return theap->generic_count % SLOW_CALLS == 0; }

void *_mi_malloc_generic(mi_theap_t *theap, size_t size, size_t zero_huge_alignment, size_t *usable) mi_attr_noexcept {
    /* As in `slices_were_taken`. If no block is found, there may be one in a new arena. */
    int error = errno;
    if mi_unlikely (reads_the_clock(theap))
        pass_by(theap);
    void *block = malloc_generic_of_mimalloc(theap, size, zero_huge_alignment, usable);
    errno = error;
    return block;
}

mi_page_t *_mi_arenas_page_alloc(mi_theap_t *theap, size_t block_size, size_t page_alignment) {
    mi_page_t *page = arenas_page_alloc_of_mimalloc(theap, block_size, page_alignment);
    /* One that was abandoned is in use already. */
    if (page != NULL && !mi_page_is_abandoned(page) && page->memid.memkind == MI_MEM_ARENA && !page->memid.is_pinned)
        page_was_taken(page);
    return page;
}

void _mi_arenas_page_free(mi_page_t *page, mi_theap_t *theap) {
    size_t bytes = page->memid.is_pinned ? 0 : mi_page_full_size(page);
    /* free(3) leaves it as it is, and madvise(2) fails for locked memory. */
    int error = errno;
    arenas_page_free_of_mimalloc(page, theap);
    if (bytes > 0)
        page_was_freed(bytes);
    errno = error;
}

/* mimalloc's own way, which `pass_by` and `page_was_freed` replace. */
void _mi_arenas_collect(bool force, bool visit_all, mi_tld_t *tld) {
    (void)force;
    (void)visit_all;
    (void)tld;
}

#include "near_limit.c"
