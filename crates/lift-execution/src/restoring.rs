//! Ways to put memory back where the plain one fails.

use crate::executor::{Backing, CallError, Executor};
use address_space::{Address, AddressRange, AddressSpace, Protection};

/// How often a call that must succeed to restore memory is tried again. Such calls fail only for want of kernel memory.
const TRIES: usize = 16;

/// `EEXIST` (errno(3)): something is mapped there.
const EXISTS: i32 = 17;

/// Tries a call that restores memory until it succeeds, within reason.
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

/// What stands where a copy is to be put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Nothing, or still what has always been there.
    Unknown,
    /// Nothing; what is there all the same is in the way.
    Gap,
    /// Ordinary writable memory of ours.
    Laid,
}

/// Puts a copy of the memory at `from` into `range`, on ordinary pages and with the protections of `before`: the last
/// resort where the kernel has taken the memory away and refuses to move it back. Mappings that still stand are left.
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
