//! Locks on images while they are made or removed.
//!
//! Everybody can open the folders of images, and so lock them. A lock is therefore a separate file in a folder of the
//! store that only the store's owner may enter. It prevents duplicate work, and contents never depend on it: an image
//! appears whole under its name or not at all. Versions of Pagelift that locked the folders of images take the folder
//! of locks for a damaged image and may remove it; it is made again.

use crate::directory::{names_in, open_directory_in};
use linux::lock_file::{LockError, PassingLock};
use nix::errno::Errno;
use nix::sys::stat::{Mode, mkdirat};
use nix::unistd::{UnlinkatFlags, unlinkat};
use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// Name of the folder of locks in the store; it exists while there are locks.
pub(crate) const LOCKS: &str = ".locks";
/// Number of times that the folder is made again after another process has removed it.
const FOLDER_ATTEMPTS: usize = 100;

/// The lock on the image of one name.
#[derive(Debug)]
pub(crate) struct ImageLock<'a> {
    // Dropped first: the folder is removed when it is empty.
    _lock: PassingLock,
    _folder: LockFolder<'a>,
}

impl<'a> ImageLock<'a> {
    /// Takes the lock; waits for another holder for `most` at the longest.
    pub fn take(store: &'a OwnedFd, name: &str, most: Duration) -> Result<Self, LockError> {
        let begin = Instant::now();
        for _ in 0..FOLDER_ATTEMPTS {
            let left = most.saturating_sub(begin.elapsed());
            let locked = LockFolder::make(store).map_err(LockError::from).and_then(|folder| {
                let lock = PassingLock::take(&folder.open, name, left)?;
                Ok(Self { _lock: lock, _folder: folder })
            });
            match locked {
                Err(LockError::Refused(Errno::ENOENT)) => {}
                result => return result,
            }
        }
        Err(LockError::Refused(Errno::ENOENT))
    }
}

/// Removes locks that nobody holds, left by processes that were killed.
pub(crate) fn remove_abandoned(store: &OwnedFd) {
    let Ok(folder) = LockFolder::of(store) else { return };
    for name in names_in(&folder.open).unwrap_or_default() {
        drop(PassingLock::take(&folder.open, &name.to_string_lossy(), Duration::ZERO));
    }
}

/// The folder of locks, which is removed with the last one.
#[derive(Debug)]
struct LockFolder<'a> {
    store: BorrowedFd<'a>,
    open: OwnedFd,
}

impl<'a> LockFolder<'a> {
    fn make(store: &'a OwnedFd) -> Result<Self, Errno> {
        match mkdirat(store, LOCKS, Mode::S_IRWXU) {
            Ok(()) | Err(Errno::EEXIST) => Self::of(store),
            Err(error) => Err(error),
        }
    }

    fn of(store: &'a OwnedFd) -> Result<Self, Errno> {
        Ok(Self { store: store.as_fd(), open: open_directory_in(store, OsStr::new(LOCKS))? })
    }
}

impl Drop for LockFolder<'_> {
    fn drop(&mut self) {
        let _ = unlinkat(self.store, LOCKS, UnlinkatFlags::RemoveDir);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::directory::open_path;
    use std::fs;

    const LONG: Duration = Duration::from_secs(60);

    fn store() -> (tempfile::TempDir, OwnedFd) {
        let folder = tempfile::tempdir().unwrap();
        let open = open_path(&folder.path().canonicalize().unwrap()).unwrap();
        (folder, open)
    }

    #[test]
    fn locks_keep_others_out_and_leave_nothing() {
        let (folder, store) = store();
        let first = ImageLock::take(&store, "a", Duration::ZERO).unwrap();
        assert!(matches!(ImageLock::take(&store, "a", Duration::ZERO), Err(LockError::Held(_))));
        drop(ImageLock::take(&store, "b", Duration::ZERO).unwrap());
        assert!(folder.path().join(LOCKS).join("a").exists());
        drop(first);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn the_folder_is_made_again_while_others_remove_it() {
        let (folder, store) = store();
        std::thread::scope(|scope| {
            for name in ["a", "b", "a"] {
                let store = &store;
                scope.spawn(move || (0..100).for_each(|_| drop(ImageLock::take(store, name, LONG).unwrap())));
            }
        });
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn locks_of_killed_processes_are_removed_and_others_are_not() {
        let (folder, store) = store();
        let held = ImageLock::take(&store, "held", Duration::ZERO).unwrap();
        fs::write(folder.path().join(LOCKS).join("abandoned"), "").unwrap();
        remove_abandoned(&store);
        assert_eq!(names_in(open_directory_in(&store, OsStr::new(LOCKS)).unwrap()).unwrap(), ["held"]);
        drop(held);
        remove_abandoned(&store);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
