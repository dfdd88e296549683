//! Restores a lifted range: each part shows its file again, but for what has changed in it since.

use crate::executor::{Backing, CallError, Executor, FileMapping};
use crate::restoring::{Place, persist, put_piece, swap};
use address_space::{AddressRange, Protection, RangeSet};
use alloc::vec::Vec;

/// A part of a lifted range, as it is to be again.
#[derive(Clone, Copy, Debug)]
pub struct RestoredPart<'a> {
    /// Addresses: whole base pages.
    pub range: AddressRange,
    /// The final protection.
    pub protection: Protection,
    /// The file that it shows, mapped with a protection with which [`Executor::copy`] can write to it. `None` for ordinary
    /// memory, which holds zeros where nothing is copied.
    pub file: Option<FileMapping<'a>>,
}

/// A lifted range that is to be restored.
#[derive(Clone, Copy, Debug)]
pub struct RestoredRange<'a> {
    /// Addresses: all that one lift has replaced.
    pub range: AddressRange,
    /// Protection now.
    pub protection: Protection,
    /// True for pages of the pool, which the kernel unmaps and replaces only whole.
    pub is_pool: bool,
    /// Its parts, which together are all of it.
    pub parts: &'a [RestoredPart<'a>],
}

/// Puts a range back onto the pages of its files, and onto ordinary pages where there is none. Nobody may write to it until
/// that is done.
///
/// `changes` returns what of a part does not hold what is mapped at the address range beside it, which is of the same
/// length; that is copied. It may refuse the restore.
///
/// # Errors
/// The kernel's, and that of `changes`. Contents and protections are still right then; the range may be on ordinary pages,
/// in part.
pub fn restore<X: Executor, E: From<CallError>>(
    executor: &mut X,
    lifted: &RestoredRange<'_>,
    mut changes: impl FnMut(&mut X, &RestoredPart<'_>, AddressRange) -> Result<RangeSet, E>,
) -> Result<(), E> {
    let mut staged = Vec::new();
    let mut done = 0;
    let mut result = lifted.parts.iter().try_for_each(|part| stage(executor, part, &mut staged, &mut changes));
    if result.is_ok() && lifted.is_pool && lifted.parts.len() > 1 {
        result = move_to_ordinary(executor, lifted.range, lifted.protection).map_err(E::from);
    }
    if result.is_ok() {
        result = lifted.parts.iter().zip(&staged).try_for_each(|(part, copy)| {
            put(executor, *copy, part.range, part.protection)?;
            done += 1;
            Ok(())
        });
    }
    for copy in &staged[done..] {
        let _ = persist(|| executor.unmap(*copy));
    }
    result
}

/// Puts a range onto ordinary pages that hold the same. One mapping of pool pages can be replaced only whole, and so by one
/// mapping, which cannot show several files.
///
/// # Errors
/// The kernel's. Contents and protection are still right then.
pub fn move_to_ordinary(
    executor: &mut impl Executor,
    range: AddressRange,
    protection: Protection,
) -> Result<(), CallError> {
    let copy = AddressRange::sized(executor.map(range.len(), Backing::Ordinary)?, range.len());
    let result = executor
        .copy(range, copy.start())
        .and_then(|()| executor.protect(copy, protection))
        .and_then(|()| put(executor, copy, range, protection));
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

/// Moves a complete copy over what it is a copy of.
fn put(
    executor: &mut impl Executor,
    copy: AddressRange,
    range: AddressRange,
    protection: Protection,
) -> Result<(), CallError> {
    swap(executor, copy, range, |executor| put_piece(executor, (range, protection), copy.start(), Place::Unknown))
}
