//! Reduces the heap near the limit of its memory cgroups (`near_limit`): it returns free memory, puts the ends of large
//! blocks on ordinary pages, and breaks up the huge pages of arenas that have unused parts (`near_limit.c`).

use crate::SHARED;
use crate::large::Large;
use crate::near_limit::{self, Actions};
use crate::small;

/// Number of huge pages that are broken up at once, for each that the heap may grow by.
const BROKEN_FOR_EACH: usize = 16;

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
        let most = step / large.grain() * BROKEN_FOR_EACH;
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
