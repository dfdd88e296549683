//! The replacement itself.

use crate::replacement::copy::{Contents, Order, Patch};
use crate::replacement::error::ReplaceError;
use crate::replacement::metadata::FileMetadata;
use crate::replacement::place::NameInFolder;

use crate::mappers::MappedFiles;
use linux::file_holes::holes_in;
use linux::file_systems::OVERLAYFS_SUPER_MAGIC;
use linux::leases::Lease;
use linux::pages::{base_page, transparent_huge_page};
use nix::errno::Errno;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::stat::{Mode, fchmod};
use nix::sys::statfs::fstatfs;
use nix::unistd::geteuid;
use process_view::FileIdentity;
use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The share of a file that may be holes: one part in so many. Linkers leave some between segments.
const HOLES: u64 = 8;
/// Room that is left on the file system, in bytes.
const ROOM_LEFT: u64 = 16 << 20;

/// The differences between the copy and the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// Another order of the bytes; `None` keeps their order.
    pub order: Option<Order>,
    /// Other bytes.
    pub patches: Vec<Patch>,
    /// Extended attributes that are set, or removed if there is no value.
    pub attributes: Vec<(CString, Option<Vec<u8>>)>,
    /// The identity that the file must have, if the change was made for one state.
    pub only_if: Option<FileIdentity>,
}

/// A file that was replaced.
#[derive(Debug)]
pub struct Replaced {
    /// The new file, open for reading.
    pub file: File,
    /// Its path, without links.
    pub path: PathBuf,
    /// The old file, which has no name any more; processes may still use it.
    pub old: File,
}

/// Replaces a file by a copy with this change and all metadata: owner, group, mode, access control lists, extended
/// attributes with capabilities and labels, attributes, times. It is written in large pieces, so that it is in huge
/// folios of the page cache if the file system has them, is flushed to the disk, and is compared byte by byte before
/// one rename replaces the file.
///
/// A path through links leads to their target; a link that appears on the path later is not followed. The file is a
/// regular one with one name that no process has open for writing; a lease delays writers until the end. A file that
/// replaces it during the copy stays. After any failure, and after this program is killed at any time, the file exists,
/// old or new, and no other file except, after SIGKILL at the moment of the rename, perhaps one more name that begins
/// with `.pagelift-`.
///
/// # Errors
/// [`ReplaceError`]; the file is untouched.
pub fn replace(path: &Path, change: &Change) -> Result<Replaced, ReplaceError> {
    let place = NameInFolder::of(path)?;
    let old = place.open()?;
    let found = old.metadata().map_err(ReplaceError::io("fstat"))?;
    if !found.is_file() {
        return Err(ReplaceError::NotRegular);
    }
    let (identity, user) = (FileIdentity::of(&found), geteuid());
    if !user.is_root() && user.as_raw() != found.uid() {
        return Err(ReplaceError::NotPermitted { found: user.as_raw(), owner: found.uid() });
    }
    if found.nlink() != 1 {
        return Err(ReplaceError::HardLinks(found.nlink()));
    }
    let metadata = FileMetadata::read(&old)?;
    metadata.check(&old)?;
    let lease = Lease::against_writers(&old).map_err(|error| match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::EAGAIN) => ReplaceError::BeingWritten,
        _ => ReplaceError::NoLease(error),
    })?;
    refuse_mapped_on_overlay(&old)?;
    if change.only_if.is_some_and(|only_if| only_if != identity) {
        return Err(ReplaceError::Changed);
    }
    let order = change.order.clone().unwrap_or_else(|| Order::same(identity.size));
    check_holes(&old, &order)?;
    let is_same = || {
        let now = old.metadata().map_err(ReplaceError::io("fstat"))?;
        let same = FileIdentity::of(&now) == identity && lease.is_kept() && place.still_holds(&old);
        if same { Ok(()) } else { Err(ReplaceError::Changed) }
    };
    place.check_room(order.written().saturating_add(ROOM_LEFT))?;
    let file = place.nameless()?;
    let contents = Contents { source: &old, order: &order, patches: &change.patches };
    // A process that wants to write waits until the lease is given back.
    contents.fill(&file, &is_same)?;
    let mut wanted = metadata.clone();
    for (name, value) in &change.attributes {
        wanted.set_extended(name.clone(), value.clone());
    }
    contents.check(&file)?;
    is_same()?;
    // Writing takes capabilities away and reading changes the time of last use, so all this comes last.
    wanted.give_to(&file)?;
    file.sync_all().map_err(ReplaceError::io("fsync of the copy"))?;
    wanted.compare(&FileMetadata::read(&file)?)?;
    is_same()?;
    without_signals(|| place.put(&file, &is_same))?;
    drop(lease);
    let path = place.path.clone();
    Ok(Replaced { file: place.open()?, path, old })
}

/// Writes a copy of a file with this change to another path, and replaces a regular file that is there. The copy has
/// the permissions of the file without set-user-ID and set-group-ID, and of extended attributes only those in the
/// change; those whose names begin with `user.` only if the file system has room for them. Without another order and
/// patches the copy has the holes of the file.
///
/// # Errors
/// [`ReplaceError`]; what was at the path is untouched.
pub fn write_copy(source: &File, path: &Path, change: &Change) -> Result<(), ReplaceError> {
    let found = source.metadata().map_err(ReplaceError::io("fstat"))?;
    let identity = FileIdentity::of(&found);
    let place = NameInFolder::of_new(path)?;
    if place.still_holds(source) {
        return Err(ReplaceError::SameFile);
    }
    let order = match &change.order {
        Some(order) => order.clone(),
        None if change.patches.is_empty() => {
            Order::with_holes(source, identity.size).map_err(ReplaceError::io("looking for holes"))?
        }
        // A patch may be in a hole.
        None => Order::same(identity.size),
    };
    check_holes(source, &order)?;
    place.check_room(order.written().saturating_add(ROOM_LEFT))?;
    let file = place.nameless()?;
    let contents = Contents { source, order: &order, patches: &change.patches };
    contents.fill(&file, &|| Ok(()))?;
    contents.check(&file)?;
    drop_inherited_list(&file)?;
    for (name, value) in &change.attributes {
        // Without the user's own the copy is the same program. Others are rights and labels.
        let is_needed = !name.to_bytes().starts_with(b"user.");
        if let Some(value) = value
            && let Err(error) = linux::attributes::set(&file, name, value)
            && is_needed
        {
            let what = format!("extended attribute {}", name.to_string_lossy());
            return Err(ReplaceError::Metadata { what, error });
        }
    }
    let mode = Mode::from_bits_truncate(found.mode() & 0o777);
    fchmod(&file, mode).map_err(ReplaceError::call("giving the copy its mode"))?;
    file.sync_all().map_err(ReplaceError::io("fsync of the copy"))?;
    let now = source.metadata().map_err(ReplaceError::io("fstat"))?;
    if FileIdentity::of(&now) != identity || change.only_if.is_some_and(|only_if| only_if != identity) {
        return Err(ReplaceError::Changed);
    }
    without_signals(|| place.put_new(&file))
}

/// Refuses a file on overlayfs that a process maps shared: it may write to it without a descriptor, which prevents the lease on
/// every other file system (see [`Lease::against_writers`]).
fn refuse_mapped_on_overlay(file: &File) -> Result<(), ReplaceError> {
    let found = fstatfs(file).map_err(ReplaceError::call("fstatfs"))?;
    if found.filesystem_type() != OVERLAYFS_SUPER_MAGIC {
        return Ok(());
    }
    let failed =
        |error: crate::Error| ReplaceError::Io { what: "looking for mappings", source: io::Error::other(error) };
    let mapped = MappedFiles::read().map_err(failed)?;
    let huge = transparent_huge_page().unwrap_or_else(base_page);
    if mapped.users_of(file, huge).map_err(failed)?.parts.iter().any(|part| part.mapping.shared) {
        return Err(ReplaceError::BeingWritten);
    }
    match mapped.unseen() {
        0 => Ok(()),
        count => Err(ReplaceError::Unseen(count)),
    }
}

/// Removes the access control list that a new file gets from its folder: it may permit more than the mode.
fn drop_inherited_list(file: &File) -> Result<(), ReplaceError> {
    let missing = [Errno::ENODATA, Errno::EOPNOTSUPP].map(|error| Some(error as i32));
    match linux::attributes::remove(file, c"system.posix_acl_access") {
        Err(error) if !missing.contains(&error.raw_os_error()) => {
            Err(ReplaceError::Metadata { what: "permissions without the list of its folder".to_owned(), error })
        }
        _ => Ok(()),
    }
}

/// Refuses a file whose parts are in holes to a large share, which the copy would fill.
fn check_holes(file: &File, order: &Order) -> Result<(), ReplaceError> {
    let most = order.written() / HOLES;
    let mut holes = 0;
    for part in &order.parts {
        let range = part.from..part.from.saturating_add(part.length);
        holes += holes_in(file, range, most).map_err(ReplaceError::io("looking for holes"))?;
    }
    if holes > most { Err(ReplaceError::Sparse) } else { Ok(()) }
}

/// Runs a few system calls that belong together; a signal that would end this program comes after them.
fn without_signals<T>(act: impl FnOnce() -> T) -> T {
    let ending: SigSet = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT].into_iter().collect();
    let before = ending.thread_swap_mask(nix::sys::signal::SigmaskHow::SIG_BLOCK);
    let result = act();
    if let Ok(before) = before {
        let _ = before.thread_set_mask();
    }
    result
}
