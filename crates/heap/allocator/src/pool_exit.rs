//! Leaving the pool: the heap's contents move to transparent huge pages at the same addresses, and unused pages are given
//! back. The process itself does this while all its other threads are stopped, or its child does.

use crate::large::Large;
use crate::memory::available;
use crate::stop::stop_others;
use crate::sys::{advise, base_page, copy, fill_hole, map_anywhere, move_to, unmap};
use crate::{ACCOUNT, forget, kernel_writes};
use core::sync::atomic::Ordering::Relaxed;
use heap_abi::Shortage;

/// Result of [`leave_pool`].
pub enum PoolExit {
    /// The heap has left the pool.
    Left,
    /// The heap is still on the pool: the kernel, or a thread that cannot be stopped, may be writing to it. Only a child
    /// can leave.
    MayBeWrittenTo,
    /// The heap is still on the pool: outside of the pool there is not enough memory for its contents.
    Failed,
}

/// Moves the heap off the pool, while all other threads are stopped.
pub fn leave_pool(large: &mut Large) -> PoolExit {
    if large.pool.is_empty() {
        return PoolExit::Left;
    }
    if available().is_some_and(|bytes| bytes < ACCOUNT.pool_used.load(Relaxed)) {
        return PoolExit::Failed;
    }
    // Checked before, since the kernel's workers do not stop, and again once no thread runs that could start a read.
    if kernel_writes::may_be_under_way() {
        return PoolExit::MayBeWrittenTo;
    }
    let Some(_stopped) = stop_others() else { return PoolExit::MayBeWrittenTo };
    if kernel_writes::may_be_under_way() {
        return PoolExit::MayBeWrittenTo;
    }
    // SAFETY:
    // - `_stopped` keeps all other threads stopped until it is dropped.
    if unsafe { leave_all_pages(large) } { PoolExit::Left } else { PoolExit::Failed }
}

/// Moves the heap off the pool in a child, which shares its pages with the parent; false if memory is short.
///
/// # Safety
/// The process has one thread.
pub unsafe fn child_leaves_pool(large: &mut Large) -> bool {
    // SAFETY:
    // - the caller's promise: no other thread exists.
    unsafe { leave_all_pages(large) }
}

/// # Safety
/// No other thread runs until this returns.
unsafe fn leave_all_pages(large: &mut Large) -> bool {
    // SAFETY:
    // - `dissolve` gives whole pages of the pool's mapping, and says whether anything in them is handed out; no other
    //   thread runs, by the caller's promise.
    let done = large.pool.dissolve(|start, bytes, used| unsafe { leave_page(start, bytes, used) });
    if done && ACCOUNT.pool_taken.load(Relaxed) > 0 {
        forget(ACCOUNT.mapped_used.fetch_add(ACCOUNT.pool_used.swap(0, Relaxed), Relaxed));
        ACCOUNT.pool_taken.store(0, Relaxed);
        ACCOUNT.note(Shortage::Forked);
    }
    done
}

/// True if the pool has as many free pages as the heap uses. Gives back the pages that the heap does not use if that is
/// needed.
pub fn make_room_for_copies(large: &mut Large) -> bool {
    if large.pool.has_room_for_copies() {
        return true;
    }
    let mut given_back = 0;
    large.pool.dissolve(|start, bytes, used| {
        if !used {
            // SAFETY:
            // - `dissolve` gives whole pages of the pool's mapping, and nothing in this one is handed out.
            unsafe { unmap(start, bytes) };
            given_back += bytes as u64;
        }
        !used
    });
    if given_back == 0 {
        return false;
    }
    forget(ACCOUNT.pool_taken.fetch_sub(given_back, Relaxed));
    ACCOUNT.note(Shortage::SpentOnFork);
    large.pool.has_room_for_copies()
}

/// Moves the contents of a pool page to transparent huge pages at the same address, or gives an unused one back.
///
/// # Safety
/// It is a whole page of the pool's mapping. Nothing in it is handed out unless it is `used`, and no other thread runs
/// until this returns.
unsafe fn leave_page(start: usize, bytes: usize, used: bool) -> bool {
    if !used {
        // SAFETY:
        // - the caller's promise: nothing in this page is handed out.
        unsafe { unmap(start, bytes) };
        return true;
    }
    let Some(new) = map_anywhere(bytes, false, 0) else { return false };
    let aligned = new.is_multiple_of(bytes);
    let new = if aligned {
        new
    } else {
        // SAFETY:
        // - the mapping is new and has no other user.
        unsafe { unmap(new, bytes) };
        let Some(wide) = map_anywhere(bytes * 2, false, 0) else { return false };
        let inside = wide.next_multiple_of(bytes);
        // SAFETY:
        // - as above, beside the part that is kept.
        unsafe {
            unmap(wide, inside - wide);
            unmap(inside + bytes, wide + bytes - inside);
        }
        inside
    };
    // SAFETY:
    // - mapped above; the advice keeps contents.
    unsafe { advise(new, bytes, libc::MADV_HUGEPAGE) };
    let page = base_page();
    for offset in (0..bytes).step_by(page) {
        // SAFETY:
        // - a page of the pool, which is resident, and of the new mapping, both as long; no other thread runs, by the
        //   caller's promise.
        unsafe {
            if !is_zero(start + offset, page) {
                copy(start + offset, new + offset, page);
            }
        }
    }
    // SAFETY:
    // - both ranges are this heap's, of the same length, and hold the same bytes; no other thread runs, by the caller's
    //   promise.
    if unsafe { move_to(new, bytes, bytes, start) } {
        return true;
    }
    // The kernel may have removed the page before it refused to move the other one there.
    let is_filled = fill_hole(start, bytes);
    // SAFETY:
    // - `start` was just mapped if it is filled, and nobody uses it as long as no other thread runs.
    // - `new` is mapped above, without another user.
    unsafe {
        if is_filled {
            advise(start, bytes, libc::MADV_HUGEPAGE);
            copy(new, start, bytes);
        }
        unmap(new, bytes);
    }
    is_filled
}

/// # Safety
/// The range is readable, aligned to a page, and nobody writes to it.
unsafe fn is_zero(start: usize, bytes: usize) -> bool {
    // SAFETY:
    // - the caller's promise.
    let words = unsafe { core::slice::from_raw_parts(start as *const u64, bytes / 8) };
    words.iter().all(|&word| word == 0)
}
