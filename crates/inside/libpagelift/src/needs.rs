//! The memory that a call may need: it grows with the number of mappings and with the resident memory.

use crate::files::File;
use core::ffi::CStr;

/// For any call.
const LEAST: usize = 6 << 20;
/// For each mapping: its lines in maps and in smaps, in buffers that grow by moving, and its entries in the lists of mappings
/// before and after a lift. Lifts with 20,000 mappings need less.
const EACH_MAPPING: usize = 8 << 10;
/// One byte for so many resident ones: the lists of touched pages.
const RESIDENT_BYTES: usize = 256;
const MOST_FOR_RESIDENT: usize = 256 << 20;

/// An estimate from above, made without allocation.
pub fn of_a_call() -> usize {
    let mut mappings = 0;
    read(c"/proc/thread-self/maps", |piece| mappings += piece.iter().filter(|byte| **byte == b'\n').count());
    let mut pages = 0;
    read(c"/proc/thread-self/statm", |piece| {
        let mut numbers = core::str::from_utf8(piece).unwrap_or_default().split(' ');
        pages = numbers.nth(1).and_then(|number| number.parse().ok()).unwrap_or(pages);
    });
    // The size of a base page matters less than the factor.
    let resident = usize::saturating_mul(pages, 4096) / RESIDENT_BYTES;
    LEAST + mappings * EACH_MAPPING + resident.min(MOST_FOR_RESIDENT)
}

/// Calls `take` with one piece of a file after the other, as far as it can be read.
fn read(path: &CStr, mut take: impl FnMut(&[u8])) {
    let Ok(file) = File::open(path) else { return };
    let mut piece = [0; 4096];
    while let Ok(length @ 1..) = linux_raw::read(file.descriptor(), &mut piece) {
        take(&piece[..length]);
    }
}
