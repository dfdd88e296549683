//! Zeroes a kept mapping before it is handed out again, by the method that is cheapest for how it was used. Untouched
//! memory is given back to the kernel. Memory that was used throughout is cleared in place. Memory of which only a few
//! places were touched is given back and put on ordinary pages: its next use most likely touches a few places only, and
//! each of them would take a whole huge page. Once it is there its few pages are cleared in place: to give them back would
//! interrupt the other CPUs at every use, and cost faults besides.

use crate::swap;
use crate::sys::{advise, base_page, clear};
use core::ffi::c_void;
use core::sync::atomic::{AtomicBool, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

/// How densely a mapping was used, as seen when it was freed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Density {
    /// On huge pages; nothing is known.
    Unknown,
    /// On huge pages and used throughout; it has been cleared since.
    Cleared,
    /// Few places were touched: it is on ordinary pages.
    Sparse,
    /// It was classified as sparse and was not: it stays on huge pages.
    Dense,
}

impl Density {
    /// Puts memory that need not be zero on huge pages again, and returns its new density.
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

/// Number of places of a block that are sampled, each a cache line; the first [`FIRST_SAMPLES`] decide whether it was
/// touched at all.
const SAMPLES: usize = 64;
const FIRST_SAMPLES: usize = 3;
const LINE: usize = 64;
/// Number of samples that are not zero from which a block counts as used throughout.
const DENSE: usize = SAMPLES / 16;
/// Like [`DENSE`], for pool memory: that is always resident, so that clearing is cheaper only if more is in use.
const DENSE_IN_POOL: usize = SAMPLES / 4;
/// Number of resident samples from which a block on ordinary pages does not count as sparse.
const DENSELY_RESIDENT: usize = SAMPLES / 4;

/// Number of resident samples from which a block on ordinary pages is given back as a whole, so that pages which are touched
/// here and there do not add up.
const FEW_RESIDENT: usize = SAMPLES / 16;
/// Runs of pages, resident and not, among [`PAGES_ASKED`] from which on all of these are given back by one call.
const MOST_RUNS: usize = 32;

/// Number of pages that one mincore(2) asks for.
const PAGES_ASKED: usize = 1024;

/// Zeroes a kept mapping and returns its new density.
///
/// # Safety
/// The range is a mapping of this heap that nobody holds.
pub unsafe fn clean(start: usize, bytes: usize, density: Density) -> Density {
    // SAFETY:
    // - the caller's promise.
    unsafe {
        let seen = observe(start, bytes, density);
        match seen.amount {
            Amount::Throughout => clear_what_is_resident(start, bytes),
            Amount::Few => clear_few_pages(start, bytes),
            Amount::Other => give_back(start, bytes),
        }
        seen.becomes(start, bytes)
    }
}

/// Gives a mapping's memory back, which zeroes it, and returns its new density; `None` if the kernel does not take it.
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
    amount: Amount,
}

/// How much of a block is to be zeroed.
enum Amount {
    /// It was used throughout.
    Throughout,
    /// Few of its ordinary pages are resident.
    Few,
    /// Nothing, or more than a few pages, but not throughout.
    Other,
}

/// # Safety
/// As for [`clean`].
unsafe fn observe(start: usize, bytes: usize, before: Density) -> Seen {
    let page = base_page();
    let resident = |offset: &usize| is_resident(start + offset / page * page);
    let ends = [0, bytes - page];
    if !ends.iter().any(resident) && !samples(bytes).take(FIRST_SAMPLES).any(|offset| resident(&offset)) {
        return Seen { before, now: before, amount: Amount::Other };
    }
    if before == Density::Sparse {
        let found = samples(bytes).filter(resident).count();
        let now = if found >= DENSELY_RESIDENT { Density::Dense } else { Density::Sparse };
        return Seen { before, now, amount: if found < FEW_RESIDENT { Amount::Few } else { Amount::Other } };
    }
    // SAFETY:
    // - the caller's promise; samples are lines of the range.
    let is_used = |&offset: &usize| unsafe { is_used(start + offset) };
    let used = samples(bytes).filter(resident).filter(is_used).count();
    let now = match before {
        Density::Dense => Density::Dense,
        _ if used >= DENSE => Density::Cleared,
        // It was cleared before and not used since: it is not cleared again.
        Density::Cleared if used == 0 => Density::Unknown,
        _ => Density::Sparse,
    };
    Seen { before, now, amount: if used >= DENSE { Amount::Throughout } else { Amount::Other } }
}

impl Seen {
    /// Advises the kernel to back the mapping by pages of the size that fits from now on.
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

/// True if resident memory is used densely, by samples. The result only decides which method is cheaper.
///
/// # Safety
/// The range is readable memory of this heap that nobody holds.
pub unsafe fn is_dense_in_pool(start: usize, bytes: usize) -> bool {
    // SAFETY:
    // - the caller's promise; samples are lines of the range.
    let is_used = |&offset: &usize| unsafe { is_used(start + offset) };
    samples(bytes).filter(is_used).take(DENSE_IN_POOL).count() == DENSE_IN_POOL
}

/// Offsets of lines spread over a block, without a regular stride, which could coincide with the program's own.
fn samples(bytes: usize) -> impl Iterator<Item = usize> {
    let lines = (bytes / LINE) as u128;
    // An even spread: multiples of the golden ratio.
    (1..=SAMPLES as u64).map(move |n| {
        let part = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        ((u128::from(part) * lines) >> 64) as usize * LINE
    })
}

/// True if any byte of the line is not zero.
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
        // MADV_DONTNEED does not take locked memory (mlock).
        if !advise(start, bytes, libc::MADV_DONTNEED) {
            clear(start, bytes);
        }
    }
}

/// Clears what is resident and gives back the rest, where it may have been swapped out.
///
/// # Safety
/// As for [`clean`].
unsafe fn clear_what_is_resident(start: usize, bytes: usize) {
    let step = PAGES_ASKED * base_page();
    for offset in (0..bytes).step_by(step) {
        let length = step.min(bytes - offset);
        let part = Residence::of(start + offset, length);
        // SAFETY:
        // - the caller's promise, for a part of the range.
        unsafe {
            if part.is_any() || !part.others_are_empty && !advise(start + offset, length, libc::MADV_DONTNEED) {
                clear(start + offset, length);
            }
        }
    }
}

/// Clears the resident pages of a block that has few of them, and gives back what lies between them, where it may have been
/// swapped out. That interrupts no other CPU, since no page is mapped there, unless another thread makes such a call at the
/// same time (`mm_tlb_flush_nested` in mm/mmu_gather.c): therefore one thread at a time.
///
/// # Safety
/// As for [`clean`].
unsafe fn clear_few_pages(start: usize, bytes: usize) {
    let (page, step) = (base_page(), PAGES_ASKED * base_page());
    for offset in (0..bytes).step_by(step) {
        let (begin, length) = (start + offset, step.min(bytes - offset));
        let part = Residence::of(begin, length);
        let _turn = (!part.others_are_empty).then(Turn::take);
        if !part.is_known || part.runs().take(MOST_RUNS).count() == MOST_RUNS {
            // SAFETY:
            // - the caller's promise, for a part of the range.
            unsafe { give_back(begin, length) };
            continue;
        }
        let mut at = begin;
        for run in part.runs() {
            let length = run.len() * page;
            // SAFETY:
            // - the caller's promise, for a part of the range.
            unsafe {
                match run[0] & 1 == 1 {
                    true => clear(at, length),
                    false if part.others_are_empty => {}
                    false => give_back(at, length),
                }
            }
            at += length;
        }
    }
}

/// Which pages of a part of a block are resident (mincore(2)).
struct Residence {
    pages: [u8; PAGES_ASKED],
    /// Number of pages of the part.
    count: usize,
    /// False if the kernel does not tell.
    is_known: bool,
    /// What is not resident holds nothing: it cannot have been swapped out.
    others_are_empty: bool,
}

impl Residence {
    /// Asks the kernel about whole pages, at most [`PAGES_ASKED`].
    fn of(start: usize, bytes: usize) -> Self {
        let mut pages = [0u8; PAGES_ASKED];
        assert!(bytes <= PAGES_ASKED * base_page());
        // Asked before and after: neither the first nor the last space for swapping comes and goes in between.
        let was_without_swap = swap::is_absent();
        // SAFETY:
        // - the range has at most as many pages as the answer has room for; of the range itself nothing is touched.
        let is_known = unsafe { libc::mincore(start as *mut c_void, bytes, pages.as_mut_ptr()) } == 0;
        let others_are_empty = is_known && was_without_swap && swap::is_absent();
        Self { pages, count: bytes / base_page(), is_known, others_are_empty }
    }

    /// True if any page is resident, or if the kernel does not tell.
    fn is_any(&self) -> bool {
        !self.is_known || self.pages[..self.count].iter().any(|page| page & 1 != 0)
    }

    /// The pages in runs, resident ones and others.
    fn runs(&self) -> impl Iterator<Item = &[u8]> {
        self.pages[..self.count].chunk_by(|a, b| a & 1 == b & 1)
    }
}

static IS_TAKEN: AtomicBool = AtomicBool::new(false);

/// A turn of [`clear_few_pages`]. It is no lock: who waits in vain goes on, beside one that was preempted, or after a fork
/// that has not taken the holder along.
struct Turn {
    is_own: bool,
}

impl Turn {
    /// Number of looks before going on, some tens of microseconds.
    const LOOKS: usize = 2000;

    fn take() -> Self {
        for _ in 0..Self::LOOKS {
            if IS_TAKEN.compare_exchange_weak(false, true, Acquire, Relaxed).is_ok() {
                return Self { is_own: true };
            }
            core::hint::spin_loop();
        }
        Self { is_own: false }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if self.is_own {
            IS_TAKEN.store(false, Release);
        }
    }
}

/// True if the page is resident, or if the kernel does not tell.
fn is_resident(page: usize) -> bool {
    let mut answer = 0u8;
    // SAFETY:
    // - one page, for which the answer has room; of the page itself nothing is touched.
    let failed = unsafe { libc::mincore(page as *mut c_void, base_page(), &raw mut answer) } != 0;
    failed || answer & 1 != 0
}
