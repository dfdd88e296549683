//! Restores memory if moving it back fails.

use crate::executor::{Backing, CallError, Executor, persist};
use address_space::{Address, AddressRange, AddressSpace, Protection};

/// The mappings at the destination of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CopyDestination {
    /// Nothing; a mapping found there is an error.
    Gap,
    /// Ordinary writable memory that Pagelift mapped.
    Laid,
}

/// Guards the branches of all code in a range.
pub(crate) fn guard_code(executor: &mut impl Executor, range: AddressRange) -> Result<(), CallError> {
    for mapping in executor.space()?.overlapping(range).iter().filter(|mapping| mapping.protection.execute) {
        persist(|| executor.guard_branches(mapping.range.intersect(range), mapping.protection))?;
    }
    Ok(())
}

/// Copies the memory at `from` into `range`, on ordinary pages and with the protections of `before`: the last resort if
/// the kernel has removed the memory and refuses to move it back. No other thread of the program runs.
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
fn put_piece(
    executor: &mut impl Executor,
    piece: AddressRange,
    protection: Protection,
    from: Address,
    place: CopyDestination,
) -> Result<(), CallError> {
    if place != CopyDestination::Laid {
        persist(|| executor.map_at(piece, Backing::Ordinary))?;
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
