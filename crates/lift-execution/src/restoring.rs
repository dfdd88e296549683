//! Puts memory back where moving it back fails.

use crate::executor::{Backing, CallError, Executor};
use address_space::{Address, AddressRange, AddressSpace, Protection};

/// Number of tries of a call that must succeed to restore memory. Such calls fail only for lack of kernel memory.
const TRIES: usize = 16;

/// `EEXIST` (errno(3)): something is mapped there.
const EXISTS: i32 = 17;

/// Repeats a call that restores memory until it succeeds, at most [`TRIES`] times.
pub(crate) fn persist<T>(mut call: impl FnMut() -> Result<T, CallError>) -> Result<T, CallError> {
    let mut result = call();
    for _ in 1..TRIES {
        if result.is_ok() {
            break;
        }
        result = call();
    }
    result
}

/// What is mapped where a copy is to be put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Nothing, or still the original mappings.
    Unknown,
    /// Nothing; a mapping found there all the same is an error.
    Gap,
    /// Ordinary writable memory that Pagelift mapped.
    Laid,
}

/// Puts a copy of the memory at `from` into `range`, on ordinary pages and with the protections of `before`: the last
/// resort where the kernel has taken the memory away and refuses to move it back. Mappings that still exist are kept.
pub(crate) fn put_copy(
    executor: &mut impl Executor,
    before: &AddressSpace,
    range: AddressRange,
    from: Address,
    place: Place,
) -> Result<(), CallError> {
    for mapping in before.overlapping(range) {
        let piece = mapping.range.intersect(range);
        if place != Place::Laid {
            match persist(|| executor.map_at(piece, Backing::Ordinary)) {
                Err(error) if error.errno == EXISTS && place == Place::Unknown => continue,
                result => result?,
            }
        }
        let source = AddressRange::sized(from + (piece.start() - range.start()), piece.len());
        persist(|| executor.copy(source, piece.start()))?;
        if mapping.protection != Protection::READ_WRITE {
            persist(|| executor.protect(piece, mapping.protection))?;
        }
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
