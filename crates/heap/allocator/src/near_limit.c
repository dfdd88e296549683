/* Puts memory of arenas on ordinary pages if a limit of a cgroup is near (near_limit.rs, relief.rs): the unused parts of huge pages
   would count. A huge page is broken up if it contains
   - free slices, in sum at least an eighth of it;
   - memory of a page (mimalloc's) that was never given as a block; or
   - blocks of several base pages, which may be larger than requested by a quarter, or the end of a longer block.
   The kernel releases subpages that contain nothing but zeros when it splits a huge page (since Linux 6.12). A partial
   MADV_COLD (Linux 5.4) splits one, and changes no contents. Neither a fault nor khugepaged makes huge pages there again
   until the heap is far from the limit. Included by give_back.c. */

/* Sizes of blocks that may contain untouched base pages. Longer ones have their own pages, and only their ends are loose:
   mimalloc rounds sizes below 8 MiB up to multiples of 256 KiB at most (_mi_os_good_alloc_size). */
#define LEAST_LOOSE ((size_t)16 << 10)
#define MOST_LOOSE ((size_t)1 << 20)
#define LOOSE_END ((size_t)256 << 10)
/* Bytes of a page that were never given as a block, from which on its huge pages are broken up. */
#define LEAST_UNUSED ((size_t)64 << 10)
enum { FREE_SHARE = 8 };
/* Each run of ordinary pages may be a separate mapping. A process has at most 65,530 (vm.max_map_count). */
enum { MOST_BROKEN = 8192 };

/* Highest number of huge pages of an arena, with the smallest size of huge pages. */
enum { MOST_GROUPS = ((size_t)31 << 29) / ((size_t)1 << 21), GROUP_BITS = 64 };
static uint64_t broken[MI_MAX_ARENAS][(MOST_GROUPS + GROUP_BITS - 1) / GROUP_BITS];
static size_t broken_count;

/* A thread's work on the huge pages of one arena; it is the passing thread. */
typedef struct {
    mi_arena_t *arena;
    uint64_t *broken;
    /* Slices of a huge page. */
    size_t group;
    /* Number of huge pages that may still be broken up. */
    size_t left;
} breaking_t;

static bool is_broken(breaking_t *work, size_t index) {
    return (work->broken[index / GROUP_BITS] >> index % GROUP_BITS & 1) != 0;
}

static void break_up(breaking_t *work, size_t index) {
    if (work->left == 0 || index >= MOST_GROUPS || broken_count >= MOST_BROKEN || is_broken(work, index))
        return;
    size_t start = index * work->group, end = start + work->group;
    void *address = mi_arena_slice_start(work->arena, start);
    if (end > work->arena->slice_count || madvise(address, mi_size_of_slices(work->group), MADV_NOHUGEPAGE) != 0)
        return;
    work->broken[index / GROUP_BITS] |= (uint64_t)1 << index % GROUP_BITS;
    work->left--;
    broken_count++;
    pass_t pass = {.group = work->group};
    return_parts(work->arena, start, end, &pass);
    madvise(address, _mi_os_page_size(), MADV_COLD);
}

/* Breaks up the huge pages of some slices. */
static void break_up_slices(breaking_t *work, size_t start, size_t end) {
    for (size_t index = start / work->group; index * work->group < end; index++)
        break_up(work, index);
}

/* Breaks up the huge pages of a page (mimalloc's) which has parts that were never touched. Another thread may use the page,
   and free it: the numbers only decide whether it is worth the while. */
static void break_up_page(breaking_t *work, size_t slice) {
    mi_page_t *page = &work->arena->pages_meta[slice];
    size_t block = page->block_size, slices = mi_slice_count_of_size(mi_page_full_size(page));
    size_t end = slice + slices;
    if (slices > work->arena->slice_count - slice)
        return;
    if (block >= LEAST_LOOSE) {
        break_up_slices(work, block < MOST_LOOSE ? slice : end - mi_slice_count_of_size(LOOSE_END), end);
        return;
    }
    size_t unused = block * (size_t)(page->reserved - page->capacity);
    if (page->capacity < page->reserved && unused >= LEAST_UNUSED && unused <= mi_size_of_slices(slices))
        break_up_slices(work, end - mi_slice_count_of_size(unused), end);
}

static void break_up_pages(breaking_t *work) {
    mi_bitmap_t *pages = work->arena->pages_main.pages;
    for (size_t chunk = 0; chunk < mi_bitmap_chunk_count(pages); chunk++) {
        for (size_t field = 0; field < MI_BCHUNK_FIELDS && work->left > 0; field++) {
            mi_bfield_t bits = mi_atomic_load_relaxed(&pages->chunks[chunk].bfields[field]);
            size_t bit;
            while (mi_bfield_foreach_bit(&bits, &bit))
                break_up_page(work, chunk * MI_BCHUNK_BITS + field * MI_BFIELD_BITS + bit);
        }
    }
}

static void break_up_arena(breaking_t *work) {
    for (size_t index = 0; (index + 1) * work->group <= work->arena->slice_count && work->left > 0; index++) {
        size_t free = count_slices(work->arena, index * work->group, work->group).free;
        if (free < work->group && free >= (work->group + FREE_SHARE - 1) / FREE_SHARE)
            break_up(work, index);
    }
    break_up_pages(work);
}

/* Breaks up at most so many huge pages. */
void mimalloc_break_up(size_t most) {
    if (!begin_pass())
        return;
    breaking_t work = {.group = group_slices(), .left = most};
    for (size_t i = 0; i < mi_arenas_get_count(&subproc_main) && work.left > 0; i++) {
        work.arena = mi_arena_from_index(&subproc_main, i);
        work.broken = broken[i];
        if (work.arena != NULL && !work.arena->memid.is_pinned)
            break_up_arena(&work);
    }
    end_pass();
    return_excess();
}

/* Lets the kernel use huge pages again; false if another thread returns memory at present. */
bool mimalloc_use_huge_pages(void) {
    if (!begin_pass())
        return false;
    for (size_t i = 0; i < mi_arenas_get_count(&subproc_main) && broken_count > 0; i++) {
        mi_arena_t *arena = mi_arena_from_index(&subproc_main, i);
        if (arena == NULL || arena->memid.is_pinned)
            continue;
        /* Fails if a part is unmapped, and has an effect on the rest even then. */
        madvise(mi_arena_slice_start(arena, 0), mi_size_of_slices(arena->slice_count), MADV_HUGEPAGE);
        memset(broken[i], 0, sizeof(broken[i]));
    }
    broken_count = 0;
    end_pass();
    return_excess();
    return true;
}

/* Bytes of arenas that may hold memory. */
size_t mimalloc_arena_bytes(void) { return load(&free_memory.in_use) + dirty_now(); }

/* Returns all free memory, parts of huge pages too. */
void mimalloc_return_all(void) {
    return_bytes(SIZE_MAX / 2, 0);
    return_excess();
}
