/* Growth of blocks in place, for realloc(3). A block above `MI_LARGE_MAX_OBJ_SIZE` has a page, in mimalloc's sense, to itself:
   the page takes the free slices behind it. Nobody else uses such a page: it is full, so that it is in no list, and no
   thread owns it until its block is freed. Included by mimalloc.c. */

/* Claims free slices. They are in one chunk, and in the arena. */
static bool claim_slices(mi_arena_t *arena, size_t start, size_t count) {
    size_t last = start + count - 1;
    return count == 0 || (last < arena->slice_count && start / MI_BCHUNK_BITS == last / MI_BCHUNK_BITS &&
                          mi_bbitmap_try_clearNC(arena->slices_free, start, count));
}

/* True if a part of the page map has the entries for all these bytes: it exists, and no memory is needed for it. */
static bool is_in_one_submap(uint8_t *start, size_t bytes) {
    return _mi_page_map_index(start, NULL) == _mi_page_map_index(start + bytes - 1, NULL);
}

/* Enlarges the only block of a page to so many bytes; false, with no change, if that is not possible. */
static bool grow_in_place(mi_page_t *page, size_t bytes) {
    if (!mi_page_is_singleton(page) || page->block_size <= MI_LARGE_MAX_OBJ_SIZE || page->slice_committed != 0 ||
        page->memid.memkind != MI_MEM_ARENA || mi_page_has_interior_pointers(page) || mi_page_is_in_full(page))
        return false;
    size_t first, count;
    mi_arena_t *arena = mi_arena_from_memid(page->memid, &first, &count);
    size_t block_size = _mi_os_good_alloc_size(bytes);
    size_t wanted = mi_slice_count_of_size(mi_page_slice_offset_of(page, block_size));
    size_t added = wanted > count ? wanted - count : 0;
    if (!arena->memid.initially_committed || !is_in_one_submap(page->page_start, block_size) ||
        !claim_slices(arena, first + count, added))
        return false;
    page->block_size = block_size;
    if (added > 0) {
        size_t used_before;
        mi_bitmap_setN(arena->slices_dirty, first + count, added, &used_before);
        page->memid.mem.arena.slice_count = (uint32_t)wanted;
        if (!page->memid.is_pinned)
            slices_were_taken(arena, first + count, added, used_before == 0);
    }
    return _mi_page_map_register(page);
}
