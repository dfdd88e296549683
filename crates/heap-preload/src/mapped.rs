//! Memory beside the pool: aligned to transparent huge pages and advised for them. Where the kernel has none to give it
//! uses ordinary pages by itself.

use crate::ACCOUNT;
use crate::forget;
use crate::sys::{advise, map_anywhere, unmap};
use core::ffi::c_void;
use core::sync::atomic::Ordering::Relaxed;

/// Maps `bytes`, a multiple of `align`'s base page, at a multiple of `align`. All zero.
pub fn map(bytes: usize, align: usize) -> Option<usize> {
    let start = map_aligned(bytes, align, false)?;
    // SAFETY:
    // - mapped just now; the advice keeps contents.
    unsafe { advise(start, bytes, libc::MADV_HUGEPAGE) };
    forget(ACCOUNT.mapped_used.fetch_add(bytes as u64, Relaxed));
    Some(start)
}

/// Gives back what [`map`] gave, or a part of it.
///
/// # Safety
/// The range consists of whole pages that [`map`] or [`grow`] gave, or that have taken the place of pool pages, and
/// nothing uses it any more.
pub unsafe fn give_back(start: usize, bytes: usize) {
    // SAFETY:
    // - the caller's promise.
    unsafe { unmap(start, bytes) };
    forget(ACCOUNT.mapped_used.fetch_sub(bytes as u64, Relaxed));
}

fn map_aligned(bytes: usize, align: usize, reserve_only: bool) -> Option<usize> {
    // Since Linux 6.7 large mappings come aligned to huge pages by themselves.
    let start = map_anywhere(bytes, reserve_only, 0)?;
    if start.is_multiple_of(align) {
        return Some(start);
    }
    // SAFETY:
    // - mapped just now, and nobody knows of it.
    unsafe { unmap(start, bytes) };
    let wide = bytes.checked_add(align)?;
    let start = map_anywhere(wide, reserve_only, 0)?;
    let aligned = start.next_multiple_of(align);
    // SAFETY:
    // - both are parts of what was mapped just now, beside what is handed out.
    unsafe {
        unmap(start, aligned - start);
        unmap(aligned + bytes, start + wide - aligned - bytes);
    }
    Some(aligned)
}

/// Makes a mapping longer, where it is or elsewhere: page tables move, contents do not. Its new address.
///
/// # Safety
/// The range is what [`map`] or this function gave, with this length, and where the address changes nobody uses the old
/// one any more.
pub unsafe fn grow(start: usize, old: usize, new: usize, align: usize) -> Option<usize> {
    // SAFETY:
    // - the caller's promise; without MREMAP_MAYMOVE the mapping stays where it is.
    let in_place = unsafe { libc::mremap(start as *mut c_void, old, new, 0) };
    let moved = if in_place != libc::MAP_FAILED {
        start
    } else {
        let place = map_aligned(new, align, true)?;
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        // SAFETY:
        // - the target was just reserved by us and nothing uses it; the caller's promise for the old range.
        let moved = unsafe { libc::mremap(start as *mut c_void, old, new, flags, place as *mut c_void) };
        if moved == libc::MAP_FAILED {
            // SAFETY:
            // - reserved above, and nobody knows of it.
            unsafe { unmap(place, new) };
            return None;
        }
        place
    };
    forget(ACCOUNT.mapped_used.fetch_add((new - old) as u64, Relaxed));
    Some(moved)
}
