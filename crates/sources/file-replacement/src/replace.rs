//! The replacement itself.

use crate::copy::{self, Patch};
use crate::error::ReplaceError;
use crate::metadata::FileMetadata;
use crate::place::Place;

use linux::file_holes::holes_in;
use linux::leases::Lease;
use nix::errno::Errno;
use nix::sys::signal::{SigSet, Signal};
use nix::unistd::geteuid;
use process_view::FileIdentity;
use std::ffi::CString;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The share of a file that may be holes: one part in so many. Linkers leave some between segments.
const HOLES: u64 = 8;
/// Room that is left on the file system, in bytes.
const ROOM_LEFT: u64 = 16 << 20;

/// In what the copy differs from the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// Other bytes.
    pub patches: Vec<Patch>,
    /// Extended attributes that are set, or removed where there is no value.
    pub attributes: Vec<(CString, Option<Vec<u8>>)>,
    /// The identity that the file must have, where the change was made for one state of it.
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
/// attributes with capabilities and labels, attributes, times. It is written in large pieces, so that it lies in huge folios
/// of the page cache where the file system has them, reaches the disk, and is compared byte by byte before one rename puts it
/// in the place of the file.
///
/// A path through links leads to the file that they mean; a link that appears on the way later is not followed. The file is
/// a regular one with one name that nobody has open for writing; a lease holds writers off until all is done. A file that
/// takes its place while it is copied stays. Whatever fails, and whenever this program is killed, the file is there, old or
/// new, and nothing else but, after SIGKILL at the moment of the rename, perhaps one more name that begins with `.pagelift-`.
///
/// # Errors
/// [`ReplaceError`]; the file is untouched.
pub fn replace(path: &Path, change: &Change) -> Result<Replaced, ReplaceError> {
    let place = Place::of(path)?;
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
    if change.only_if.is_some_and(|only_if| only_if != identity) {
        return Err(ReplaceError::Changed);
    }
    let most = identity.size / HOLES;
    if holes_in(&old, 0..identity.size, most).map_err(ReplaceError::io("looking for holes"))? > most {
        return Err(ReplaceError::Sparse);
    }
    let needed = identity.size.saturating_add(ROOM_LEFT);
    let free = place.free()?;
    if free < needed {
        return Err(ReplaceError::NoRoom { free, needed });
    }
    let file = place.nameless()?;
    copy::fill(&old, identity.size, &change.patches, &file)?;
    let mut wanted = metadata.clone();
    for (name, value) in &change.attributes {
        wanted.set_extended(name.clone(), value.clone());
    }
    copy::check(&old, identity.size, &change.patches, &file)?;
    // Writing takes capabilities away and reading changes the time of last use, so all this comes last.
    wanted.give_to(&file)?;
    file.sync_all().map_err(ReplaceError::io("fsync of the copy"))?;
    wanted.compare(&FileMetadata::read(&file)?)?;
    let is_same = || {
        let now = old.metadata().map_err(ReplaceError::io("fstat"))?;
        let same = FileIdentity::of(&now) == identity && lease.is_kept() && place.still_holds(&old);
        if same { Ok(()) } else { Err(ReplaceError::Changed) }
    };
    is_same()?;
    without_signals(|| place.put(&file, &old))?;
    drop(lease);
    let path = place.path.clone();
    Ok(Replaced { file: place.open()?, path, old })
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
