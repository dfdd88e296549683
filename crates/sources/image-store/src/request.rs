//! Requests for images, which determine whose files may get images, and how large these may be.

use crate::{StoreError, origin};
use std::fs::File;
use std::path::Path;
use std::time::Duration;

/// The origin of a request for an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// A user: images of any file, as large as the store has room for.
    Explicit,
    /// No user; a process could use it. Such images are made of root's own files only: other users could otherwise take
    /// memory with files that they write or exchange.
    Automatic {
        /// Most memory that the image may take, in bytes.
        most_bytes: u64,
        /// The user has named images as the source: files may be young, and outside of [`SYSTEM_FOLDERS`].
        named: bool,
    },
}

/// Automatic images are made of files that were written at least this time ago: a program that is being developed would
/// fill the store with images of old builds. Package managers keep the times of the packages.
const REST: Duration = Duration::from_secs(24 * 60 * 60);

/// Folders of installed programs, as the Filesystem Hierarchy Standard, Nix, Guix and snap define them. Automatic images
/// are made only of files below them, not of programs in home folders, build folders and `/tmp`.
pub const SYSTEM_FOLDERS: [&str; 11] =
    ["/usr", "/opt", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store", "/gnu/store", "/snap"];

/// The reason why no automatic image is made of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Exception {
    Outside,
    Young,
}

impl Exception {
    /// `path` is the kernel's path of the file.
    fn of(file: &File, path: &Path) -> Option<Self> {
        if !SYSTEM_FOLDERS.iter().any(|folder| path.starts_with(folder)) {
            return Some(Self::Outside);
        }
        is_young(file).then_some(Self::Young)
    }
}

/// True for a file that was written less than a day ago.
fn is_young(file: &File) -> bool {
    let written = file.metadata().and_then(|found| found.modified()).ok();
    written.and_then(|written| written.elapsed().ok()).is_some_and(|age| age < REST)
}

/// True if a lift that names no source may make an image of an open file: it is below [`SYSTEM_FOLDERS`], and was
/// written at least a day ago.
pub fn is_made_unasked(file: &File) -> bool {
    Exception::of(file, &origin::of(file).path).is_none()
}

impl Request {
    pub(crate) fn is_automatic(self) -> bool {
        matches!(self, Self::Automatic { .. })
    }

    pub(crate) fn most_bytes(self) -> u64 {
        match self {
            Self::Explicit => u64::MAX,
            Self::Automatic { most_bytes, .. } => most_bytes,
        }
    }

    /// Checks whether an image may be made of a file for this request. `path` is the kernel's path of the file.
    ///
    /// # Errors
    /// [`StoreError::Young`] or [`StoreError::Outside`].
    pub(crate) fn check(self, file: &File, path: &Path) -> Result<(), StoreError> {
        if !matches!(self, Self::Automatic { named: false, .. }) {
            return Ok(());
        }
        match Exception::of(file, path) {
            None => Ok(()),
            Some(Exception::Outside) => Err(StoreError::Outside(path.to_owned())),
            Some(Exception::Young) => Err(StoreError::Young(path.to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::SystemTime;

    const ITSELF: Request = Request::Automatic { most_bytes: 0, named: false };
    const OTHERS: [Request; 2] = [Request::Explicit, Request::Automatic { most_bytes: 0, named: true }];

    #[test]
    fn a_young_file_needs_a_request() {
        let (file, path) = (tempfile::tempfile().unwrap(), Path::new("/usr/bin/x"));
        assert!(matches!(ITSELF.check(&file, path), Err(StoreError::Young(_))));
        assert!(OTHERS.iter().all(|request| request.check(&file, path).is_ok()));
        file.set_modified(SystemTime::now() - 2 * REST).unwrap();
        assert!(ITSELF.check(&file, path).is_ok());
        // A time to come is no reason.
        file.set_modified(SystemTime::now() + REST).unwrap();
        assert!(ITSELF.check(&file, path).is_ok());
    }

    #[test]
    fn a_file_outside_of_system_folders_needs_a_request() {
        let file = tempfile::tempfile().unwrap();
        file.set_modified(SystemTime::now() - 2 * REST).unwrap();
        let made = |path: &str| ITSELF.check(&file, Path::new(path)).is_ok();
        for path in ["/usr/bin/x", "/usr/local/bin/x", "/opt/x/y", "/lib64/x", "/nix/store/abc/bin/x", "/snap/x/1/y"] {
            assert!(made(path), "{path}");
        }
        for path in ["/home/u/x", "/root/x", "/tmp/usr/bin/x", "/usrlocal/x", "/nix/x", "/var/lib/x", "/srv/x", ""] {
            assert!(!made(path), "{path}");
            assert!(OTHERS.iter().all(|request| request.check(&file, Path::new(path)).is_ok()), "{path}");
        }
        assert!(!is_made_unasked(&file));
    }
}
