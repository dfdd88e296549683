/* malloc(3) and related functions for small blocks, in one unit with mimalloc so that its fast paths are inlined.
   exports.rs exports these functions and has the rare cases. Included by mimalloc.c.

   malloc and calloc need not check whether the heap acts: if it does not, each thread has mimalloc's empty heap, in which no
   block is free. */

/* Least size of a large block in bytes; smaller ones are mimalloc's. 0 until the heap has started, and always if it does
   not act. Both are set while the process has one thread. */
size_t mimalloc_large_from;
/* Mask of the bits that are 0 in the address of every large block. 0 whenever `mimalloc_large_from` is. */
size_t mimalloc_within_grain;

/* Functions of exports.rs. Hidden ones are not exported by the library. */
#pragma GCC visibility push(hidden)
void *mimalloc_malloc_slowly(size_t size);
void *mimalloc_calloc_slowly(size_t size);
void mimalloc_free_slowly(void *block);
void *mimalloc_realloc_slowly(void *block, size_t size);
void *mimalloc_no_memory(void);
#pragma GCC visibility pop

/* Not hidden: GNU's linker would hide the C library's names too, which it gives to these functions (build.rs). */
#define UNDER_C_NAME __attribute__((visibility("default")))

/* False for every address that a large block may have, and for all addresses if the heap does not act. */
static inline bool is_surely_small(const void *block) { return ((uintptr_t)block & mimalloc_within_grain) != 0; }

/* The C library aligns every block to 16 bytes, mimalloc only blocks of at least 16 bytes (exports.rs, `LEAST`). */
static inline size_t at_least(size_t size) { return size < 16 ? 16 : size; }

static inline void clear(mi_block_t *block, mi_page_t *page) {
    if (page->free_is_zero)
        block->next = 0;
    else
        memset(block, 0, page->block_size);
}

/* Takes the first free block of a page; NULL if there is none. */
static inline void *take(mi_page_t *page, bool zero) {
    mi_block_t *block = page->free;
    if mi_unlikely (block == NULL)
        return NULL;
    page->free = mi_block_next(page, block);
    page->used++;
    if (zero)
        clear(block, page);
    return block;
}

/* Like mimalloc's generic path if the first page of this size has a free block, and with the same counts: each call that
   reads the clock goes there. So does a call that would fill a page of blocks that are not small. */
static inline void *take_from_first_page(size_t size, bool zero) {
    mi_theap_t *theap = _mi_theap_default();
    if (size > MI_LARGE_MAX_OBJ_SIZE)
        return NULL;
    mi_page_t *page = mi_page_queue(theap, size)->first;
    if (page == NULL || !mi_page_free_quick_collect(page) || reads_the_clock(theap) ||
        (page->block_size > MI_SMALL_MAX_OBJ_SIZE && page->used + 1 == page->reserved))
        return NULL;
    theap->generic_count++;
    page->retire_expire = 0;
    return take(page, zero);
}

static mi_decl_noinline void *malloc_generic(size_t size) {
    void *block = take_from_first_page(at_least(size), false);
    if (block == NULL && size < mimalloc_large_from)
        block = _mi_malloc_generic(_mi_theap_default(), at_least(size), 0, NULL);
    return mi_likely(block != NULL) ? block : mimalloc_malloc_slowly(size);
}

static mi_decl_noinline void *calloc_generic(size_t size) {
    void *block = take_from_first_page(at_least(size), true);
    if (block == NULL && size < mimalloc_large_from)
        block = _mi_malloc_generic(_mi_theap_default(), at_least(size), 1, NULL);
    return mi_likely(block != NULL) ? block : mimalloc_calloc_slowly(size);
}

UNDER_C_NAME void *mimalloc_malloc(size_t size) {
    if mi_likely (size <= MI_SMALL_SIZE_MAX) {
        void *block = take(_mi_theap_get_free_small_page(_mi_theap_default(), at_least(size)), false);
        if mi_likely (block != NULL)
            return block;
    }
    return malloc_generic(size);
}

UNDER_C_NAME void *mimalloc_calloc(size_t count, size_t size) {
    size_t bytes;
    if mi_unlikely (__builtin_mul_overflow(count, size, &bytes))
        return mimalloc_no_memory();
    if mi_likely (bytes <= MI_SMALL_SIZE_MAX) {
        void *block = take(_mi_theap_get_free_small_page(_mi_theap_default(), at_least(bytes)), true);
        if mi_likely (block != NULL)
            return block;
    }
    return calloc_generic(bytes);
}

UNDER_C_NAME void mimalloc_free(void *block) {
    if mi_likely (is_surely_small(block))
        mi_free_ex(block, NULL, mi_validate_ptr_page(block, "free"));
    else if (block != NULL)
        mimalloc_free_slowly(block);
}

static mi_decl_noinline void *move(void *block, size_t old_size, size_t size) {
    void *moved = mimalloc_malloc(size);
    if mi_likely (moved != NULL) {
        memcpy(moved, block, old_size < size ? old_size : size);
        mimalloc_free(block);
    }
    return moved;
}

/* realloc(3) of a small block to the size of one. */
static inline void *realloc_small(void *block, size_t size) {
    mi_page_t *page = mi_validate_ptr_page(block, "realloc");
    size_t usable = _mi_usable_size(block, page);
    /* A block that stays at least half used is not moved. */
    if mi_likely (size <= usable && at_least(size) >= usable / 2)
        return block;
    return size > usable && usable > MI_LARGE_MAX_OBJ_SIZE && grow_in_place(page, size) ? block : move(block, usable, size);
}

/* For small blocks at addresses that a large block may have. */
void *mimalloc_realloc_small(void *block, size_t size) { return realloc_small(block, size); }

UNDER_C_NAME void *mimalloc_realloc(void *block, size_t size) {
    if mi_unlikely (!is_surely_small(block) || size == 0 || size >= mimalloc_large_from)
        return mimalloc_realloc_slowly(block, size);
    return realloc_small(block, size);
}
