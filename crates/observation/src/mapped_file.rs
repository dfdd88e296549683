//! Opens the very file that a process has mapped, though its path may have been removed or given to another file.

use crate::ProcessFiles;
use crate::file_identity::device_numbers;
use address_space::Mapping;
use object::read::ReadCacheOps;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
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

/// Opens the files that one process has mapped.
#[derive(Debug)]
pub(crate) struct Opener<'a> {
    process: &'a ProcessFiles,
    /// `/proc/PID/map_files` needs CAP_CHECKPOINT_RESTORE or CAP_SYS_ADMIN; one refusal speaks for all.
    may_follow_mappings: bool,
}

impl<'a> Opener<'a> {
    pub fn new(process: &'a ProcessFiles) -> Self {
        Self { process, may_follow_mappings: true }
    }

    /// Opens the file behind `mapping`; `None` where it is no regular file (a device is never opened).
    pub fn open(&mut self, mapping: &Mapping) -> Result<Option<MappedFile>, Unreadable> {
        if self.may_follow_mappings {
            let (start, end) = (mapping.range.start().0, mapping.range.end().0);
            match open_regular(&self.process.path(&format!("map_files/{start:x}-{end:x}"))) {
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
                Ok(Some(file)) if is_the_mapped_file(&file.metadata, mapping) => return Ok(Some(file)),
                Ok(None) => return Ok(None),
                Ok(Some(_)) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => refusal = Unreadable::Refused(error.to_string()),
            }
        }
        Err(refusal)
    }
}

/// Opens a regular file without ever waiting; `None` for anything that is not one.
pub(crate) fn open_regular(path: &Path) -> io::Result<Option<MappedFile>> {
    // Looking first keeps devices from being opened, which may act; looking again afterwards closes the race.
    if !fs::metadata(path)?.is_file() {
        return Ok(None);
    }
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path)?;
    let metadata = file.metadata()?;
    Ok(metadata.is_file().then_some(MappedFile { file, metadata }))
}

/// btrfs and overlayfs show another device number in maps than in stat(2); there the inode and a length that holds the
/// mapping must do, and the segments must then fit the mappings anyway.
fn is_the_mapped_file(metadata: &Metadata, mapping: &Mapping) -> bool {
    metadata.ino() == mapping.inode
        && (device_numbers(metadata.dev()) == mapping.device || mapping.offset < metadata.size())
}

/// Reads at positions, so that nothing depends on the file's cursor, and never past a budget: a hostile file makes
/// the reader read more than it is long.
#[derive(Debug)]
pub(crate) struct BoundedFile<'a> {
    file: &'a File,
    length: u64,
    position: u64,
    budget: u64,
}

impl<'a> BoundedFile<'a> {
    /// A reader of `file`, `length` bytes long, that gives at most `budget` bytes in all.
    pub fn new(file: &'a File, length: u64, budget: u64) -> Self {
        Self { file, length, position: 0, budget }
    }

    fn spend(&mut self, bytes: usize) -> Result<(), ()> {
        self.budget = self.budget.checked_sub(bytes as u64).ok_or(())?;
        Ok(())
    }
}

impl ReadCacheOps for BoundedFile<'_> {
    fn len(&mut self) -> Result<u64, ()> {
        Ok(self.length)
    }

    fn seek(&mut self, position: u64) -> Result<u64, ()> {
        self.position = position;
        Ok(position)
    }

    fn read(&mut self, buffer: &mut [u8]) -> Result<usize, ()> {
        self.spend(buffer.len())?;
        let count = self.file.read_at(buffer, self.position).map_err(|_| ())?;
        self.position += count as u64;
        Ok(count)
    }

    fn read_exact(&mut self, buffer: &mut [u8]) -> Result<(), ()> {
        self.spend(buffer.len())?;
        self.file.read_exact_at(buffer, self.position).map_err(|_| ())?;
        self.position += buffer.len() as u64;
        Ok(())
    }
}
