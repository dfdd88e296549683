//! The ends of large blocks. A block takes whole huge pages; the part behind the requested bytes is resident as soon as the
//! last huge page is touched. Near a limit (`near_limit`) the last huge page consists of ordinary pages instead.

use super::{Block, Large, State};
use crate::cleaning::Density;
use crate::sys::{advise, base_page};

/// Share of a huge page from which an unused end is worth a separate mapping.
const WORTH_A_MAPPING: usize = 8;
/// Highest number of blocks with such an end: a process has 65,530 mappings (`vm.max_map_count`).
const MOST_CUT: usize = 8192;

impl Large {
    /// Returns the unused ends of at most so many blocks to the kernel.
    pub fn cut_ends(&mut self, most: usize) {
        let grain = self.grain;
        let most = most.min(self.left_to_cut());
        self.held_cut +=
            self.held.iter_mut().filter_map(|block| cut_end(block, grain).then_some(())).take(most).count();
    }

    /// Number of further blocks that may have such an end.
    pub fn left_to_cut(&self) -> usize {
        let kept_cut = self.kept.as_slice().iter().filter(|block| block.is_cut).count();
        MOST_CUT.saturating_sub(self.held_cut + kept_cut)
    }

    /// Lets the kernel use huge pages for the ends of blocks again.
    pub fn join_ends(&mut self) {
        self.held.iter_mut().chain(self.kept.as_mut_slice()).for_each(join_end);
        self.held_cut = 0;
    }
}

/// Puts the last huge page of a block on ordinary pages and returns its unused part; false if nothing was to be done.
pub fn cut_end(block: &mut Block, grain: usize) -> bool {
    let end = block.start + block.bytes;
    let used = block.start + block.usable();
    let is_held = matches!(block.state, State::Held(_));
    let is_ordinary = block.is_cut
        || block.from_pool
        || !matches!(block.density, Density::Unknown | Density::Cleared | Density::Dense);
    if !is_held || is_ordinary || end - used < grain / WORTH_A_MAPPING {
        return false;
    }
    let last = used - used % grain;
    // SAFETY:
    // - parts of a mapping of this heap. Contents are dropped behind the usable bytes only.
    unsafe {
        block.is_cut = advise(last, end - last, libc::MADV_NOHUGEPAGE);
        if block.is_cut && advise(used, end - used, libc::MADV_DONTNEED) && last < used {
            // A part of a huge page: the kernel splits it, and releases what is not mapped.
            advise(last, base_page(), libc::MADV_COLD);
        }
    }
    block.is_cut
}

/// Lets the kernel use huge pages in all of a block.
pub fn join_end(block: &mut Block) {
    if block.is_cut {
        // SAFETY:
        // - a mapping of this heap; the advice keeps contents.
        unsafe { advise(block.start, block.bytes, libc::MADV_HUGEPAGE) };
        block.is_cut = false;
    }
}
