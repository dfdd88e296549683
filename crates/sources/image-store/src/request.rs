//! Requests for images, which determine whose files may get images, and how large these may be.

use std::fs::File;
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
        /// The user has named images as the source: files may be young.
        named: bool,
    },
}

/// Images are made by themselves of files that were written at least this time ago: a program that is being developed
/// would fill the store with images of old builds. Package managers keep the times of the packages.
pub(crate) const REST: Duration = Duration::from_secs(24 * 60 * 60);

/// True for a file that was written less than a day ago.
pub fn is_young(file: &File) -> bool {
    let written = file.metadata().and_then(|found| found.modified()).ok();
    written.and_then(|written| written.elapsed().ok()).is_some_and(|age| age < REST)
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

    /// True if no image may be made of this file because it is young.
    pub(crate) fn leaves_out(self, file: &File) -> bool {
        matches!(self, Self::Automatic { named: false, .. }) && is_young(file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::SystemTime;

    #[test]
    fn a_young_file_needs_a_request() {
        let file = tempfile::tempfile().unwrap();
        let by_itself = Request::Automatic { most_bytes: 0, named: false };
        let others = [Request::Explicit, Request::Automatic { most_bytes: 0, named: true }];
        assert!(is_young(&file) && by_itself.leaves_out(&file));
        assert!(!others.iter().any(|request| request.leaves_out(&file)));
        file.set_modified(SystemTime::now() - 2 * REST).unwrap();
        assert!(!is_young(&file) && !by_itself.leaves_out(&file));
        // A time to come is no reason.
        file.set_modified(SystemTime::now() + REST).unwrap();
        assert!(!is_young(&file));
    }
}
