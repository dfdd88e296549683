/* mimalloc, from the sources of the crate libmimalloc-sys, in one piece (as its own static.c has it) and with two changes
   for programs that fork while they have threads; mimalloc itself does not know of forks:
   - its locks are taken by functions of ours (locks.rs), so that none is held at a fork;
   - mi_bitmap_clear_once_set does not wait for ever for a thread that the child does not have. */
#define _DEFAULT_SOURCE
#include <pthread.h>
#include <sched.h>
#include <time.h>
#include <unistd.h>

int (*mimalloc_lock)(pthread_mutex_t *) = pthread_mutex_lock;
int (*mimalloc_unlock)(pthread_mutex_t *) = pthread_mutex_unlock;
#define pthread_mutex_lock mimalloc_lock
#define pthread_mutex_unlock mimalloc_unlock

#include "mimalloc.h"
#include "mimalloc/internal.h"

#include "alloc.c"
#include "alloc-aligned.c"
#include "alloc-posix.c"
#include "arena.c"
#include "arena-meta.c"
#define mi_bitmap_clear_once_set mi_bitmap_clear_once_set_unless_forked
#include "bitmap.c"
#undef mi_bitmap_clear_once_set
#include "heap.c"
#include "init.c"
#include "libc.c"
#include "options.c"
#include "os.c"
#include "page.c"
#include "page-map.c"
#include "random.c"
#include "stats.c"
#include "theap.c"
#include "threadlocal.c"
#include "prim/prim.c"

/* A process that was forked waits so many milliseconds for another thread. */
enum { PATIENCE = 100 };

/* The process that mimalloc was set up in. */
pid_t mimalloc_process;

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
        else if (milliseconds() - since > PATIENCE && getpid() != mimalloc_process)
            return;
        sched_yield();
    }
}
