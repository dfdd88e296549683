//! Restores memory if moving it back fails.

use crate::executor::{Backing, CallError, Executor};
use address_space::{Address, AddressRange, AddressSpace, Protection};

/// Number of tries of a call that must succeed to restore memory. Such calls fail only for lack of kernel memory.
const TRIES: usize = 16;

/// `EEXIST` (errno(3)): something is mapped there.
const EXISTS: i32 = 17;

/// Repeats a call that restores memory until it succeeds, at most 16 times.
///
/// # Errors
/// That of the last try.
pub fn persist<T>(mut call: impl FnMut() -> Result<T, CallError>) -> Result<T, CallError> {
    let mut result = call();
    for _ in 1..TRIES {
        if result.is_ok() {
            break;
        }
        result = call();
    }
    result
}

/// The mappings at the destination of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CopyDestination {
    /// Nothing, or still the original mappings.
    Unknown,
    /// Nothing; a mapping found there is an error.
    Gap,
    /// Ordinary writable memory that Pagelift mapped.
    Laid,
}

/// Moves a complete copy over `range`, which it is to replace.
///
/// A failed move has changed nothing, or the kernel has removed the mappings there and could not move the copy. The
/// copy is moved once more then; if that is refused too, `put_back` puts its contents there on ordinary pages.
///
/// # Errors
/// The copy is not in place.
pub(crate) fn swap<X: Executor>(
    executor: &mut X,
    copy: AddressRange,
    range: AddressRange,
    put_back: impl FnOnce(&mut X) -> Result<(), CallError>,
) -> Result<(), CallError> {
    let guards_branches = executor.guards_branches(range)?;
    if guards_branches {
        guard_code(executor, copy)?;
    }
    let Err(error) = executor.move_to(copy, range.start()) else { return Ok(()) };
    if executor.space().is_ok_and(|space| space.is_fully_mapped(range)) {
        return Err(error);
    }
    if persist(|| executor.move_to(copy, range.start())).is_ok() {
        return Ok(());
    }
    put_back(executor)?;
    if guards_branches {
        guard_code(executor, range)?;
    }
    Err(error)
}

/// Guards the branches of all code in a range.
pub(crate) fn guard_code(executor: &mut impl Executor, range: AddressRange) -> Result<(), CallError> {
    for mapping in executor.space()?.overlapping(range).iter().filter(|mapping| mapping.protection.execute) {
        persist(|| executor.guard_branches(mapping.range.intersect(range), mapping.protection))?;
    }
    Ok(())
}

/// Copies the memory at `from` into `range`, on ordinary pages and with the protections of `before`: the last resort if
/// the kernel has removed the memory and refuses to move it back. Mappings that still exist are kept.
pub(crate) fn put_copy(
    executor: &mut impl Executor,
    before: &AddressSpace,
    range: AddressRange,
    from: Address,
    place: CopyDestination,
) -> Result<(), CallError> {
    for mapping in before.overlapping(range) {
        let piece = mapping.range.intersect(range);
        put_piece(executor, piece, mapping.protection, from + (piece.start() - range.start()), place)?;
    }
    Ok(())
}

/// Puts a copy of the memory at `from` into one range, on ordinary pages and with this protection.
pub(crate) fn put_piece(
    executor: &mut impl Executor,
    piece: AddressRange,
    protection: Protection,
    from: Address,
    place: CopyDestination,
) -> Result<(), CallError> {
    if place != CopyDestination::Laid {
        match persist(|| executor.map_at(piece, Backing::Ordinary)) {
            Err(error) if error.errno == EXISTS && place == CopyDestination::Unknown => return Ok(()),
            result => result?,
        }
    }
    persist(|| executor.copy(AddressRange::sized(from, piece.len()), piece.start()))?;
    if protection != Protection::READ_WRITE {
        persist(|| executor.protect(piece, protection))?;
    }
    Ok(())
}

/// Puts ordinary writable memory in place of whatever is mapped in `range`, by a move, which unmaps by itself.
pub(crate) fn lay_over(executor: &mut impl Executor, range: AddressRange) -> Result<(), CallError> {
    let memory = AddressRange::sized(executor.map(range.len(), Backing::Ordinary)?, range.len());
    let result = persist(|| executor.move_to(memory, range.start()));
    if result.is_err() {
        let _ = persist(|| executor.unmap(memory));
    }
    result
}
