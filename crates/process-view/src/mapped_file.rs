//! Opens the file that a process has mapped, even where its path has been removed or leads to another file now.

use crate::file_identity::device_numbers;
use crate::process_memory::ProcessMemoryFile;
use crate::{FileIdentity, ProcessFiles};
use address_space::{AddressRange, Mapping};
use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Why the file behind a mapping cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    /// The path is gone or another file's now, and only root may open the mapped file itself.
    #[error("the file was removed or replaced since it was mapped; root can still read it")]
    Replaced,
    /// The kernel refuses to open it.
    #[error("the file cannot be opened: {0}")]
    Refused(String),
}

/// A mapped file, open for reading.
#[derive(Debug)]
pub(crate) struct MappedFile {
    pub file: File,
    pub metadata: Metadata,
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

/// Opens the files that one process has mapped.
#[derive(Debug)]
pub(crate) struct Opener<'a> {
    process: &'a ProcessFiles,
    /// `/proc/PID/map_files` needs CAP_CHECKPOINT_RESTORE or CAP_SYS_ADMIN; after one refusal it is not tried again.
    may_follow_mappings: bool,
}

impl<'a> Opener<'a> {
    pub fn new(process: &'a ProcessFiles) -> Self {
        Self { process, may_follow_mappings: true }
    }

    /// The identity of the file behind `mapping`, where the kernel tells it without opening the file.
    pub fn identity(&self, mapping: &Mapping) -> Option<FileIdentity> {
        let metadata = self.may_follow_mappings.then(|| fs::metadata(self.path_of(mapping)))?.ok()?;
        metadata.is_file().then(|| FileIdentity::of(&metadata))
    }

    fn path_of(&self, mapping: &Mapping) -> PathBuf {
        let (start, end) = (mapping.range.start().0, mapping.range.end().0);
        self.process.path(&format!("map_files/{start:x}-{end:x}"))
    }

    /// Opens the file behind `mapping`; `None` where it is not a regular file (a device is never opened).
    pub fn open(&mut self, mapping: &Mapping) -> Result<Option<MappedFile>, Unreadable> {
        if self.may_follow_mappings {
            match open_regular(&self.path_of(mapping)) {
                Ok(file) => return Ok(file),
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => self.may_follow_mappings = false,
                Err(_) => {}
            }
        }
        self.open_by_path(mapping)
    }

    /// The path in maps is relative to the process's root in a container, to ours in a chroot of this mount namespace.
    fn open_by_path(&self, mapping: &Mapping) -> Result<Option<MappedFile>, Unreadable> {
        let Some(path) = mapping.path().filter(|p| p.starts_with('/')) else { return Ok(None) };
        let within = PathBuf::from(format!("{}{path}", self.process.path("root").display()));
        let mut refusal = Unreadable::Replaced;
        for candidate in [within.as_path(), Path::new(path)] {
            match open_regular(candidate) {
                Ok(Some(file)) if self.is_the_mapped_file(&file, mapping) => return Ok(Some(file)),
                Ok(None) => return Ok(None),
                Ok(Some(_)) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => refusal = Unreadable::Refused(error.to_string()),
            }
        }
        Err(refusal)
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
            Some(ProcessMemoryFile::open(self.process)?.begins_as(&file.file, mapping.offset, range))
        };
        length > 0 && (same_inode || shows_file().unwrap_or(false))
    }
}

/// Opens a regular file without blocking; `None` for any other kind of file.
pub(crate) fn open_regular(path: &Path) -> io::Result<Option<MappedFile>> {
    // The first check keeps devices from being opened, which may have effects; the second closes the race.
    if !fs::metadata(path)?.is_file() {
        return Ok(None);
    }
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path)?;
    let metadata = file.metadata()?;
    Ok(metadata.is_file().then_some(MappedFile { file, metadata }))
}

/// Opens a regular file whose path another user has chosen; `None` for any other kind of file. Never blocks on a pipe,
/// and never opens a device, since some act when they are opened (a watchdog starts to count).
///
/// # Errors
/// The kernel refuses to look at the path or to open it.
pub fn open_regular_file(path: &Path) -> io::Result<Option<File>> {
    Ok(open_regular(path)?.map(|found| found.file))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::BoundedFile;
    use address_space::MappingName;
    use object::ReadCacheOps;

    fn own_first_mapping() -> (ProcessFiles, Mapping) {
        let process = ProcessFiles::of(std::process::id() as i32);
        let own = std::env::current_exe().unwrap();
        let space = process.maps().unwrap();
        let mapping = space.mappings().iter().find(|m| m.path().map(Path::new) == Some(&own)).unwrap().clone();
        (process, mapping)
    }

    fn open_by_path(process: &ProcessFiles, mapping: &Mapping) -> Result<Option<MappedFile>, Unreadable> {
        Opener { process, may_follow_mappings: false }.open(mapping)
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

    #[test]
    fn devices_are_not_opened_and_budgets_are_kept() {
        assert!(open_regular(Path::new("/dev/zero")).unwrap().is_none());
        let file = open_regular(Path::new("/proc/self/exe")).unwrap().unwrap();
        let mut bounded = BoundedFile::new(&file.file, file.metadata.len(), 100);
        let mut buffer = [0; 64];
        assert!(bounded.read_exact(&mut buffer).is_ok() && bounded.read_exact(&mut buffer).is_err());
    }
}
