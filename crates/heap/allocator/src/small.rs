//! Small blocks: mimalloc, which takes all its memory from this heap and none from the kernel.

use crate::arena_sizes::{LEAST_ARENA, NextArena, PLACES};
use crate::c_library::{Clock, clock};
use crate::large::Large;
use crate::limits::may_be_mapped;
use crate::pool::{Grain, is_free};
use crate::sys::Lock;
use crate::{ACCOUNT, SHARED, current_node, forget, mapped, near_limit, turn};
use core::ffi::{c_int, c_long, c_void};
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use heap_abi::{Shortage, SmallRecords};

/// mimalloc's numbers for the options used here (`mi_option_t` of mimalloc 3.3; the crate's version is pinned).
const OPTION_PURGE_DELAY: c_int = 15;
const OPTION_DISALLOW_OS_ALLOC: c_int = 17;
const OPTION_MINIMAL_PURGE_SIZE: c_int = 44;

/// Interval in milliseconds: memory of arenas that was free throughout is returned to the kernel (`give_back.c`).
const PURGE_MILLISECONDS: c_long = 2_000;

unsafe extern "C" {
    /// Defined in `mimalloc.c`.
    static mut mimalloc_process: libc::pid_t;
    static mut mimalloc_clock: Clock;
    static mut mimalloc_time_passes: extern "C" fn();
    static mut mimalloc_grew: extern "C" fn();
    static mimalloc_small_records: SmallRecords;
    fn mimalloc_arena_for(bytes: usize) -> usize;
    fn mimalloc_count_nodes();
    fn mimalloc_pass_by();
    fn mimalloc_trim(kept: usize) -> bool;
    fn mimalloc_return_all();
    fn mimalloc_break_up(most: usize);
    fn mimalloc_use_huge_pages() -> bool;
    fn mimalloc_free_whole(unmap: bool) -> usize;
    fn mimalloc_forget_other_threads();
    fn mimalloc_begin_search();
    fn mimalloc_end_search();
    fn mimalloc_map_hole(bytes: usize) -> usize;
    fn mimalloc_usage(usage: *mut SmallUsage);
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

/// Held while an arena is added.
pub static GROWING: Lock = Lock::new();
static ARENAS: AtomicUsize = AtomicUsize::new(0);

/// Sets mimalloc's options and takes over its locks.
///
/// # Safety
/// The process has one thread, and mimalloc has given no block yet.
pub unsafe fn set_up(grain: usize) {
    // SAFETY:
    // - the caller's promise.
    unsafe {
        crate::locks::take_over();
        if let Some(clock) = clock() {
            mimalloc_clock = clock;
        }
    }
    ACCOUNT.small_records.store(&raw const mimalloc_small_records as u64, Relaxed);
    // SAFETY:
    // - the options are plain numbers in static memory; the caller's promise.
    unsafe {
        mimalloc_process = linux_raw::process_id();
        mimalloc_count_nodes();
        crate::sandbox::is_in_process();
        mimalloc_time_passes = time_passes;
        mi_option_set(OPTION_DISALLOW_OS_ALLOC, 1);
        // In KiB. Giving back less than a huge page would break it up.
        mi_option_set(OPTION_MINIMAL_PURGE_SIZE, (grain / 1024) as c_long);
        // A value that the user has set by MIMALLOC_PURGE_DELAY takes precedence.
        mi_option_set_default(OPTION_PURGE_DELAY, PURGE_MILLISECONDS);
    }
}

/// The number of arenas so far, for [`grow`].
pub fn arenas() -> usize {
    ARENAS.load(Relaxed)
}

/// Adds an arena that has room for a block of this size, unless another thread has added any since `seen`. False if
/// there is no memory.
pub fn grow(seen: usize, bytes: usize) -> bool {
    let is_new = GROWING.lock_unless(turn::holds_growing);
    let grown = ARENAS.load(Relaxed) != seen || map_again(bytes) || add_arena(bytes);
    if is_new {
        // SAFETY:
        // - this thread has locked it above.
        unsafe { GROWING.unlock() };
    }
    grown
}

/// Unmaps the free memory of arenas, whole huge pages only, after a mapping has failed: a limit of address space may be
/// reached, and a large block cannot come from an arena. Memory stays mapped if a mapping of `wanted` bytes would fail even
/// then: small blocks would get it back hole by hole. False if none was unmapped.
pub fn unmap_free(wanted: usize) -> bool {
    // SAFETY:
    // - mimalloc is set up, and this thread is not in it.
    let bytes = unsafe {
        if !may_be_mapped(wanted, mimalloc_free_whole(false)) {
            return false;
        }
        mimalloc_free_whole(true)
    };
    forget(ACCOUNT.mapped_used.fetch_sub(bytes as u64, Relaxed));
    bytes > 0
}

/// Ends the return of memory by another thread (`give_back.c`), in the child of a fork.
///
/// # Safety
/// The process has one thread.
pub unsafe fn forget_other_threads() {
    // SAFETY:
    // - the caller's promise.
    unsafe { mimalloc_forget_other_threads() };
    near_limit::forget_other_threads();
}

/// Maps memory again that [`unmap_free`] has unmapped, with room for a block of so many bytes; false if there is none.
fn map_again(bytes: usize) -> bool {
    // SAFETY:
    // - as in `unmap_free`.
    let bytes = unsafe { mimalloc_map_hole(bytes) };
    forget(ACCOUNT.mapped_used.fetch_add(bytes as u64, Relaxed));
    bytes > 0
}

/// Runs `ask` while all free memory can be found: a pass of another thread that returns memory to the kernel
/// (`give_back.c`) has claimed none. If `ask` gives null, memory for a block of so many bytes is mapped again and `ask` runs
/// again.
pub fn search(bytes: usize, ask: impl Fn() -> *mut c_void) -> *mut c_void {
    // SAFETY:
    // - mimalloc is set up, and this thread is not in it.
    unsafe { mimalloc_begin_search() };
    let mut block = ask();
    if block.is_null() && map_again(bytes) {
        block = ask();
    }
    // SAFETY:
    // - begun above.
    unsafe { mimalloc_end_search() };
    block
}

fn add_arena(bytes: usize) -> bool {
    let next = NextArena {
        so_far: ACCOUNT.arenas.load(Relaxed) as usize,
        pool: ACCOUNT.pool_taken.load(Relaxed) as usize,
        places: PLACES.saturating_sub(ARENAS.load(Relaxed)),
        // SAFETY:
        // - calculates, from sizes that are known since the start.
        least: unsafe { mimalloc_arena_for(bytes) },
    };
    next.places > 0
        && (arena_from_pool(|longest| next.on_pool(longest))
            || next.kernel_sizes().any(arena_from_kernel)
            || arena_from_pool(|longest| next.on_any_pool(longest)))
}

/// Adds an arena on the pool. `size` says how large, by the length of the longest free run; `None` for no arena.
fn arena_from_pool(size: impl Fn(usize) -> Option<usize>) -> bool {
    let node = current_node();
    let take = |large: &mut Large| {
        if large.pool.is_empty() || !LEAST_ARENA.is_multiple_of(large.pool.grain()) {
            return None;
        }
        let run = size(large.pool.longest_free())
            .and_then(|bytes| Some((large.pool.find(bytes, node, true, is_free)?, bytes)));
        let Some((start, bytes)) = run else {
            ACCOUNT.note(Shortage::UsedUp);
            return None;
        };
        let zero = large.pool.is_fresh(start, bytes);
        large.pool.mark(start, bytes, Grain::Used);
        Some((start, bytes, zero))
    };
    // SAFETY:
    // - `take` only acts on its argument.
    let found = unsafe { SHARED.with(take) };
    let Some((start, bytes, zero)) = found else { return false };
    // SAFETY:
    // - grains of the pool that were free and are marked as used above, without another user.
    // - `zero` says that they were never handed out.
    let taken = unsafe { give(start, bytes, true, zero, node as c_int) };
    if !taken {
        // SAFETY:
        // - the work only acts on its argument.
        unsafe { SHARED.with(|large| large.pool.mark(start, bytes, Grain::Returned)) };
    }
    taken
}

fn arena_from_kernel(bytes: usize) -> bool {
    // SAFETY:
    // - the work only acts on its argument.
    let grain = unsafe { SHARED.with(|large| large.grain()) };
    let bytes = bytes.next_multiple_of(grain);
    let mapped = mapped::map(bytes, grain).or_else(|| {
        // SAFETY:
        // - the work only acts on its argument.
        unsafe { SHARED.with(Large::drop_all_kept) };
        mapped::map(bytes, grain)
    });
    let Some(start) = mapped else { return false };
    // SAFETY:
    // - a new mapping of zero pages, of which nobody else knows.
    let taken = unsafe { give(start, bytes, false, true, -1) };
    if !taken {
        // SAFETY:
        // - mapped above, and mimalloc has not taken it.
        unsafe { mapped::give_back(start, bytes) };
    }
    taken
}

/// Returns memory that was free for long to the kernel, if it is time. Any call that concerns a large block comes here.
pub fn pass_by() {
    // SAFETY:
    // - mimalloc is set up before the first large block, and this thread is not in it.
    unsafe { mimalloc_pass_by() };
}

/// Returns free memory of arenas to the kernel, all but so many bytes; true if any was returned.
pub fn trim(kept: usize) -> bool {
    // SAFETY:
    // - mimalloc is set up, and this thread is not in it.
    unsafe { mimalloc_trim(kept) }
}

/// Sets the function that is called when arenas hold more memory.
///
/// # Safety
/// The process has one thread.
pub unsafe fn watch_growth(grew: extern "C" fn()) {
    // SAFETY:
    // - the caller's promise.
    unsafe { mimalloc_grew = grew };
}

/// Returns all free memory of arenas to the kernel, unless another thread does so at present.
pub fn return_all() {
    // SAFETY:
    // - mimalloc is set up; contents of blocks stay.
    unsafe { mimalloc_return_all() };
}

/// Puts at most so many huge pages of arenas with unused parts on ordinary pages.
pub fn break_up(most: usize) {
    // SAFETY:
    // - mimalloc is set up; contents of blocks stay.
    unsafe { mimalloc_break_up(most) };
}

/// Lets the kernel use huge pages again where [`break_up`] has prevented it; false if it was not possible now.
pub fn use_huge_pages() -> bool {
    // SAFETY:
    // - mimalloc is set up; contents of blocks stay.
    unsafe { mimalloc_use_huge_pages() }
}

/// Memory of small blocks; filled by `give_back.c`.
#[derive(Default)]
#[repr(C)]
pub struct SmallUsage {
    /// Bytes of blocks in use.
    pub live: usize,
    /// Bytes of the pages, in mimalloc's sense, in which the blocks are.
    pub pages: usize,
    /// Bytes of free memory that can be returned to the kernel.
    pub dirty: usize,
    /// Number of free blocks in those pages.
    pub free_blocks: usize,
}

impl SmallUsage {
    /// The memory in use now.
    pub fn now() -> Self {
        let mut usage = Self::default();
        // SAFETY:
        // - writes to nothing but the value, of which it is the only user.
        unsafe { mimalloc_usage(&mut usage) };
        usage
    }
}

/// Returns the memory of large blocks that were freed long ago to the kernel. Called by `give_back.c` now and then.
extern "C" fn time_passes() {
    // SAFETY:
    // - the work only acts on its argument.
    unsafe { SHARED.with(Large::give_back_the_old) };
    near_limit::time_passes();
}

/// Gives memory to mimalloc; false if it has not taken it.
///
/// # Safety
/// The range is mapped, readable and writable, all zero if `zero`, and in nobody's use. If mimalloc takes it, it is never
/// unmapped nor used otherwise.
unsafe fn give(start: usize, bytes: usize, pinned: bool, zero: bool, node: c_int) -> bool {
    // SAFETY:
    // - the caller's promise.
    let taken = unsafe {
        mi_manage_os_memory_ex(start as *mut c_void, bytes, true, pinned, zero, node, false, core::ptr::null_mut())
    };
    if taken {
        ARENAS.fetch_add(1, Relaxed);
        forget(ACCOUNT.arenas.fetch_add(bytes as u64, Relaxed));
    }
    taken
}
