// Replaces mimalloc's header when its test suite is built against the standard names of the allocator: malloc and
// related functions serve mimalloc's own names, and new and delete serve C++ containers.
#ifndef STANDARD_NAMES_H
#define STANDARD_NAMES_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <malloc.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define mi_malloc malloc
#define mi_calloc calloc
#define mi_realloc realloc
#define mi_reallocarray reallocarray
#define mi_free free
#define mi_usable_size malloc_usable_size
#define mi_posix_memalign posix_memalign
#define mi_memalign memalign
#define mi_realpath realpath
#define mi_strdup strdup

/* The largest alignment that the suite tries is 16 times this. */
#define MI_ALIGNMENT_MAX (2u << 20)
#define MI_SMALL_SIZE_MAX 1024
#define MI_MAX_ALIGN_SIZE 16

enum { mi_option_verbose };
static inline void mi_option_disable(int option) { (void)option; }
static inline void mi_stats_reset(void) {}
static inline void mi_stats_print(void *out) { (void)out; }
static inline void mi_collect(bool force) { (void)force; }

static inline void *mi_malloc_aligned(size_t size, size_t align) { return memalign(align, size); }
static inline void *mi_malloc_aligned_at(size_t size, size_t align, size_t offset) {
    /* No standard function aligns an address after the block's start. */
    return offset % align == 0 ? memalign(align, size) : NULL;
}
static inline void *mi_zalloc(size_t size) { return calloc(1, size); }
static inline void *mi_zalloc_small(size_t size) { return calloc(size, 1); }
static inline void *mi_zalloc_aligned(size_t size, size_t align) {
    void *block = memalign(align, size);
    return block ? memset(block, 0, size) : NULL;
}
static inline void *mi_calloc_aligned(size_t count, size_t size, size_t align) {
    return mi_zalloc_aligned(count * size, align);
}
/* realloc keeps all usable bytes, and calloc clears them. */
static inline void *mi_rezalloc(void *block, size_t size) {
    size_t before = malloc_usable_size(block);
    char *moved = (char *)realloc(block, size);
    if (moved && size > before)
        memset(moved + before, 0, size - before);
    return moved;
}
static inline void *mi_recalloc(void *block, size_t count, size_t size) { return mi_rezalloc(block, count * size); }
static inline void *mi_rezalloc_aligned(void *block, size_t size, size_t align) {
    size_t before = malloc_usable_size(block);
    void *moved = mi_zalloc_aligned(size, align);
    if (moved) {
        memcpy(moved, block, before < size ? before : size);
        free(block);
    }
    return moved;
}
static inline void *mi_recalloc_aligned(void *block, size_t count, size_t size, size_t align) {
    return mi_rezalloc_aligned(block, count * size, align);
}

/* There is one heap. */
typedef int mi_heap_t;
static inline mi_heap_t *mi_heap_new(void) { return NULL; }
static inline void mi_heap_destroy(mi_heap_t *heap) { (void)heap; }
static inline void mi_heap_delete(mi_heap_t *heap) { (void)heap; }
static inline void *mi_heap_malloc(mi_heap_t *heap, size_t size) { return (void)heap, malloc(size); }
static inline void *mi_heap_malloc_aligned(mi_heap_t *heap, size_t size, size_t align) {
    return (void)heap, memalign(align, size);
}
static inline bool mi_heap_contains_block(mi_heap_t *heap, void *block) { return (void)heap, block != NULL; }
#define mi_heap_malloc_tp(heap, type) ((type *)mi_heap_malloc(heap, sizeof(type)))

#ifdef __cplusplus
#include <memory>
template <class T> using mi_stl_allocator = std::allocator<T>;
template <class T> using mi_heap_stl_allocator = std::allocator<T>;
template <class T> using mi_heap_destroy_stl_allocator = std::allocator<T>;
#endif

#endif
