//! Memory of another process.

use address_space::Address;
use linux::watch::watched;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;

/// The memory of a traced process, accessed through `/proc/PID/mem`.
pub struct RemoteMemory {
    pid: i32,
    file: File,
}

impl RemoteMemory {
    /// Opens the memory of a process. The handle belongs to the program that runs now: after an exec it must be opened
    /// again.
    ///
    /// # Errors
    /// The kernel's: no such process, no permission to trace it, or no `/proc`.
    pub fn open(pid: i32) -> io::Result<Self> {
        let open = || OpenOptions::new().read(true).write(true).open(format!("/proc/{pid}/mem"));
        Ok(Self { pid, file: watched(|| format!("opening the memory of process {pid}"), open)? })
    }

    /// Reads bytes.
    ///
    /// # Errors
    /// Where any of them is not mapped.
    pub fn read(&self, at: Address, bytes: &mut [u8]) -> io::Result<()> {
        let what = || format!("reading the memory of process {}", self.pid);
        watched(what, || self.file.read_exact_at(bytes, at.0))
    }

    /// Writes bytes, whatever the pages' protection (the kernel copies a private page that is not writable).
    ///
    /// # Errors
    /// Where any of them is not mapped.
    pub fn write(&self, at: Address, bytes: &[u8]) -> io::Result<()> {
        let what = || format!("writing to the memory of process {}", self.pid);
        watched(what, || self.file.write_all_at(bytes, at.0))
    }

    /// Reads one word of 64 bits.
    ///
    /// # Errors
    /// Where the word is not mapped.
    pub fn read_word(&self, at: Address) -> io::Result<u64> {
        let mut bytes = [0; 8];
        self.read(at, &mut bytes)?;
        Ok(u64::from_ne_bytes(bytes))
    }
}
