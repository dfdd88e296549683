//! Opens regular files whose paths others may have chosen.

use crate::foreign_path::{Refusal, place_from_here};
use crate::mounts::FileMount;
use crate::served::{Served, refuse_here};
use linux::unasked;
use nix::libc;
use nix::sys::statfs::{FsType, fstatfs};
use std::fs::{File, Metadata};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

/// A file, open for reading.
#[derive(Debug)]
pub(crate) struct MappedFile {
    pub file: File,
    pub metadata: Metadata,
}

/// Opens a regular file whose path another user has chosen; `None` for any other kind of file. Never blocks on a pipe,
/// never opens a device, since some act when they are opened (a watchdog starts to count), and never asks a file system
/// that another user's program serves, on the way neither.
///
/// # Errors
/// The kernel refuses to resolve or open the path, or a file system on the path is not asked.
pub fn open_regular_file(path: &Path) -> io::Result<Option<File>> {
    Ok(open_regular(path)?.map(|found| found.file))
}

/// A regular file that was found, and is not open for reading. The same rules hold as for [`open_regular_file`].
#[derive(Debug)]
pub struct FoundFile(File);

impl FoundFile {
    /// The file at a path; `None` for any other kind of file.
    ///
    /// # Errors
    /// The kernel refuses to resolve the path, or a file system on the path is not asked.
    pub fn at(path: &Path) -> io::Result<Option<Self>> {
        let place = place_of(path)?;
        Ok(is_regular(&place, &refuse_here)?.then(|| Self(place.into())))
    }

    /// Its metadata.
    ///
    /// # Errors
    /// The kernel's.
    pub fn metadata(&self) -> io::Result<Metadata> {
        self.0.metadata()
    }

    /// Its path without symbolic links. The kernel knows it from the open file, and asks no file system.
    ///
    /// # Errors
    /// The kernel's.
    pub fn path(&self) -> io::Result<PathBuf> {
        std::fs::read_link(format!("/proc/self/fd/{}", self.0.as_raw_fd()))
    }

    /// The type of its file system.
    ///
    /// # Errors
    /// The kernel's.
    pub fn file_system(&self) -> io::Result<FsType> {
        Ok(fstatfs(&self.0)?.filesystem_type())
    }

    /// Opens it.
    ///
    /// # Errors
    /// The kernel's.
    pub fn open(self) -> io::Result<File> {
        unasked::reopen(self.0)
    }
}

/// As [`open_regular_file`].
pub(crate) fn open_regular(path: &Path) -> io::Result<Option<MappedFile>> {
    open_place(place_of(path)?, &refuse_here)
}

/// Most paths have been gone before, and the kernel goes them by one call.
fn place_of(path: &Path) -> io::Result<OwnedFd> {
    match unasked::known_place(path) {
        Ok(place) => Ok(place),
        Err(error) if is_unknown(&error) => {
            let whole = if path.is_absolute() { path.to_owned() } else { std::env::current_dir()?.join(path) };
            place_from_here(&whole, &refuse_here)
        }
        Err(error) => Err(error),
    }
}

/// A way that the kernel does not know yet, or a kernel or filter without such calls.
pub(crate) fn is_unknown(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::ENOSYS | libc::EINVAL | libc::EPERM))
}

/// Opens a place for reading; `None` where it is not a regular file. `refuse` returns why its file system is not asked.
pub(crate) fn open_place(
    place: OwnedFd,
    refuse: &dyn Fn(&FileMount) -> Option<Served>,
) -> io::Result<Option<MappedFile>> {
    if !is_regular(&place, refuse)? {
        return Ok(None);
    }
    let file = unasked::reopen(place)?;
    let metadata = file.metadata()?;
    Ok(Some(MappedFile { file, metadata }))
}

/// True for a regular file, on a file system that is asked.
fn is_regular(place: &OwnedFd, refuse: &dyn Fn(&FileMount) -> Option<Served>) -> io::Result<bool> {
    let found = unasked::of(place)?;
    match refuse(&FileMount::from(&found)) {
        Some(served) => Err(io::Error::other(Refusal(served))),
        None => Ok(found.mode & libc::S_IFMT == libc::S_IFREG),
    }
}

/// Why a file system is not asked, where that is what an error says.
pub(crate) fn refusal_in(error: &io::Error) -> Option<&Served> {
    error.get_ref()?.downcast_ref::<Refusal>().map(|Refusal(served)| served)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::BoundedFile;
    use object::ReadCacheOps;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn devices_are_not_opened_and_budgets_are_kept() {
        assert!(open_regular(Path::new("/dev/zero")).unwrap().is_none());
        assert!(open_regular(Path::new("/")).unwrap().is_none());
        let file = open_regular(Path::new("/proc/self/exe")).unwrap().unwrap();
        let mut bounded = BoundedFile::new(&file.file, file.metadata.len(), 100);
        let mut buffer = [0; 64];
        assert!(bounded.read_exact(&mut buffer).is_ok() && bounded.read_exact(&mut buffer).is_err());
    }

    #[test]
    fn a_found_file_has_the_path_without_links() {
        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (folder.path().join("file"), folder.path().join("link"));
        std::fs::write(&file, "").unwrap();
        std::os::unix::fs::symlink("./file", &link).unwrap();
        let found = FoundFile::at(&link).unwrap().unwrap();
        assert_eq!(found.path().unwrap(), file.canonicalize().unwrap());
    }

    #[test]
    fn both_ways_lead_to_the_same_file() {
        let own = std::env::current_exe().unwrap();
        let wanted = std::fs::metadata(&own).unwrap().ino();
        assert_eq!(open_regular(&own).unwrap().unwrap().metadata.ino(), wanted);
        let place = place_from_here(&own, &refuse_here).unwrap();
        assert_eq!(open_place(place, &refuse_here).unwrap().unwrap().metadata.ino(), wanted);
        assert_eq!(open_regular(Path::new("/nowhere/at/all")).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert!(open_regular(Path::new("Cargo.toml")).unwrap().is_some(), "relative to the working folder");
    }
}
