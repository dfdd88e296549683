//! The program's allocator if it is linked with musl, whose own allocator maps and unmaps memory for nearly every page
//! that it allocates.
//!
//! It is dlmalloc, behind a lock for which a program of one thread pays two instructions: with the mutex of the C
//! library, locking takes as long as the rest of an allocation.

use dlmalloc::Dlmalloc;
use std::alloc::{GlobalAlloc, Layout};
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, Ordering};

/// One heap for all threads.
pub struct Allocator {
    taken: AtomicBool,
    heap: UnsafeCell<Dlmalloc>,
}

// SAFETY:
// - the heap is only reached through `with`, by one thread at a time.
unsafe impl Sync for Allocator {}

impl Allocator {
    /// An empty heap.
    pub const fn new() -> Self {
        Self { taken: AtomicBool::new(false), heap: UnsafeCell::new(Dlmalloc::new()) }
    }

    fn with<T>(&self, act: impl FnOnce(&mut Dlmalloc) -> T) -> T {
        while self.taken.compare_exchange_weak(false, true, Ordering::Acquire, Ordering::Relaxed).is_err() {
            std::thread::yield_now();
        }
        // SAFETY:
        // - only this thread has the heap until `taken` is false again, and `act` calls no allocator.
        let result = act(unsafe { &mut *self.heap.get() });
        self.taken.store(false, Ordering::Release);
        result
    }
}

// SAFETY:
// - dlmalloc returns blocks of the requested size and alignment, and never unwinds (`panic = "abort"`).
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY:
        // - the size is not 0, and the alignment a power of two: the caller's promise.
        self.with(|heap| unsafe { heap.malloc(layout.size(), layout.align()) })
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY:
        // - as for `alloc`.
        self.with(|heap| unsafe { heap.calloc(layout.size(), layout.align()) })
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY:
        // - it is a block of this heap and this layout: the caller's promise.
        self.with(|heap| unsafe { heap.free(at, layout.size(), layout.align()) });
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY:
        // - as for `dealloc`, and the new size is not 0.
        self.with(|heap| unsafe { heap.realloc(at, layout.size(), layout.align(), size) })
    }
}
