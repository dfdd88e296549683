//! Restores a lifted range: each part shows its file again, except for contents that have changed since.

use crate::executor::persist;
use crate::executor::{Backing, CallError, Executor, FileMapping};
use crate::swapping::swap;
use address_space::{Address, AddressRange, AddressSpace, Protection, RangeSet};
use alloc::vec::Vec;

/// The call of an error after which contents are only in a copy elsewhere.
const DISPLACED: &str =
    "mremap, after which other memory was mapped at these addresses; their contents are kept elsewhere";

/// A part of a lifted range, as it is to be again.
#[derive(Clone, Copy, Debug)]
pub struct RestoredPart<'a> {
    /// Addresses: whole base pages.
    pub range: AddressRange,
    /// The final protection.
    pub protection: Protection,
    /// The file that the part shows, mapped with a protection that lets [`Executor::copy`] write to it. `None` for
    /// ordinary memory, which holds zeros outside of the copied ranges.
    pub file: Option<FileMapping<'a>>,
}

/// A lifted range that is to be restored.
#[derive(Clone, Copy, Debug)]
pub struct RestoredRange<'a> {
    /// All addresses that one lift has replaced.
    pub range: AddressRange,
    /// Protection now.
    pub protection: Protection,
    /// True for pages of the pool, which the kernel unmaps and replaces only whole.
    pub is_pool: bool,
    /// Maximum number of bytes for one move, at addresses that are multiples of this number: a multiple of the pool's
    /// page size. `u64::MAX` moves each part at once.
    pub at_once: u64,
    /// Its parts, which together cover the whole range.
    pub parts: &'a [RestoredPart<'a>],
}

/// Moves a range back onto the pages of its files, and onto ordinary pages if it has no file. Nobody may write to the
/// range during this call.
///
/// `changes` returns the memory of a part whose contents differ from the address range passed with it, which is of the
/// same length; this memory is copied. It may refuse the restore.
///
/// # Errors
/// The kernel's errors, and errors of `changes`. Contents and protections are correct then; a part of the range may be
/// restored, or be on ordinary pages. If another thread maps memory in a gap that a refused `mremap` has left, that
/// memory stays, a copy of the range is kept elsewhere, and the error reports this.
pub fn restore<X: Executor, E: From<CallError>>(
    executor: &mut X,
    lifted: &RestoredRange<'_>,
    mut changes: impl FnMut(&mut X, &RestoredPart<'_>, AddressRange) -> Result<RangeSet, E>,
) -> Result<(), E> {
    let mut staged = Vec::new();
    let mut result = lifted.parts.iter().try_for_each(|part| stage(executor, part, &mut staged, &mut changes));
    if result.is_ok() && lifted.is_pool && lifted.parts.len() > 1 {
        result = move_to_ordinary(executor, lifted.range, lifted.protection, lifted.at_once).map_err(E::from);
    }
    if result.is_ok() {
        result = lifted
            .parts
            .iter()
            .zip(&mut staged)
            .try_for_each(|(part, copy)| Ok(put(executor, copy, part.range, lifted.at_once)?));
    }
    for copy in staged.into_iter().filter(|copy| !copy.is_empty()) {
        let _ = persist(|| executor.unmap(copy));
    }
    result
}

/// Puts a range onto ordinary pages that hold the same. One mapping of pool pages can be replaced only whole, and so by one
/// mapping, which cannot show several files. `at_once`: as in [`RestoredRange`].
///
/// # Errors
/// The kernel's. Contents and protection are still right then; a part may be on ordinary pages. Memory of other threads
/// stays, see [`restore`].
pub fn move_to_ordinary(
    executor: &mut impl Executor,
    range: AddressRange,
    protection: Protection,
    at_once: u64,
) -> Result<(), CallError> {
    let mut copy = AddressRange::sized(executor.map(range.len(), Backing::Ordinary)?, range.len());
    let result = executor
        .copy(range, copy.start())
        .and_then(|()| executor.protect(copy, protection))
        .and_then(|()| put(executor, &mut copy, range, at_once));
    if result.is_err() {
        let _ = persist(|| executor.unmap(copy));
    }
    result
}

/// Makes a complete copy of a part, elsewhere, and adds it to `staged`.
fn stage<X: Executor, E: From<CallError>>(
    executor: &mut X,
    part: &RestoredPart<'_>,
    staged: &mut Vec<AddressRange>,
    changes: &mut impl FnMut(&mut X, &RestoredPart<'_>, AddressRange) -> Result<RangeSet, E>,
) -> Result<(), E> {
    let at = match part.file {
        Some(file) => executor.map_own_file(file, part.range.len())?,
        None => executor.map(part.range.len(), Backing::Ordinary)?,
    };
    let copy = AddressRange::sized(at, part.range.len());
    staged.push(copy);
    for changed in changes(executor, part, copy)?.iter() {
        executor.copy(changed, copy.start() + (changed.start() - part.range.start()))?;
    }
    let mapped_with = part.file.map_or(Protection::READ_WRITE, |file| file.protection);
    if mapped_with != part.protection {
        executor.protect(copy, part.protection)?;
    }
    Ok(())
}

/// Moves a complete copy over its original, in pieces. `copy` is the rest of the copy, also after an error, without a
/// piece that is the only place of some contents.
fn put(
    executor: &mut impl Executor,
    copy: &mut AddressRange,
    range: AddressRange,
    at_once: u64,
) -> Result<(), CallError> {
    // Where no thread runs before a range has its contents again, the list is not needed, and reading it takes long.
    let before = if executor.restores_destination() { AddressSpace::default() } else { executor.space()? };
    while !copy.is_empty() {
        let piece = first_piece(AddressRange::new(range.end() - copy.len(), range.end()), at_once);
        let from = AddressRange::sized(copy.start(), piece.len());
        let swapped = swap(executor, &before, from, piece, None);
        let is_displaced = swapped.as_ref().is_err_and(|refused| !refused.displaced.is_empty());
        if swapped.is_ok() || is_displaced {
            *copy = AddressRange::new(from.end(), copy.end());
        }
        match swapped {
            Err(refused) if is_displaced => return Err(CallError { call: DISPLACED, ..refused.error }),
            swapped => swapped.map_err(|refused| refused.error)?,
        }
    }
    Ok(())
}

/// The bytes up to the next multiple of `at_once`.
fn first_piece(range: AddressRange, at_once: u64) -> AddressRange {
    let end = (range.start().0 / at_once + 1).saturating_mul(at_once);
    AddressRange::new(range.start(), Address(end).min(range.end()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_end_at_multiples() {
        let first = |start, end, at_once| first_piece(AddressRange::new(Address(start), Address(end)), at_once).end().0;
        assert_eq!([first(3, 20, 8), first(8, 20, 8), first(16, 20, 8)], [8, 16, 20]);
        assert_eq!(first(3, 20, u64::MAX), 20);
    }
}
