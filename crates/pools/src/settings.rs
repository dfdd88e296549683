//! The way to the kernel's settings, which a test can replace.

use crate::error::PoolError;
use machine_facts::{Files, System};
use nix::fcntl::{Flock, FlockArg};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Drops what is cached (`Documentation/admin-guide/sysctl/vm.rst`).
pub(crate) const DROP_CACHES: &str = "/proc/sys/vm/drop_caches";
/// Root's own folder, so that nobody else can hold the lock.
const LOCK: &str = "/run/pagelift-pool.lock";

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
    /// Returns the settings; what is going on ends, and is put back where that was asked for, once the flag is set.
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

/// Held while pools are read and changed: a size is set, not added to, so that of two changes at once one would be lost.
#[derive(Debug)]
pub struct PoolLock {
    _file: Flock<File>,
}

impl PoolLock {
    /// Waits for other changes by Pagelift.
    ///
    /// # Errors
    /// Those of opening the lock, which takes root and a /run that can be written, and of locking it.
    pub fn take() -> Result<Self, PoolError> {
        let refused = |error| PoolError::Lock { path: LOCK, error };
        let file = File::options().create(true).append(true).open(LOCK).map_err(refused)?;
        let file = Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, error)| refused(error.into()))?;
        Ok(Self { _file: file })
    }
}
