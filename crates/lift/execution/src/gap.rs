//! Gaps that a refused replacement of memory leaves, while other threads of the program run.
//!
//! The kernel may remove the mappings at a destination and then refuse the call. Another thread can map memory there at
//! any moment. Rules of this file:
//! - A gap is reserved (`MAP_FIXED_NOREPLACE`) before anything is moved there.
//! - Only mappings known from before the call, or a reservation, are replaced.
//! - A reservation can only be written, unlike memory of programs. So it differs from new memory of another thread.
//!
//! The mappings from before the call differ from new memory of another thread if they show a file, have a name, or are
//! not writable. Other memory is replaced only while no other thread runs.

use crate::executor::{Backing, CallError, Executor};
use crate::executor::{TRIES, persist};
use address_space::{Address, AddressRange, AddressSpace, Mapping, Protection, RangeSet};

/// `EEXIST` (errno(3)): something is mapped there.
const EXISTS: i32 = 17;

/// Protection of reserved memory until it has its contents.
const RESERVED: Protection = Protection { read: false, write: true, execute: false };

/// The mappings of a range after a refused call.
pub(crate) enum Found {
    /// Those that were expected.
    Expected,
    /// Memory that is reserved in these parts. Other memory is mapped in the rest.
    Reserved(RangeSet),
    /// None, but the kernel refuses to reserve the range.
    Nothing,
    /// Unknown: something is mapped, and the kernel does not report what.
    Unknown,
}

/// The outcome of repeating a refused call.
pub(crate) enum Left {
    /// The mappings from before the call; nothing has changed.
    Original,
    /// The replacement: a repeated call has succeeded.
    Replaced,
    /// A gap of which these parts are reserved. The rest cannot be restored.
    Gap(RangeSet),
}

/// Repeats the refused call `again`, which replaces `range`, if the mappings of `before` are gone.
pub(crate) fn replace_again<X: Executor>(
    executor: &mut X,
    before: &AddressSpace,
    range: AddressRange,
    again: impl FnMut(&mut X) -> Result<(), CallError>,
) -> Left {
    match find(executor, range, |now| now.is_unchanged_in(range, before)) {
        Found::Expected => Left::Original,
        found => repeat(executor, range, found, again).map_or_else(Left::Gap, |()| Left::Replaced),
    }
}

/// Repeats `again`, which replaces `range`, while no memory of another thread is there.
///
/// # Errors
/// The parts that are reserved: it has not succeeded.
pub(crate) fn repeat<X: Executor>(
    executor: &mut X,
    range: AddressRange,
    mut found: Found,
    mut again: impl FnMut(&mut X) -> Result<(), CallError>,
) -> Result<(), RangeSet> {
    for _ in 1..TRIES {
        let may_replace = match &found {
            Found::Reserved(parts) => parts.covers(range),
            Found::Expected => true,
            // The kernel has no move that replaces nothing. Without this try the contents are lost.
            Found::Nothing => true,
            Found::Unknown => false,
        };
        if !may_replace {
            break;
        }
        if matches!(found, Found::Reserved(_)) {
            // Without the mark, a reservation that a failed call leaves counts as memory of another thread.
            let _ = persist(|| executor.protect(range, RESERVED));
        }
        if again(executor).is_ok() {
            return Ok(());
        }
        found = find(executor, range, |now| is_reserved(now, range));
    }
    Err(match found {
        Found::Expected => RangeSet::from_iter([range]),
        Found::Reserved(parts) => parts,
        Found::Nothing | Found::Unknown => RangeSet::new(),
    })
}

/// Fills the reserved parts of a range with the contents at `from`, a copy of the whole range, and gives them the
/// protections of `before`. With `guards_branches` code is guarded. Returns the parts that are restored.
pub(crate) fn fill(
    executor: &mut impl Executor,
    before: &AddressSpace,
    (range, reserved): (AddressRange, &RangeSet),
    from: Address,
    guards_branches: bool,
) -> RangeSet {
    let mut restored = RangeSet::new();
    for mapping in before.overlapping(range) {
        for piece in reserved.within(mapping.range.intersect(range)) {
            let copy = AddressRange::sized(from + (piece.start() - range.start()), piece.len());
            let guards = guards_branches && mapping.protection.execute;
            let filled = persist(|| executor.copy(copy, piece.start()));
            if filled.and_then(|()| protect(executor, piece, mapping.protection, guards)).is_ok() {
                restored.insert(piece);
            }
        }
    }
    restored
}

fn protect(
    executor: &mut impl Executor,
    piece: AddressRange,
    protection: Protection,
    guards: bool,
) -> Result<(), CallError> {
    if guards && persist(|| executor.guard_branches(piece, protection)).is_ok() {
        return Ok(());
    }
    persist(|| executor.protect(piece, protection))
}

/// Reserves the free parts of a range, unless its mappings are those that are expected.
fn find(executor: &mut impl Executor, range: AddressRange, is_expected: impl Fn(&AddressSpace) -> bool) -> Found {
    for _ in 0..TRIES {
        let Err(error) = reserve(executor, range) else { return Found::Reserved(RangeSet::from_iter([range])) };
        let Ok(space) = persist(|| executor.space()) else { return Found::Unknown };
        if is_expected(&space) {
            return Found::Expected;
        }
        if !space.is_free(range) {
            return Found::Reserved(reserve_free(executor, range, &space));
        }
        if error.errno != EXISTS {
            break;
        }
        // Another thread has unmapped its memory.
    }
    Found::Nothing
}

/// Reserves the parts of a range that are free in `space`, and returns those that still were.
fn reserve_free(executor: &mut impl Executor, range: AddressRange, space: &AddressSpace) -> RangeSet {
    let mut free = RangeSet::from_iter([range]);
    space.overlapping(range).iter().for_each(|mapping| free.remove(mapping.range));
    free.iter().filter(|part| reserve(executor, *part).is_ok()).collect()
}

fn reserve(executor: &mut impl Executor, range: AddressRange) -> Result<(), CallError> {
    let mut reserved = executor.map_at(range, Backing::Ordinary);
    for _ in 1..TRIES {
        if reserved.is_ok() || reserved.is_err_and(|error| error.errno == EXISTS) {
            break;
        }
        reserved = executor.map_at(range, Backing::Ordinary);
    }
    reserved
}

fn is_reserved(now: &AddressSpace, range: AddressRange) -> bool {
    let is_ours = |found: &Mapping| !found.shared && found.inode == 0 && found.protection == RESERVED;
    now.is_fully_mapped(range) && now.overlapping(range).iter().all(is_ours)
}
