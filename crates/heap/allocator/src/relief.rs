//! Reduces the heap near the limit of its memory cgroups (`near_limit`): it returns free memory, puts the ends of large
//! blocks on ordinary pages, and breaks up the huge pages of arenas that have unused parts (`near_limit.c`).

use crate::SHARED;
use crate::large::Large;
use crate::near_limit::{self, Actions, LEAST_STEP};
use crate::small;
use heap_abi::LARGEST_GRAIN;

/// Number of huge pages that are broken up at once, for each that the heap may grow by.
const BROKEN_FOR_EACH: usize = 16;

/// Number of huge pages of `grain` bytes that are broken up at once, in a heap that may then grow by `step` bytes.
const fn most_broken(step: usize, grain: usize) -> usize {
    step * BROKEN_FOR_EACH / grain
}

// The largest huge pages are longer than the shortest step.
const _: () = assert!(most_broken(LEAST_STEP, LARGEST_GRAIN as usize) > 0);

static ACTIONS: Actions = Actions { reduce, restore };

/// Reads the limit.
///
/// # Safety
/// The process has one thread.
pub unsafe fn set_up() {
    if near_limit::set_up(&ACTIONS) {
        // SAFETY:
        // - the caller's promise.
        unsafe { small::watch_growth(near_limit::grew) };
    }
}

fn reduce(step: usize) {
    let work = |large: &mut Large| {
        let most = most_broken(step, large.grain());
        large.drop_all_kept();
        large.cut_ends(most);
        most
    };
    // SAFETY:
    // - `work` only acts on its argument.
    let most = unsafe { SHARED.with(work) };
    small::return_all();
    small::break_up(most);
}

fn restore() -> bool {
    let is_restored = small::use_huge_pages();
    if is_restored {
        // SAFETY:
        // - the work only acts on its argument.
        unsafe { SHARED.with(Large::join_ends) };
    }
    is_restored
}
