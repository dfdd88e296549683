/* A program that uses brk before its entry point (a static one: in a constructor), and checks every word of the heap whenever it has changed. */
#define _GNU_SOURCE
#include "early.h"
#include "ranges.h"
#include "ready.h"
#include <stdlib.h>
#include <sys/mman.h>

#define EARLY (16 << 20)
static uint64_t *heap;
static uint64_t heap_bytes;

static void grow(int64_t bytes) {
    void *old = sbrk(bytes);
    if (old == (void *)-1) {
        printf("brk by %ld fails\n", (long)bytes);
        return;
    }
    if (!heap) heap = old;
    if ((char *)old != (char *)heap + heap_bytes) printf("the heap's end was not where it should be\n");
    for (int64_t i = 0; i < bytes / 8; i++) {
        uint64_t *word = (uint64_t *)old + i;
        if (*word != 0) printf("new heap is not zero\n");
        *word = (heap_bytes / 8 + i + 1) * ODD;
    }
    heap_bytes += bytes;
    if ((char *)sbrk(0) != (char *)heap + heap_bytes) printf("the heap's end is not where it should be\n");
}

static void check(void) { check_pattern("heap", heap, heap_bytes, 0); }

#ifdef HEAP_IS_GLUED
__attribute__((constructor))
#endif
static void use_heap_early(void) {
    /* malloc must not take the heap's end for its own while it is counted here. */
    setvbuf(stdout, NULL, _IONBF, 0);
    heap_bytes = 0;
    sbrk(4096 - (uintptr_t)sbrk(0) % 4096);
    grow(EARLY);
    check();
}

#ifndef HEAP_IS_GLUED
BEFORE_ENTRY(use_heap_early);
#endif

int main(void) {
#ifdef BSS_BYTES
    fill_bss();
#ifdef HEAP_IS_GLUED
    extern char end;
    if ((char *)heap - &end > 0x40000) printf("the heap is not glued to bss\n");
#endif
#endif
    check_ranges(0);
    ready();
    check();
    grow(64 << 20);
    check();
    for (int i = 0; i < 20; i++) {
        grow(-(3 << 20) - 4096 * i);
        check();
    }
    grow(40 << 20);
    check();
    grow(-(int64_t)heap_bytes);
    grow(1 << 20);
    check();
    free(memset(malloc(100000), 1, 100000));
    check_ranges(0);
    return 0;
}
