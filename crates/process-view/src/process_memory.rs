//! Reads the memory of another process.

use crate::ProcessFiles;
use address_space::{Address, AddressRange};
use std::fs::File;
use std::os::unix::fs::FileExt;

/// Length of the longest path that the kernel accepts, in bytes (`PATH_MAX`).
const LONGEST_PATH: usize = 4096;
/// Number of bytes of an object's beginning that are compared with its file: the headers, and nearly always the build-id.
const COMPARED_BYTES: u64 = 1024;

/// The memory of another process, read through `/proc/PID/mem`, which needs the right to trace the process
/// (proc_pid_mem(5)).
#[derive(Debug)]
pub(crate) struct ProcessMemoryFile {
    file: File,
}

impl ProcessMemoryFile {
    /// Opens the memory of `process`; `None` where the kernel refuses.
    pub fn open(process: &ProcessFiles) -> Option<Self> {
        Some(Self { file: File::open(process.path("mem")).ok()? })
    }

    /// The `length` bytes at `at`; `None` where any of them cannot be read.
    pub fn bytes(&self, at: Address, length: u64) -> Option<Vec<u8>> {
        let mut bytes = vec![0; usize::try_from(length).ok()?];
        self.file.read_exact_at(&mut bytes, at.0).ok()?;
        Some(bytes)
    }

    /// True where the first bytes of `range` are those of the file from `offset` on.
    pub fn begins_as(&self, file: &File, offset: u64, range: AddressRange) -> bool {
        let length = range.len().min(COMPARED_BYTES);
        let mut in_file = vec![0; length as usize];
        length > 0
            && file.read_exact_at(&mut in_file, offset).is_ok()
            && self.bytes(range.start(), length).is_some_and(|in_memory| in_memory == in_file)
    }

    /// The `N` words of eight bytes at `at`.
    pub fn words<const N: usize>(&self, at: Address) -> Option<[u64; N]> {
        let bytes = self.bytes(at, 8 * N as u64)?;
        let mut words = [0; N];
        for (word, chunk) in words.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = u64::from_ne_bytes(chunk.try_into().ok()?);
        }
        Some(words)
    }

    /// The text at `at` up to its first NUL byte.
    pub fn text(&self, at: Address) -> Option<String> {
        let mut bytes = vec![0; LONGEST_PATH];
        let count = self.file.read_at(&mut bytes, at.0).ok()?;
        let end = bytes[..count].iter().position(|&b| b == 0)?;
        bytes.truncate(end);
        String::from_utf8(bytes).ok()
    }
}
