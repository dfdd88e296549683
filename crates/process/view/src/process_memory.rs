//! Reads the memory of another process.

use crate::served::Servers;
use crate::{ObservationError, ProcessFiles};
use address_space::{Address, AddressRange, RangeSet};
use linux::pages::base_page;
use linux::text::open_of_process;
use linux::watch::watched;
use nix::errno::Errno;
use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::Pid;
use std::fs::File;
use std::io::IoSliceMut;
use std::os::unix::fs::FileExt;

/// Length of the longest path that the kernel accepts, in bytes (`PATH_MAX`).
const LONGEST_PATH: usize = 4096;
/// Number of bytes of an object's beginning that are compared with its file: the headers, and nearly always the build-id.
const COMPARED_BYTES: u64 = 1024;

/// The memory of another process, which only those may read who may trace the process (proc_pid_mem(5)). Pages of files on file
/// systems that a user's program serves are not read.
#[derive(Debug)]
pub struct ProcessMemoryFile {
    pid: i32,
    file: File,
    /// The list of its pages; `None` where the kernel refuses it.
    pages: Option<File>,
    /// Ranges that are not read, since their pages may never arrive.
    refused: RangeSet,
}

impl ProcessMemoryFile {
    /// Opens the memory of `process`.
    ///
    /// # Errors
    /// [`ObservationError`].
    pub fn of(process: &ProcessFiles) -> Result<Self, ObservationError> {
        let servers = Servers::of(process);
        let refused = if servers.trust_all() { RangeSet::new() } else { servers.refused_ranges(&process.maps()?) };
        let path = process.path("mem");
        let file = open_of_process(&path).map_err(|error| process.explain(&path, error))?;
        Ok(Self::with(process, file, refused))
    }

    /// Opens the memory of `process`; `None` where the kernel refuses. `refused` is never read.
    pub(crate) fn open(process: &ProcessFiles, refused: RangeSet) -> Option<Self> {
        Some(Self::with(process, open_of_process(process.path("mem")).ok()?, refused))
    }

    fn with(process: &ProcessFiles, file: File, refused: RangeSet) -> Self {
        Self { pid: process.pid(), file, pages: open_of_process(process.path("pagemap")).ok(), refused }
    }

    /// True once the process has no memory any more: its file is empty.
    pub fn has_ended(&self) -> bool {
        matches!(self.file.read_at(&mut [0], 0), Ok(0))
    }

    /// Fills `into` from the memory at `at`; `None` if a part cannot be read.
    pub fn read_exact(&self, at: Address, into: &mut [u8]) -> Option<()> {
        (self.read_some(at, into)? == into.len()).then_some(())
    }

    /// The `length` bytes at `at`; `None` if some cannot be read.
    pub(crate) fn bytes(&self, at: Address, length: u64) -> Option<Vec<u8>> {
        let mut bytes = vec![0; usize::try_from(length).ok()?];
        self.read_exact(at, &mut bytes)?;
        Some(bytes)
    }

    /// Reads from `at` on as much as there is, which may be less than asked for.
    fn read_some(&self, at: Address, into: &mut [u8]) -> Option<usize> {
        let wanted = AddressRange::sized(at, into.len() as u64);
        let free = self.refused.within(wanted).next().map_or(wanted.end(), |refused| refused.start()) - at;
        let into = &mut into[..free as usize];
        if into.is_empty() {
            return None;
        }
        watched(|| format!("reading the memory of process {}", self.pid), || self.read_watched(at, into))
    }

    /// A process may exchange what it has mapped at any moment, and hold the lock of its memory for any time. A thread that
    /// waits in a way that cannot be ended keeps this program from ending, too. process_vm_readv(2) can be ended while it waits
    /// for a page of a file, and not while it waits for the lock (Linux 6.18, `mm/process_vm_access.c`). A read of
    /// `/proc/PID/mem` can be ended while it waits for the lock, and not while it waits for a page. So it reads pages that are
    /// in memory. The list of pages, which shows that, waits for the lock first and can be ended.
    fn read_watched(&self, at: Address, into: &mut [u8]) -> Option<usize> {
        if self.is_in_memory(at, into.len())
            && let Ok(read) = self.file.read_at(into, at.0)
        {
            return Some(read);
        }
        let remote = RemoteIoVec { base: usize::try_from(at.0).ok()?, len: into.len() };
        match process_vm_readv(Pid::from_raw(self.pid), &mut [IoSliceMut::new(into)], &[remote]) {
            Ok(read) => Some(read),
            Err(Errno::ENOSYS | Errno::EPERM) => self.file.read_at(into, at.0).ok(),
            Err(_) => None,
        }
    }

    /// True if all pages that hold these bytes are in memory (Documentation/admin-guide/mm/pagemap.rst).
    fn is_in_memory(&self, at: Address, length: usize) -> bool {
        const ENTRY: u64 = 8;
        const PRESENT: u64 = 1 << 63;
        let page = base_page().bytes();
        let (first, last) = (at.0 / page, at.0.saturating_add(length as u64 - 1) / page);
        let mut entries = vec![0; ((last - first + 1) * ENTRY) as usize];
        let read = self.pages.as_ref().map(|pages| pages.read_exact_at(&mut entries, first * ENTRY));
        let is_present = |entry: &[u8; ENTRY as usize]| u64::from_ne_bytes(*entry) & PRESENT != 0;
        read.is_some_and(|read| read.is_ok()) && entries.as_chunks().0.iter().all(is_present)
    }

    /// True if the first bytes of `range` equal those of the file from `offset` on.
    pub(crate) fn begins_as(&self, file: &File, offset: u64, range: AddressRange) -> bool {
        let length = range.len().min(COMPARED_BYTES);
        let mut in_file = vec![0; length as usize];
        length > 0
            && file.read_exact_at(&mut in_file, offset).is_ok()
            && self.bytes(range.start(), length).is_some_and(|in_memory| in_memory == in_file)
    }

    /// The `N` words of eight bytes at `at`.
    pub(crate) fn words<const N: usize>(&self, at: Address) -> Option<[u64; N]> {
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
        let count = self.read_some(at, &mut bytes)?;
        let end = bytes[..count].iter().position(|&b| b == 0)?;
        bytes.truncate(end);
        String::from_utf8(bytes).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_read_whether_they_are_in_memory_or_not() {
        let page = base_page().bytes() as usize;
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&vec![7; 3 * page], 0).unwrap();
        let mapping = linux::file_mapping::FileMapping::readable(&file, 0, 3 * page as u64, base_page()).unwrap();
        let at = mapping.range().start();
        let memory = ProcessMemoryFile::open(&ProcessFiles::own(), RangeSet::new()).unwrap();
        assert!(!memory.is_in_memory(at, 1) && !memory.is_in_memory(Address(u64::MAX), 2));
        assert_eq!(memory.bytes(at + (page as u64 - 1), page as u64 + 2).unwrap(), vec![7; page + 2]);
        mapping.touch(&[0, page as u64, 2 * page as u64]).unwrap();
        assert!(memory.is_in_memory(at, 3 * page));
        assert_eq!(memory.bytes(at, 3 * page as u64).unwrap(), vec![7; 3 * page]);
    }

    #[test]
    fn what_is_refused_is_not_read_and_ends_what_is() {
        let text = format!("{}\0", "x".repeat(99));
        let at = Address(text.as_ptr() as u64);
        let process = ProcessFiles::of(std::process::id() as i32);
        let memory = |from: u64, length: u64| {
            let refused = RangeSet::from_iter([AddressRange::sized(Address(at.0 + from), length)]);
            ProcessMemoryFile::open(&process, refused).unwrap()
        };
        assert_eq!(memory(200, 1).bytes(at, 100).unwrap(), text.as_bytes());
        assert_eq!(memory(200, 1).text(at).unwrap(), "x".repeat(99));
        assert!(memory(0, 8).bytes(at, 100).is_none() && memory(50, 8).bytes(at, 100).is_none());
        assert_eq!(memory(50, 8).bytes(at, 50).unwrap(), text.as_bytes()[..50]);
        assert!(memory(0, 8).words::<1>(Address(0)).is_none(), "nothing is mapped there");
    }
}
