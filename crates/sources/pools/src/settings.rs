//! The way to the kernel's settings, which a test can replace.

use crate::error::PoolError;
use linux::lock_file::{LockError, LockFile};
use machine_facts::{Files, System};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Drops the page cache and reclaimable slab objects (`Documentation/admin-guide/sysctl/vm.rst`).
pub(crate) const DROP_CACHES: &str = "/proc/sys/vm/drop_caches";
/// Root's own folder, in which nobody else can make the lock's file first.
const LOCK_FOLDER: &str = "/run";
/// The lock's file, which nobody else can open and so lock. Versions of Pagelift that made it for everybody to read lock it,
/// too; it is never removed, since a process that waits for it would hold a file that nobody finds.
const LOCK: &str = "pagelift-pool.lock";
/// Maximum time to wait for another change. Compacting and reserving much of a large machine's memory takes less.
const LOCKED_AT_MOST: Duration = Duration::from_secs(600);

/// Reads the kernel's files and writes its settings. Paths are absolute.
pub trait Settings: Files {
    /// Writes a setting.
    ///
    /// # Errors
    /// The kernel's.
    fn set(&self, path: &str, value: &str) -> io::Result<()>;

    /// True when the user wants it to end.
    fn is_interrupted(&self) -> bool;
}

/// The settings of this machine.
#[derive(Clone, Debug, Default)]
pub struct KernelSettings {
    interrupted: Arc<AtomicBool>,
}

impl KernelSettings {
    /// Returns the settings; once the flag is set, the work in progress ends, and is undone if that was requested.
    pub fn new(interrupted: Arc<AtomicBool>) -> Self {
        Self { interrupted }
    }
}

impl Files for KernelSettings {
    fn text(&self, path: &str) -> Option<String> {
        System.text(path)
    }

    fn names_in(&self, path: &str) -> Vec<String> {
        System.names_in(path)
    }
}

impl Settings for KernelSettings {
    fn set(&self, path: &str, value: &str) -> io::Result<()> {
        if path == DROP_CACHES {
            // Only clean pages can be dropped.
            nix::unistd::sync();
        }
        OpenOptions::new().write(true).open(path)?.write_all(value.as_bytes())
    }

    fn is_interrupted(&self) -> bool {
        self.interrupted.load(Ordering::Relaxed)
    }
}

/// Held while pools are read and changed: a size is set, not added to, so one of two simultaneous changes would be
/// lost.
#[derive(Debug)]
pub struct PoolLock {
    _file: LockFile,
}

impl PoolLock {
    /// Waits for other changes by Pagelift, at most 10 minutes.
    ///
    /// # Errors
    /// Those of opening the lock, which takes root and a /run that can be written, and of locking it.
    pub fn take() -> Result<Self, PoolError> {
        Self::take_in(Path::new(LOCK_FOLDER), LOCKED_AT_MOST)
    }

    pub(crate) fn take_in(folder: &Path, most: Duration) -> Result<Self, PoolError> {
        let path: PathBuf = folder.join(LOCK);
        let refused = |error| PoolError::Lock { path: path.clone(), error };
        let open = File::open(folder).map_err(refused)?;
        let file = LockFile::take(open, LOCK, most).map_err(|error| match error {
            LockError::Held(waited) => PoolError::Locked { path: path.clone(), waited },
            LockError::OfAnotherUser(user) => PoolError::LockOfAnotherUser { path: path.clone(), user },
            LockError::Refused(error) => refused(error.into()),
        })?;
        Ok(Self { _file: file })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{Permissions, metadata, set_permissions};
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_change_waits_for_others_and_not_for_ever() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(LOCK);
        let first = PoolLock::take_in(folder.path(), Duration::ZERO).unwrap();
        let error = PoolLock::take_in(folder.path(), Duration::from_millis(5)).unwrap_err().to_string();
        assert!(error.contains(&path.display().to_string()) && error.contains("; fix: "), "{error}");
        drop(first);
        // As earlier versions made it.
        set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        drop(PoolLock::take_in(folder.path(), Duration::ZERO).unwrap());
        assert_eq!(metadata(&path).unwrap().permissions().mode() & 0o7777, 0o600);
    }
}
