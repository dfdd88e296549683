//! Memory outside of the pool, aligned to transparent huge pages and advised for them. The kernel falls back to ordinary
//! pages by itself.

use crate::ACCOUNT;
use crate::forget;
use crate::sys::{Resized, advise, make_usable, map_anywhere, move_to, resize_in_place, unlock, unmap};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Bytes of addresses that refused moves have left, mapped or free: this cannot be found out. Beyond [`MOST_LEFT`] no mapping is
/// moved.
static LEFT: AtomicU64 = AtomicU64::new(0);
const MOST_LEFT: u64 = 1 << 30;

/// Maps `bytes`, a multiple of `align`'s base page, at a multiple of `align`. All zero.
pub fn map(bytes: usize, align: usize) -> Option<usize> {
    let start = map_aligned(bytes, align, false)?;
    // SAFETY:
    // - mapped just now; the advice keeps contents.
    unsafe { advise(start, bytes, libc::MADV_HUGEPAGE) };
    forget(ACCOUNT.mapped_used.fetch_add(bytes as u64, Relaxed));
    Some(start)
}

/// Unmaps all or a part of mappings made by [`map`]. If the kernel cannot unmap it (see [`unmap`]), only its memory is
/// returned.
///
/// # Safety
/// The range consists of whole pages that [`map`] or [`grow`] gave, or that have taken the place of pool pages, and
/// nothing uses it any more.
pub unsafe fn give_back(start: usize, bytes: usize) {
    // SAFETY:
    // - the caller's promise.
    unsafe {
        if !unmap(start, bytes) {
            advise(start, bytes, libc::MADV_DONTNEED);
        }
    }
    forget(ACCOUNT.mapped_used.fetch_sub(bytes as u64, Relaxed));
}

/// Like [`give_back`], but false, without any change, if the kernel cannot unmap the range.
///
/// # Safety
/// As for [`give_back`].
pub unsafe fn give_back_addresses(start: usize, bytes: usize) -> bool {
    // SAFETY:
    // - the caller's promise.
    let is_unmapped = unsafe { unmap(start, bytes) };
    if is_unmapped {
        forget(ACCOUNT.mapped_used.fetch_sub(bytes as u64, Relaxed));
    }
    is_unmapped
}

fn map_aligned(bytes: usize, align: usize, reserve_only: bool) -> Option<usize> {
    // Since Linux 6.7 large mappings come aligned to huge pages by themselves.
    let start = map_anywhere(bytes, reserve_only, 0)?;
    if start.is_multiple_of(align) {
        return Some(start);
    }
    // SAFETY:
    // - the mapping is new and has no other user.
    unsafe { unmap(start, bytes) };
    let wide = bytes.checked_add(align)?;
    let start = map_anywhere(wide, reserve_only, 0)?;
    let aligned = start.next_multiple_of(align);
    // SAFETY:
    // - both are parts of the new mapping, outside the part that is handed out.
    unsafe {
        unmap(start, aligned - start);
        unmap(aligned + bytes, start + wide - aligned - bytes);
    }
    Some(aligned)
}

/// Makes a mapping longer, in place or at another address, and returns its address. Page tables move; contents are not
/// copied.
///
/// mremap(2) unmaps the place before it looks whether there is memory for the rest. If it fails then, other threads may map
/// their memory there, so that the place must not be unmapped again. The same memory is therefore asked for before, which
/// fails without a change. A move that is refused all the same leaves the place as it is.
///
/// # Safety
/// [`map`] or this function returned the range, with this length. If the address changes, nobody uses the old one any
/// more.
pub unsafe fn grow(start: usize, old: usize, new: usize, align: usize) -> Option<usize> {
    // SAFETY:
    // - the caller's promise; the mapping becomes longer.
    let resized = unsafe { resize_in_place(start, old, new) };
    let moved = if resized == Resized::Done {
        start
    } else if resized == Resized::Refused || LEFT.load(Relaxed) > MOST_LEFT {
        return None;
    } else {
        let place = map_aligned(new, align, true)?;
        // SAFETY:
        // - reserved above, without another user; the caller's promise for the old range.
        unsafe {
            // After mlockall(2) with MCL_FUTURE the kernel would fill it with pages.
            unlock(place, new);
            if !make_usable(place, new - old) {
                unmap(place, new);
                return None;
            }
            if !move_to(start, old, new, place) {
                forget(LEFT.fetch_add(new as u64, Relaxed));
                return None;
            }
        }
        place
    };
    forget(ACCOUNT.mapped_used.fetch_add((new - old) as u64, Relaxed));
    Some(moved)
}
