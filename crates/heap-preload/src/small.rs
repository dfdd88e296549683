//! Small blocks: mimalloc, which gets all its memory from us and none from the kernel.

use crate::pool::{Grain, is_free};
use crate::sys::Lock;
use crate::{ACCOUNT, SHARED, current_node, forget, mapped};
use core::ffi::{c_int, c_long, c_void};
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use heap_contract::{Shortage, SmallRecords};

/// mimalloc's numbers for the options used here (`mi_option_t` of mimalloc 3.3; the crate's version is pinned).
const OPTION_PURGE_DELAY: c_int = 15;
const OPTION_DISALLOW_OS_ALLOC: c_int = 17;
const OPTION_MINIMAL_PURGE_SIZE: c_int = 44;

/// mimalloc gives free memory of arenas back after so long: rarely enough that no storm of TLB shootdowns comes of it.
const PURGE_MILLISECONDS: c_long = 10_000;

/// mimalloc takes no arena that is smaller (`MI_ARENA_MIN_SIZE` on 64-bit machines).
const LEAST_ARENA: usize = 32 << 20;
/// mimalloc has room for 160 arenas: each new one is this share of all before, so that a terabyte needs fewer.
const ARENA_SHARE: usize = 8;
const MOST_ARENA: usize = 8 << 30;

unsafe extern "C" {
    /// Of `mimalloc.c`.
    static mut mimalloc_process: libc::pid_t;
    static mimalloc_small_records: SmallRecords;
    fn mi_option_set(option: c_int, value: c_long);
    fn mi_option_set_default(option: c_int, value: c_long);
    fn mi_manage_os_memory_ex(
        start: *mut c_void,
        size: usize,
        is_committed: bool,
        is_pinned: bool,
        is_zero: bool,
        numa_node: c_int,
        exclusive: bool,
        arena_id: *mut *mut c_void,
    ) -> bool;
}

/// One thread at a time adds an arena.
pub static GROWING: Lock = Lock::new();
static ARENAS: AtomicUsize = AtomicUsize::new(0);

/// Tells mimalloc how to behave; before its first block.
pub fn set_up(grain: usize) {
    crate::locks::take_over();
    ACCOUNT.small_records.store(&raw const mimalloc_small_records as u64, Relaxed);
    // SAFETY:
    // - the options are plain numbers in static memory; the process has one thread.
    unsafe {
        mimalloc_process = libc::getpid();
        mi_option_set(OPTION_DISALLOW_OS_ALLOC, 1);
        // In KiB. Giving back less than a huge page would break it up.
        mi_option_set(OPTION_MINIMAL_PURGE_SIZE, (grain / 1024) as c_long);
        // A value that the user gave by MIMALLOC_PURGE_DELAY stays.
        mi_option_set_default(OPTION_PURGE_DELAY, PURGE_MILLISECONDS);
    }
}

/// The number of arenas so far, to be handed to [`grow`].
pub fn arenas() -> usize {
    ARENAS.load(Relaxed)
}

/// Adds an arena, unless another thread has just done so. False where there is no memory.
pub fn grow(seen: usize) -> bool {
    let is_new = GROWING.lock_unless(crate::fork::holds_growing);
    let grown = ARENAS.load(Relaxed) != seen || add_arena();
    if is_new {
        // SAFETY:
        // - this thread has locked it above.
        unsafe { GROWING.unlock() };
    }
    grown
}

fn add_arena() -> bool {
    let so_far = ACCOUNT.arenas.load(Relaxed) as usize;
    let wanted = (so_far / ARENA_SHARE).clamp(LEAST_ARENA, MOST_ARENA).next_multiple_of(LEAST_ARENA);
    let pool = |bytes| arena_from_pool(bytes);
    let mapped = |bytes| arena_from_kernel(bytes);
    pool(wanted) || pool(LEAST_ARENA) || mapped(wanted) || mapped(LEAST_ARENA)
}

fn arena_from_pool(bytes: usize) -> bool {
    let node = current_node();
    let found = SHARED.with(|large| {
        if large.pool.is_empty() || !LEAST_ARENA.is_multiple_of(large.pool.grain()) {
            return None;
        }
        let Some(start) = large.pool.find(bytes, node, true, is_free) else {
            ACCOUNT.note(Shortage::UsedUp);
            return None;
        };
        let zero = large.pool.is_fresh(start, bytes);
        large.pool.mark(start, bytes, Grain::Used);
        Some((start, zero))
    });
    let Some((start, zero)) = found else { return false };
    let taken = give(start, bytes, true, zero, node as c_int);
    if !taken {
        SHARED.with(|large| large.pool.mark(start, bytes, Grain::Returned));
    }
    taken
}

fn arena_from_kernel(bytes: usize) -> bool {
    let grain = SHARED.with(|large| large.grain());
    let Some(start) = mapped::map(bytes.next_multiple_of(grain), grain) else { return false };
    let taken = give(start, bytes, false, true, -1);
    if !taken {
        // SAFETY:
        // - mapped above, and mimalloc has not taken it.
        unsafe { mapped::give_back(start, bytes.next_multiple_of(grain)) };
    }
    taken
}

fn give(start: usize, bytes: usize, pinned: bool, zero: bool, node: c_int) -> bool {
    // SAFETY:
    // - the range is ours, mapped readable and writable, as zero as is told, and stays mimalloc's for good.
    let taken = unsafe {
        mi_manage_os_memory_ex(start as *mut c_void, bytes, true, pinned, zero, node, false, core::ptr::null_mut())
    };
    if taken {
        ARENAS.fetch_add(1, Relaxed);
        forget(ACCOUNT.arenas.fetch_add(bytes as u64, Relaxed));
    }
    taken
}
