//! Zeroes a kept mapping before it is handed out again, by the cheapest method for its past use. Untouched memory is
//! returned to the kernel. Memory that was used throughout is cleared in place. If only a few places were touched, the
//! memory is returned and put on ordinary pages: its next use probably touches a few places again, and each would take
//! a whole huge page. Later its few pages are cleared in place, because returning them would interrupt the other CPUs
//! at every use, and cause page faults. A large block that is nearly untouched is still returned if the process has one
//! thread: finding its pages costs more.

use crate::sandbox;
use crate::swap;
use crate::sys::{advise, base_page, clear, residence};
use crate::threads;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

/// The density of a mapping's use, determined when it was freed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Density {
    /// On huge pages; nothing is known.
    Unknown,
    /// On huge pages and used throughout; it has been cleared since.
    Cleared,
    /// Few places were touched: it is on ordinary pages.
    Sparse,
    /// Like [`Density::Sparse`], for a large block of which hardly a page was touched at the last check of its pages.
    NearlyUntouched,
    /// It was classified as sparse and was not: it stays on huge pages.
    Dense,
}

impl Density {
    /// Puts memory that need not be zero on huge pages again, and returns its new density.
    ///
    /// # Safety
    /// The range is a mapping of this heap that nobody holds.
    pub unsafe fn for_any_use(self, start: usize, bytes: usize) -> Self {
        if self.is_on_ordinary_pages() {
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

    fn is_on_ordinary_pages(self) -> bool {
        matches!(self, Self::Sparse | Self::NearlyUntouched)
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
/// Divisor of a block's pages: with at least this share resident, a block on ordinary pages does not count as sparse.
const DENSELY_RESIDENT: usize = 4;

/// Divisor of a part's pages: with less than this share resident, a part is returned as a whole, so that scattered
/// touched pages do not add up.
const FEW_RESIDENT: usize = 16;
/// Runs of pages, resident and not, of a part from which on it is given back by one call.
const MOST_RUNS: usize = 32;

/// Number of pages for one mincore(2). The kernel copies its answer in pieces of this many bytes, and the answer is on
/// the stack of the allocating thread.
const PAGES_ASKED: usize = 4096;

/// Number of resident pages up to which a block counts as [`Density::NearlyUntouched`].
const HARDLY_A_PAGE: usize = 8;
/// The pages of a nearly untouched block are checked again at one use in this many.
const LOOKED_AT: u32 = 16;

/// Zeroes a kept mapping and returns its new density.
///
/// # Safety
/// The range is a mapping of this heap that nobody holds.
pub unsafe fn clean(start: usize, bytes: usize, density: Density) -> Density {
    // SAFETY:
    // - the caller's promise.
    unsafe {
        if density == Density::NearlyUntouched && give_back_unseen(start, bytes) {
            return density;
        }
        // The kernel is not asked which pages are resident then.
        if density.is_on_ordinary_pages() && sandbox::is_entered() {
            give_back(start, bytes);
            return density;
        }
        let seen = if density.is_on_ordinary_pages() {
            Seen::of_sparse(clear_few_pages(start, bytes), bytes)
        } else {
            observe(start, bytes, density)
        };
        match seen.amount {
            Amount::Nothing => {}
            Amount::Throughout => clear_what_is_resident(start, bytes),
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
        if density.is_on_ordinary_pages() && sandbox::is_entered() {
            return advise(start, bytes, libc::MADV_DONTNEED).then_some(density);
        }
        let seen = if density.is_on_ordinary_pages() {
            Seen::of_sparse(resident_pages(start, bytes), bytes)
        } else {
            observe(start, bytes, density)
        };
        advise(start, bytes, libc::MADV_DONTNEED).then(|| seen.becomes(start, bytes))
    }
}

/// Returns a mapping that seems untouched to the kernel, without a check of each page: checking a large block takes
/// many calls, which cost more than a few page faults. Returns false, and does nothing, if the block was touched, if
/// its pages are due for a check, if other threads would be interrupted, or if the kernel refuses.
///
/// # Safety
/// As for [`clean`].
unsafe fn give_back_unseen(start: usize, bytes: usize) -> bool {
    static USES: AtomicU32 = AtomicU32::new(0);
    let is_due = USES.fetch_add(1, Relaxed).is_multiple_of(LOOKED_AT);
    if is_due || !threads::is_only_one() {
        return false;
    }
    let page = base_page();
    let is_touched = samples(bytes).take(FIRST_SAMPLES).any(|offset| is_resident(start + offset / page * page));
    // SAFETY:
    // - the caller's promise.
    !is_touched && unsafe { advise(start, bytes, libc::MADV_DONTNEED) }
}

struct Seen {
    before: Density,
    now: Density,
    amount: Amount,
}

/// The part of a block that must be zeroed.
enum Amount {
    /// It has been.
    Nothing,
    /// It was used throughout.
    Throughout,
    /// It was used in places, or not at all.
    Other,
}

/// Determines the past use of a block on huge pages.
///
/// # Safety
/// As for [`clean`].
unsafe fn observe(start: usize, bytes: usize, before: Density) -> Seen {
    let page = base_page();
    let resident = |offset: &usize| is_resident(start + offset / page * page);
    let ends = [0, bytes - page];
    if !ends.iter().any(resident) && !samples(bytes).take(FIRST_SAMPLES).any(|offset| resident(&offset)) {
        return Seen { before, now: before, amount: Amount::Other };
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
    /// A block on ordinary pages with this number of resident pages.
    fn of_sparse(resident: usize, bytes: usize) -> Self {
        let pages = bytes / base_page();
        let now = match resident {
            _ if resident >= pages / DENSELY_RESIDENT => Density::Dense,
            // One call checks all pages of a smaller block.
            _ if resident <= HARDLY_A_PAGE && pages > PAGES_ASKED => Density::NearlyUntouched,
            _ => Density::Sparse,
        };
        Self { before: Density::Sparse, now, amount: Amount::Nothing }
    }

    /// Advises the kernel to back the mapping by pages of the size that fits from now on.
    ///
    /// # Safety
    /// As for [`clean`].
    unsafe fn becomes(self, start: usize, bytes: usize) -> Density {
        let advice = match (self.before.is_on_ordinary_pages(), self.now.is_on_ordinary_pages()) {
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

/// Clears the resident pages and returns the rest, which may have been swapped out.
///
/// # Safety
/// As for [`clean`].
unsafe fn clear_what_is_resident(start: usize, bytes: usize) {
    let mut residence = Residence::new();
    for (start, bytes) in parts(start, bytes) {
        let was_without_swap = swap::is_absent();
        residence.ask(start, bytes);
        let others_are_empty = was_without_swap && residence.is_known && swap::is_absent();
        // SAFETY:
        // - the caller's promise, for a part of the range.
        unsafe {
            if residence.is_any() || !others_are_empty && !advise(start, bytes, libc::MADV_DONTNEED) {
                clear(start, bytes);
            }
        }
    }
}

/// Clears the resident pages of a block that has few resident pages, and returns the memory between them, which may
/// have been swapped out. Since no page is mapped there, this interrupts no other CPU, unless another thread makes such
/// a call at the same time (`mm_tlb_flush_nested` in mm/mmu_gather.c); so only one thread at a time does it. Parts with
/// many resident pages are returned. Returns the number of pages that were resident.
///
/// # Safety
/// As for [`clean`].
unsafe fn clear_few_pages(start: usize, bytes: usize) -> usize {
    // Asked before and after: neither the first nor the last space for swapping comes and goes in between.
    let was_without_swap = swap::is_absent();
    let mut resident = 0;
    // SAFETY:
    // - the caller's promise.
    unsafe {
        clear_parts(start, bytes, was_without_swap, &mut resident);
        if was_without_swap && !swap::is_absent() {
            clear_parts(start, bytes, false, &mut 0);
        }
    }
    resident
}

/// # Safety
/// As for [`clean`].
unsafe fn clear_parts(start: usize, bytes: usize, others_are_empty: bool, resident: &mut usize) {
    let mut residence = Residence::new();
    for (start, bytes) in parts(start, bytes) {
        residence.ask(start, bytes);
        let found = residence.resident();
        if found == 0 && others_are_empty {
            continue;
        }
        *resident += found;
        let _turn = (!others_are_empty).then(Turn::take);
        // SAFETY:
        // - the caller's promise, for a part of the range.
        unsafe {
            if residence.is_few() {
                clear_runs(start, &residence, others_are_empty);
            } else {
                give_back(start, bytes);
            }
        }
    }
}

/// # Safety
/// As for [`clean`], for the requested part.
unsafe fn clear_runs(start: usize, residence: &Residence, others_are_empty: bool) {
    let mut at = start;
    for run in residence.runs() {
        let length = run.len() * base_page();
        // SAFETY:
        // - the caller's promise, for a part of the range.
        unsafe {
            match run[0] & 1 == 1 {
                true => clear(at, length),
                false if others_are_empty => {}
                false => give_back(at, length),
            }
        }
        at += length;
    }
}

/// Number of pages of a block that are resident; of a block of many parts by samples.
fn resident_pages(start: usize, bytes: usize) -> usize {
    let page = base_page();
    if bytes / page > SAMPLES * PAGES_ASKED {
        let found = samples(bytes).filter(|offset| is_resident(start + offset / page * page)).count();
        return bytes / page / SAMPLES * found;
    }
    let mut residence = Residence::new();
    let resident = |(start, bytes)| {
        residence.ask(start, bytes);
        residence.resident()
    };
    parts(start, bytes).map(resident).sum()
}

/// Start and bytes of the parts of a block, of at most [`PAGES_ASKED`] pages.
fn parts(start: usize, bytes: usize) -> impl Iterator<Item = (usize, usize)> {
    let step = PAGES_ASKED * base_page();
    (0..bytes).step_by(step).map(move |offset| (start + offset, step.min(bytes - offset)))
}

/// Which pages of a part of a block are resident (mincore(2)).
struct Residence {
    pages: [u8; PAGES_ASKED],
    /// Number of pages of the part.
    count: usize,
    /// False if the kernel does not report it.
    is_known: bool,
}

impl Residence {
    fn new() -> Self {
        Self { pages: [0; PAGES_ASKED], count: 0, is_known: false }
    }

    /// Asks the kernel about whole pages, at most [`PAGES_ASKED`].
    fn ask(&mut self, start: usize, bytes: usize) {
        self.count = bytes / base_page();
        assert!(self.count <= PAGES_ASKED);
        self.is_known = residence(start, bytes, &mut self.pages);
    }

    /// True if any page is resident, or if the kernel does not report it.
    fn is_any(&self) -> bool {
        !self.is_known || self.resident() > 0
    }

    /// Number of resident pages; all pages if the kernel does not report it.
    fn resident(&self) -> usize {
        if !self.is_known {
            return self.count;
        }
        self.pages[..self.count].iter().map(|page| usize::from(page & 1)).sum()
    }

    /// True if few pages are resident, in few places.
    fn is_few(&self) -> bool {
        let is_few = self.is_known && self.resident() * FEW_RESIDENT < self.count.max(FEW_RESIDENT + 1);
        is_few && self.runs().take(MOST_RUNS).count() < MOST_RUNS
    }

    /// The pages in runs, resident ones and others.
    fn runs(&self) -> impl Iterator<Item = &[u8]> {
        let mut rest = &self.pages[..self.count];
        core::iter::from_fn(move || {
            let (run, others) = rest.split_at(run_length(rest));
            rest = others;
            (!run.is_empty()).then_some(run)
        })
    }
}

/// Number of pages at the beginning that are all resident, or all not. Most runs are long: eight pages at a time.
fn run_length(pages: &[u8]) -> usize {
    const RESIDENT: u64 = u64::from_ne_bytes([1; 8]);
    let Some(first) = pages.first() else { return 0 };
    let same = u64::from(first & 1) * RESIDENT;
    let eight = |pages: &&[u8; 8]| u64::from_ne_bytes(**pages) & RESIDENT == same;
    let whole = pages.as_chunks().0.iter().take_while(eight).count() * 8;
    whole + pages[whole..].iter().take_while(|&page| page & 1 == first & 1).count()
}

static IS_TAKEN: AtomicBool = AtomicBool::new(false);

/// A turn of [`clear_few_pages`]. This is not a lock: after a vain wait a thread continues, beside a preempted holder,
/// or after a fork whose child lacks the holder.
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

/// True if the page is resident, or if the kernel does not report it.
fn is_resident(page: usize) -> bool {
    let mut answer = [0u8];
    !residence(page, base_page(), &mut answer) || answer[0] & 1 != 0
}
