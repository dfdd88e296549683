//! Makes memory zero that comes back to someone who wants it so, by the cheapest way for how it was used: given to the
//! kernel again where it was not touched, cleared in place where it was used throughout, and where only a few places were
//! touched, given back and put on ordinary pages, since the next use will most likely touch a few places only, and each
//! of those would cost a whole huge page.

use crate::sys::{advise, base_page, clear};
use core::ffi::c_void;

/// How a mapping was seen to be used, when it came back.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Density {
    /// On huge pages; nothing is known.
    Unknown,
    /// On huge pages and used throughout; it has been cleared since.
    Cleared,
    /// Few places were touched: it is on ordinary pages.
    Sparse,
    /// It was thought to be sparse and was not: it stays on huge pages.
    Dense,
}

impl Density {
    /// For memory that need not be zero: on huge pages again.
    ///
    /// # Safety
    /// The range is a mapping of this heap that nobody holds.
    pub unsafe fn for_any_use(self, start: usize, bytes: usize) -> Self {
        if self == Self::Sparse {
            // SAFETY:
            // - the caller's promise.
            unsafe {
                advise(start, bytes, libc::MADV_HUGEPAGE);
                advise(start, bytes, libc::MADV_DONTNEED);
            }
            return Self::Unknown;
        }
        self
    }
}

/// Places of a block that are looked at, each a cache line, and how many tell whether it was touched at all.
const SAMPLES: usize = 64;
const FIRST_SAMPLES: usize = 3;
const LINE: usize = 64;
/// So many of them are not zero in a block that was used throughout.
const DENSE: usize = SAMPLES / 16;
/// Of memory that is always resident more must be in use for clearing to be the cheaper way.
const DENSE_IN_POOL: usize = SAMPLES / 4;
/// So many of them are resident in a block on ordinary pages that is not sparse.
const DENSELY_RESIDENT: usize = SAMPLES / 4;

/// Pages that one question to the kernel is about.
const PAGES_ASKED: usize = 1024;

/// Makes a kept mapping zero; how it is now thought to be used.
///
/// # Safety
/// The range is a mapping of this heap that nobody holds.
pub unsafe fn clean(start: usize, bytes: usize, density: Density) -> Density {
    // SAFETY:
    // - the caller's promise.
    unsafe {
        let seen = observe(start, bytes, density);
        if seen.used_throughout {
            clear_what_is_resident(start, bytes);
        } else {
            give_back(start, bytes);
        }
        seen.becomes(start, bytes)
    }
}

/// Gives a mapping's memory back, which makes it zero; how it is now thought to be used. `None` where the kernel does
/// not take it.
///
/// # Safety
/// As for [`clean`].
pub unsafe fn give_back_at_once(start: usize, bytes: usize, density: Density) -> Option<Density> {
    // SAFETY:
    // - the caller's promise.
    unsafe {
        let seen = observe(start, bytes, density);
        advise(start, bytes, libc::MADV_DONTNEED).then(|| seen.becomes(start, bytes))
    }
}

struct Seen {
    before: Density,
    now: Density,
    used_throughout: bool,
}

/// # Safety
/// As for [`clean`].
unsafe fn observe(start: usize, bytes: usize, before: Density) -> Seen {
    let page = base_page();
    let resident = |offset: &usize| is_resident(start + offset / page * page, page);
    let ends = [0, bytes - page];
    if !ends.iter().any(resident) && !samples(bytes).take(FIRST_SAMPLES).any(|offset| resident(&offset)) {
        return Seen { before, now: before, used_throughout: false };
    }
    if before == Density::Sparse {
        let dense = samples(bytes).filter(resident).count() >= DENSELY_RESIDENT;
        let now = if dense { Density::Dense } else { Density::Sparse };
        return Seen { before, now, used_throughout: false };
    }
    // SAFETY:
    // - the caller's promise; samples are lines of the range.
    let is_used = |&offset: &usize| unsafe { is_used(start + offset) };
    let used = samples(bytes).filter(resident).filter(is_used).count();
    let now = match before {
        Density::Dense => Density::Dense,
        _ if used >= DENSE => Density::Cleared,
        // Cleared before, and not used since: that need not be cleared again and again.
        Density::Cleared if used == 0 => Density::Unknown,
        _ => Density::Sparse,
    };
    Seen { before, now, used_throughout: used >= DENSE }
}

impl Seen {
    /// Has the mapping's next pages come in the size that fits.
    ///
    /// # Safety
    /// As for [`clean`].
    unsafe fn becomes(self, start: usize, bytes: usize) -> Density {
        let advice = match (self.before == Density::Sparse, self.now == Density::Sparse) {
            (false, true) => Some(libc::MADV_NOHUGEPAGE),
            (true, false) => Some(libc::MADV_HUGEPAGE),
            _ => None,
        };
        if let Some(advice) = advice {
            // SAFETY:
            // - the caller's promise; the advice keeps contents.
            unsafe { advise(start, bytes, advice) };
        }
        self.now
    }
}

/// Looks at a few places of resident memory. Decides which way is cheaper, and nothing else.
///
/// # Safety
/// The range is readable memory of this heap that nobody holds.
pub unsafe fn is_dense_in_pool(start: usize, bytes: usize) -> bool {
    // SAFETY:
    // - the caller's promise; samples are lines of the range.
    let is_used = |&offset: &usize| unsafe { is_used(start + offset) };
    samples(bytes).filter(is_used).take(DENSE_IN_POOL).count() == DENSE_IN_POOL
}

/// Offsets of lines all over a block, without a pattern that a program's own might meet.
fn samples(bytes: usize) -> impl Iterator<Item = usize> {
    let lines = (bytes / LINE) as u128;
    // An even spread: multiples of the golden ratio.
    (1..=SAMPLES as u64).map(move |n| {
        let part = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        ((u128::from(part) * lines) >> 64) as usize * LINE
    })
}

/// True where any of a line is not zero.
///
/// # Safety
/// The line is readable, aligned to its own size, and nobody writes to it.
unsafe fn is_used(line: usize) -> bool {
    // SAFETY:
    // - the caller's promise.
    let words = unsafe { &*(line as *const [u64; LINE / size_of::<u64>()]) };
    words.iter().any(|&word| word != 0)
}

/// # Safety
/// As for [`clean`].
unsafe fn give_back(start: usize, bytes: usize) {
    // SAFETY:
    // - the caller's promise.
    unsafe {
        // Locked memory (mlock) is not given back that way.
        if !advise(start, bytes, libc::MADV_DONTNEED) {
            clear(start, bytes);
        }
    }
}

/// Clears what is resident and gives back the rest, which may have been swapped out.
///
/// # Safety
/// As for [`clean`].
unsafe fn clear_what_is_resident(start: usize, bytes: usize) {
    let step = PAGES_ASKED * base_page();
    for offset in (0..bytes).step_by(step) {
        let length = step.min(bytes - offset);
        // SAFETY:
        // - the caller's promise, for a part of the range.
        unsafe {
            if is_resident(start + offset, length) || !advise(start + offset, length, libc::MADV_DONTNEED) {
                clear(start + offset, length);
            }
        }
    }
}

/// True where any page of the range is in memory, or the kernel does not say.
fn is_resident(start: usize, bytes: usize) -> bool {
    let mut pages = [0u8; PAGES_ASKED];
    assert!(bytes <= PAGES_ASKED * base_page());
    // SAFETY:
    // - the range has at most as many pages as the answer has room for; of the range itself nothing is touched.
    let failed = unsafe { libc::mincore(start as *mut c_void, bytes, pages.as_mut_ptr()) } != 0;
    failed || pages[..bytes / base_page()].iter().any(|page| page & 1 != 0)
}
