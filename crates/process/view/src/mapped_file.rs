//! Opens the file that a process has mapped, even if its path has been removed or leads to another file now.

use crate::foreign_path::{LastLink, place_below, place_from, place_of};
use crate::mounts::FileMount;
use crate::opening::{MappedFile, is_unknown, open_place, refusal_in};
use crate::process_memory::ProcessMemoryFile;
use crate::served::{Served, Servers};
use crate::{FileIdentity, ProcessFiles};
use address_space::{AddressRange, AddressSpace, Mapping, RangeSet};
use linux::watch::watched;
use linux::{device_numbers, unasked};
use nix::libc;
use std::fs::{File, Metadata};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Why the file behind a mapping cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    /// The path is gone or another file's now, and only root may open the mapped file itself.
    #[error("the file was removed or replaced since it was mapped; root can still read it")]
    Replaced,
    /// Nothing has this path.
    #[error("the file is gone; needed: the file, or a restart")]
    Missing,
    /// Reading it would wait for a user's program.
    #[error("{0}")]
    Served(Served),
    /// The kernel refuses to open it.
    #[error("the file cannot be opened: {0}")]
    Refused(String),
}

impl From<io::Error> for Unreadable {
    fn from(error: io::Error) -> Self {
        match refusal_in(&error) {
            Some(served) => Self::Served(served.clone()),
            None if error.kind() == io::ErrorKind::NotFound => Self::Missing,
            None => Self::Refused(error.to_string()),
        }
    }
}

/// Opens the file behind a mapping of a process: the target of its link in `/proc/PID/map_files`, or, where only root
/// may follow that, the file at its path, if it is the same file by device and inode. `None` where it is not a regular
/// file.
///
/// # Errors
/// [`Unreadable`]: the path leads to another file by now, or nothing can be opened there.
pub fn open_mapped(process: &ProcessFiles, mapping: &Mapping) -> Result<Option<(File, FileIdentity)>, Unreadable> {
    let opened = Opener::new(process).open(mapping)?;
    Ok(opened.map(|MappedFile { file, metadata }| (file, FileIdentity::of(&metadata))))
}

/// Opens the file that a process executes; `None` where it is not a regular file.
///
/// # Errors
/// As [`open_mapped`].
pub fn open_executed(process: &ProcessFiles) -> Result<Option<(File, FileIdentity)>, Unreadable> {
    let opened = Opener::new(process).open_executed()?;
    Ok(opened.map(|MappedFile { file, metadata }| (file, FileIdentity::of(&metadata))))
}

/// The metadata of the file that a process executes, if the kernel reports it without opening the file.
pub fn executed_metadata(process: &ProcessFiles) -> Option<Metadata> {
    Opener::new(process).metadata_at(&process.path("exe"))
}

/// Opens a regular file by a path of the process, below its root.
///
/// # Errors
/// As [`open_mapped`].
pub fn open_in_root(process: &ProcessFiles, path: &str) -> Result<Option<(File, FileIdentity)>, Unreadable> {
    let opened = Opener::new(process).open_path(path)?;
    Ok(opened.map(|MappedFile { file, metadata }| (file, FileIdentity::of(&metadata))))
}

/// The metadata of a path of the process, below its root, or below its working folder if the path is relative.
///
/// # Errors
/// As [`open_mapped`].
pub fn metadata_in_root(process: &ProcessFiles, path: &Path) -> Result<Metadata, Unreadable> {
    Ok(File::from(Opener::new(process).place_of(path, LastLink::Follow)?).metadata()?)
}

/// The path of the file that a path of the process leads to through links, below its root, as `/proc/PID/exe` shows it.
///
/// # Errors
/// As [`open_mapped`].
pub fn target_in_root(process: &ProcessFiles, path: &Path) -> Result<PathBuf, Unreadable> {
    let place = Opener::new(process).place_of(path, LastLink::Follow)?;
    Ok(std::fs::read_link(format!("/proc/self/fd/{}", place.as_raw_fd()))?)
}

/// True if a file has this path below the root of the process, including a dangling link.
pub fn exists_in_root(process: &ProcessFiles, path: &Path) -> bool {
    Opener::new(process).place_of(path, LastLink::Keep).is_ok()
}

/// Opens files that one process has mapped or names. Makes no request to a file system that a user's program serves.
#[derive(Debug)]
pub(crate) struct Opener<'a> {
    process: &'a ProcessFiles,
    servers: Servers,
    /// `/proc/PID/map_files` needs CAP_CHECKPOINT_RESTORE or CAP_SYS_ADMIN; after one refusal it is not tried again.
    may_follow_mappings: bool,
}

impl<'a> Opener<'a> {
    pub fn new(process: &'a ProcessFiles) -> Self {
        Self { process, servers: Servers::of(process), may_follow_mappings: true }
    }

    /// The process.
    pub fn process(&self) -> &ProcessFiles {
        self.process
    }

    /// The identity of the file behind `mapping`, if the kernel reports it without opening the file.
    pub fn identity(&self, mapping: &Mapping) -> Option<FileIdentity> {
        self.may_follow_mappings.then(|| self.identity_at(&self.path_of(mapping)))?
    }

    /// The identity of the executed file.
    pub fn executed_identity(&self) -> Option<FileIdentity> {
        self.identity_at(&self.process.path("exe"))
    }

    fn identity_at(&self, link: &Path) -> Option<FileIdentity> {
        self.metadata_at(link).filter(Metadata::is_file).map(|metadata| FileIdentity::of(&metadata))
    }

    fn metadata_at(&self, link: &Path) -> Option<Metadata> {
        let place = place_behind(link).ok()?;
        match self.refuse(&FileMount::from(&unasked::of(&place).ok()?)) {
            None => File::from(place).metadata().ok(),
            Some(_) => None,
        }
    }

    /// Opens the executed file; `None` where it is not a regular file.
    pub fn open_executed(&self) -> io::Result<Option<MappedFile>> {
        self.open_link(&self.process.path("exe"))
    }

    /// Opens a regular file by a path of the process, below its root.
    pub fn open_path(&self, path: &str) -> io::Result<Option<MappedFile>> {
        open_place(self.place_of(Path::new(path), LastLink::Follow)?, &|place| self.refuse(place))
    }

    /// The mappings whose pages are not read.
    pub fn refused_ranges(&self, space: &AddressSpace) -> RangeSet {
        self.servers.refused_ranges(space)
    }

    /// A relative path leads from the working folder; above that it does not lead.
    fn place_of(&self, path: &Path, last: LastLink) -> io::Result<OwnedFd> {
        let root = unasked::place(&self.process.path("root"))?;
        let refuse = |place: &FileMount| self.refuse(place);
        if !path.is_absolute() {
            return place_from(root, unasked::place(&self.process.path("cwd"))?, path, &refuse);
        }
        // Where every file system may be asked, one call does it.
        let at_once = || unasked::place_in_root(&root, path, last == LastLink::Follow);
        match self.servers.trust_all().then(at_once) {
            // The walk says which link it is that leads out.
            Some(Err(error)) if !is_unknown(&error) && error.raw_os_error() != Some(libc::ELOOP) => Err(error),
            Some(Ok(place)) => Ok(place),
            _ => place_of(&root, path, last, &refuse),
        }
    }

    fn refuse(&self, place: &FileMount) -> Option<Served> {
        self.servers.refuse(place)
    }

    fn open_link(&self, link: &Path) -> io::Result<Option<MappedFile>> {
        open_place(place_behind(link)?, &|place| self.refuse(place))
    }

    fn path_of(&self, mapping: &Mapping) -> PathBuf {
        let (start, end) = (mapping.range.start().0, mapping.range.end().0);
        self.process.path(&format!("map_files/{start:x}-{end:x}"))
    }

    /// Opens the file behind `mapping`; `None` where it is not a regular file (a device is never opened).
    pub fn open(&mut self, mapping: &Mapping) -> Result<Option<MappedFile>, Unreadable> {
        if self.may_follow_mappings {
            match self.open_link(&self.path_of(mapping)) {
                Ok(file) => return Ok(file),
                Err(error) if refusal_in(&error).is_some() => return Err(error.into()),
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => self.may_follow_mappings = false,
                Err(_) => {}
            }
        }
        self.open_by_path(mapping)
    }

    /// The path in maps is relative to the process's root in a container, to ours in a chroot of this mount namespace.
    fn open_by_path(&self, mapping: &Mapping) -> Result<Option<MappedFile>, Unreadable> {
        let Some(path) = mapping.path().filter(|p| p.starts_with('/')) else { return Ok(None) };
        if let Some(served) = self.refuse(&FileMount { device: mapping.device, mount: None }) {
            return Err(Unreadable::Served(served));
        }
        let mut refusal = Unreadable::Replaced;
        for found in [self.open_path(path), self.open_from_here(path)] {
            match found {
                Ok(Some(file)) if self.is_the_mapped_file(&file, mapping) => return Ok(Some(file)),
                Ok(None) => return Ok(None),
                Ok(Some(_)) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => refusal = error.into(),
            }
        }
        Err(refusal)
    }

    fn open_from_here(&self, path: &str) -> io::Result<Option<MappedFile>> {
        let refuse = |place: &FileMount| self.refuse(place);
        open_place(place_below(unasked::place(Path::new("/"))?, Path::new(path), &refuse)?, &refuse)
    }

    /// btrfs and overlayfs show another device number in maps than in stat(2), and overlayfs over several file systems
    /// another inode too. There the inode and a length that holds the mapping, or else the mapped bytes themselves,
    /// must do; the segments must then fit the mappings anyway.
    fn is_the_mapped_file(&self, file: &MappedFile, mapping: &Mapping) -> bool {
        let same_inode = file.metadata.ino() == mapping.inode;
        if device_numbers(file.metadata.dev()) == mapping.device {
            return same_inode;
        }
        let length = file.metadata.len().saturating_sub(mapping.offset).min(mapping.range.len());
        let shows_file = || {
            let range = AddressRange::sized(mapping.range.start(), length);
            Some(ProcessMemoryFile::open(self.process, RangeSet::new())?.begins_as(&file.file, mapping.offset, range))
        };
        length > 0 && (same_inode || shows_file().unwrap_or(false))
    }
}

/// Opens the target of a link of a process as a place. The kernel waits for the lock of the process's memory if the link is in
/// `map_files`.
fn place_behind(link: &Path) -> io::Result<OwnedFd> {
    watched(|| format!("opening {}", link.display()), || unasked::place(link))
}

#[cfg(test)]
mod tests {
    use super::*;
    use address_space::MappingName;

    fn own_first_mapping() -> (ProcessFiles, Mapping) {
        let process = ProcessFiles::of(std::process::id() as i32);
        let own = std::env::current_exe().unwrap();
        let space = process.maps().unwrap();
        let mapping = space.mappings().iter().find(|m| m.path().map(Path::new) == Some(&own)).unwrap().clone();
        (process, mapping)
    }

    fn open_by_path(process: &ProcessFiles, mapping: &Mapping) -> Result<Option<MappedFile>, Unreadable> {
        Opener { may_follow_mappings: false, ..Opener::new(process) }.open(mapping)
    }

    #[test]
    fn a_file_system_with_numbers_of_its_own_is_seen_through_by_the_mapped_bytes() {
        let (process, mut mapping) = own_first_mapping();
        assert!(open_by_path(&process, &mapping).unwrap().is_some());
        mapping.inode += 1;
        assert_eq!(open_by_path(&process, &mapping).unwrap_err(), Unreadable::Replaced);
        mapping.device.1 += 1;
        assert!(open_by_path(&process, &mapping).unwrap().is_some());
        mapping.name = MappingName::File { path: "/bin/true".into(), deleted: false };
        assert_eq!(open_by_path(&process, &mapping).unwrap_err(), Unreadable::Replaced);
    }
}
