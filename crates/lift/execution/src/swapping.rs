//! Puts a complete copy or an image in the place of a range.

use crate::executor::persist;
use crate::executor::{CallError, ENOSYS, Executor, FileMapping};
use crate::gap::{Found, Left, fill, repeat, replace_again};
use crate::restoring::guard_code;
use address_space::{Address, AddressRange, AddressSpace, Protection, RangeSet};

/// `EBUSY` (errno(3)).
const BUSY: i32 = 16;

/// A refused replacement of a range.
pub(crate) struct Refused {
    /// The first error.
    pub error: CallError,
    /// The parts that are without their contents.
    pub displaced: RangeSet,
    /// Address of the contents of the range's first byte, in a copy that must be kept if parts are displaced.
    pub kept: Option<Address>,
}

impl From<CallError> for Refused {
    fn from(error: CallError) -> Self {
        Self { error, displaced: RangeSet::new(), kept: None }
    }
}

/// Moves a complete copy over `range`, which it is to replace and which had the mappings of `before`. The copy gets a
/// protection first, if one is given. Callers give one only if a refused move restores its destination.
///
/// A failed move has changed nothing, or the kernel has removed the mappings there and could not move the copy. The
/// copy is moved once more then; if that is refused too, its contents are put there on ordinary pages.
///
/// # Errors
/// The copy is not in place. It still exists.
pub(crate) fn swap<X: Executor>(
    executor: &mut X,
    before: &AddressSpace,
    copy: AddressRange,
    range: AddressRange,
    protection: Option<Protection>,
) -> Result<(), Refused> {
    let guards_branches = executor.guards_branches(range)?;
    if let (true, Some(protection)) = (guards_branches, protection) {
        executor.protect(copy, protection)?;
    }
    if guards_branches {
        guard_code(executor, copy)?;
    }
    let moved = match protection.filter(|_| !guards_branches) {
        Some(protection) => executor.seal_and_move(copy, range.start(), protection),
        None => executor.move_to(copy, range.start()),
    };
    let Err(error) = moved else { return Ok(()) };
    if error.errno == BUSY || executor.restores_destination() {
        return Err(error.into());
    }
    match replace_again(executor, before, range, |executor| executor.move_to(copy, range.start())) {
        Left::Replaced => Ok(()),
        Left::Original => Err(error.into()),
        Left::Gap(reserved) => {
            let restored = fill(executor, before, (range, &reserved), copy.start(), guards_branches);
            Err(Refused { error, displaced: rest_of(range, &restored), kept: Some(copy.start()) })
        }
    }
}

/// Maps an image in the place of `range`, which had the mappings of `before` and the same contents.
///
/// # Errors
/// The image is not in place. `ENOSYS` from an executor that cannot map files in place.
pub(crate) fn show<X: Executor>(
    executor: &mut X,
    before: &AddressSpace,
    image: FileMapping<'_>,
    range: AddressRange,
) -> Result<(), Refused> {
    let guards_branches = executor.guards_branches(range)?;
    let Err(error) = executor.map_file_at(image, range) else { return guard_image(executor, range, guards_branches) };
    if error.errno == ENOSYS {
        return Err(error.into());
    }
    match replace_again(executor, before, range, |executor| executor.map_file_at(image, range)) {
        Left::Replaced => guard_image(executor, range, guards_branches),
        Left::Original => Err(error.into()),
        Left::Gap(reserved) => show_in_gap(executor, before, image, (range, reserved), (error, guards_branches)),
    }
}

fn guard_image(executor: &mut impl Executor, range: AddressRange, guards_branches: bool) -> Result<(), Refused> {
    if guards_branches {
        guard_code(executor, range)?;
    }
    Ok(())
}

/// Moves an image, mapped elsewhere, into a gap, or copies it into the reserved parts.
fn show_in_gap<X: Executor>(
    executor: &mut X,
    before: &AddressSpace,
    image: FileMapping<'_>,
    (range, reserved): (AddressRange, RangeSet),
    (error, guards_branches): (CallError, bool),
) -> Result<(), Refused> {
    let Ok(at) = persist(|| executor.map_file(image, range.len())) else {
        return Err(Refused { error, displaced: RangeSet::from_iter([range]), kept: None });
    };
    let copy = AddressRange::sized(at, range.len());
    let move_copy = |executor: &mut X| executor.move_to(copy, range.start());
    let Err(reserved) = repeat(executor, range, Found::Reserved(reserved), move_copy) else {
        return guard_image(executor, range, guards_branches);
    };
    let restored = fill(executor, before, (range, &reserved), at, guards_branches);
    let displaced = rest_of(range, &restored);
    if displaced.is_empty() {
        let _ = persist(|| executor.unmap(copy));
    }
    Err(Refused { error, displaced, kept: Some(at) })
}

fn rest_of(range: AddressRange, restored: &RangeSet) -> RangeSet {
    let mut rest = RangeSet::from_iter([range]);
    restored.iter().for_each(|part| rest.remove(part));
    rest
}
