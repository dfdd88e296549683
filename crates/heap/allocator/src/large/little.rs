//! Blocks that are large only because of their alignment. They are on ordinary pages, of which they need few.

use super::{Block, State};
use crate::cleaning::Density;
use crate::sys::advise;

/// Divisor of a grain for the size of the largest such block.
const LITTLE: usize = 8;

/// True for a block of so many bytes on grains of this size.
pub fn is_little(asked: usize, grain: usize) -> bool {
    asked <= grain / LITTLE
}

/// Bytes of a block in use that hold no memory, on grains of this size: the rest of such a block's mapping.
pub fn untouched(block: &Block, grain: usize) -> usize {
    match block.state {
        State::Held(asked) if is_little(asked, grain) => block.bytes - block.usable(),
        _ => 0,
    }
}

/// Puts a block that nobody holds yet on ordinary pages, without contents if the mapping `was_kept`.
pub fn put_on_ordinary_pages(block: &mut Block, was_kept: bool) {
    // SAFETY:
    // - a mapping of this heap that nobody holds.
    unsafe {
        advise(block.start, block.bytes, libc::MADV_NOHUGEPAGE);
        if was_kept {
            advise(block.start, block.bytes, libc::MADV_DONTNEED);
        }
    }
    block.density = Density::Sparse;
}

/// Puts a block that has grown on huge pages.
pub fn on_huge_pages(block: Block) -> Block {
    // SAFETY:
    // - a block of this heap; the advice keeps contents.
    unsafe { advise(block.start, block.bytes, libc::MADV_HUGEPAGE) };
    Block { density: Density::Unknown, ..block }
}
