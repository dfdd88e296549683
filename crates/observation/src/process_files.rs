//! The files of one process under `/proc` (proc(5)).

use crate::{AuxiliaryVector, ObservationError, printable};
use address_space::{Address, AddressSpace, MappingFlags, MappingUsage, MapsError, PageSize, parse_flags, parse_smaps};
use kernel_calls::text::bytes_of;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// Of the accounts of mappings, so much is read at once, and only what is asked for: the most that the kernel gives where
/// pages have 4 KiB. In bytes.
const READ_AT_ONCE: usize = 4 << 10;
/// So often the mappings of a process that changes them all the time are read before giving up.
const READ_ATTEMPTS: usize = 5;

/// The directory `/proc/PID` of one process.
#[derive(Clone, Debug)]
pub struct ProcessFiles {
    pid: i32,
    directory: PathBuf,
}

impl ProcessFiles {
    /// The files of process `pid`, numbered as this program's own PID namespace numbers it.
    pub fn of(pid: i32) -> Self {
        Self { pid, directory: PathBuf::from(format!("/proc/{pid}")) }
    }

    /// The process's number.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// The path of one of its files.
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// The mappings, from `/proc/PID/maps`. Empty for kernel threads and zombies.
    ///
    /// # Errors
    /// [`ObservationError`].
    pub fn maps(&self) -> Result<AddressSpace, ObservationError> {
        self.consistent(|| Ok(AddressSpace::parse(&self.text("maps")?)?))
    }

    /// The mappings with the kernel's account of each, from `/proc/PID/smaps`.
    ///
    /// # Errors
    /// [`ObservationError`].
    pub fn smaps(&self) -> Result<Vec<MappingUsage>, ObservationError> {
        self.consistent(|| {
            let usages = parse_smaps(&self.text("smaps")?)?;
            let overlap = usages.windows(2).position(|w| w[0].mapping.range.end() > w[1].mapping.range.start());
            match overlap {
                None => Ok(usages),
                Some(at) => Err(MapsError { line: 1 + at, text: usages[at + 1].mapping.range.to_string() }.into()),
            }
        })
    }

    /// What each mapping that begins below `end` is besides its protection, from `/proc/PID/smaps`. The kernel accounts for
    /// a mapping when its lines are read, by a walk of its page tables: what lies above is not asked for.
    ///
    /// # Errors
    /// [`ObservationError`].
    pub fn mapping_flags_below(&self, end: Address) -> Result<Vec<MappingFlags>, ObservationError> {
        self.consistent(|| Ok(parse_flags(&self.accounts_below(end)?)?))
    }

    fn accounts_below(&self, end: Address) -> Result<String, ObservationError> {
        let path = self.path("smaps");
        let explained = |error| self.explain(&path, error);
        let mut file = File::open(&path).map_err(explained)?;
        let mut kept = Vec::with_capacity(READ_AT_ONCE);
        let (mut piece, mut begun) = (vec![0; READ_AT_ONCE], 0);
        loop {
            if begun == piece.len() {
                piece.resize(2 * begun, 0);
            }
            // The kernel gives a page of text at most for each read, and mostly whole accounts.
            let read = file.read(&mut piece[begun..]).map_err(explained)?;
            let text = &piece[..begun + read];
            let lines = text.iter().rposition(|&byte| byte == b'\n').map_or(0, |last| last + 1);
            if keep_flags_below(end, &text[..lines], &mut kept) || read == 0 {
                return Ok(
                    String::from_utf8(kept).unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into_owned())
                );
            }
            begun = text.len() - lines;
            piece.copy_within(lines..lines + begun, 0);
        }
    }

    /// The kernel hands out the mappings of a running process page by page of text; one that grows in between may
    /// appear twice. Reading again then gives another picture.
    fn consistent<T>(&self, read: impl Fn() -> Result<T, ObservationError>) -> Result<T, ObservationError> {
        for _ in 1..READ_ATTEMPTS {
            match read() {
                Err(ObservationError::Maps(_)) => {}
                result => return result,
            }
        }
        read()
    }

    /// The name the kernel knows the process by (`/proc/PID/comm`), fit to be printed.
    ///
    /// # Errors
    /// [`ObservationError`].
    pub fn name(&self) -> Result<String, ObservationError> {
        let name = self.text("comm")?;
        Ok(printable(name.trim_end_matches('\n')))
    }

    /// The base page of the process; of this program, where the process (a 32-bit one) does not tell.
    ///
    /// # Errors
    /// [`ObservationError`].
    pub fn page_size(&self) -> Result<PageSize, ObservationError> {
        let told = |files: &Self| files.auxiliary().map(|auxiliary| auxiliary.page_size());
        if let Ok(Some(size)) = told(self) {
            return Ok(size);
        }
        let own = Self { pid: self.pid, directory: PathBuf::from("/proc/self") };
        told(&own)?.ok_or(ObservationError::ProcNotMounted)
    }

    /// What the kernel told the program at its start, from `/proc/PID/auxv`.
    ///
    /// # Errors
    /// [`ObservationError`].
    pub fn auxiliary(&self) -> Result<AuxiliaryVector, ObservationError> {
        Ok(AuxiliaryVector::parse(&self.bytes("auxv")?))
    }

    /// One of its files as text; what is no UTF-8 (a strange path in maps) is replaced.
    ///
    /// # Errors
    /// [`ObservationError`].
    pub fn text(&self, name: &str) -> Result<String, ObservationError> {
        let bytes = self.bytes(name)?;
        Ok(String::from_utf8(bytes).unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into_owned()))
    }

    /// One of its files.
    ///
    /// # Errors
    /// [`ObservationError`].
    pub fn bytes(&self, name: &str) -> Result<Vec<u8>, ObservationError> {
        let path = self.path(name);
        bytes_of(&path).map_err(|error| self.explain(&path, error))
    }

    /// What a failure to read one of the process's files means.
    pub(crate) fn explain(&self, path: &Path, source: io::Error) -> ObservationError {
        let pid = self.pid;
        match source.raw_os_error() {
            Some(libc::EACCES | libc::EPERM) => ObservationError::NotPermitted { pid },
            Some(libc::ENOENT | libc::ESRCH) if !Path::new("/proc/self/stat").exists() => {
                ObservationError::ProcNotMounted
            }
            Some(libc::ESRCH) => ObservationError::NoSuchProcess { pid },
            Some(libc::ENOENT) if !self.directory.exists() => ObservationError::NoSuchProcess { pid },
            _ => ObservationError::Io { path: path.to_owned(), source },
        }
    }
}

/// Adds to `kept` what [`parse_flags`] reads of these lines of smaps, and returns true at the account of the first mapping
/// that lies at `end` or above. There are over twenty other lines to each account.
fn keep_flags_below(end: Address, lines: &[u8], kept: &mut Vec<u8>) -> bool {
    for line in lines.split_inclusive(|&byte| byte == b'\n') {
        let is_header = line.first().is_some_and(|byte| !byte.is_ascii_uppercase());
        if is_header && start_of(line).is_some_and(|start| start >= end.0) {
            return true;
        }
        if is_header || line.starts_with(b"VmFlags:") || line.starts_with(b"ProtectionKey:") {
            kept.extend_from_slice(line);
        }
    }
    false
}

/// The address that a header line begins with.
fn start_of(line: &[u8]) -> Option<u64> {
    let word = line.split(|&byte| byte == b'-').next()?;
    u64::from_str_radix(str::from_utf8(word).ok()?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use address_space::MappingName;

    #[test]
    fn this_process_has_a_stack_and_a_page_size() {
        let files = ProcessFiles::of(std::process::id() as i32);
        let space = files.maps().unwrap();
        assert!(space.mappings().iter().any(|m| m.name == MappingName::Stack));
        let usages = files.smaps().unwrap();
        assert!(usages.iter().map(|u| u.resident).sum::<u64>() > 0);
        assert!(files.auxiliary().unwrap().page_size().unwrap().bytes() >= 4096);
    }

    #[test]
    fn accounts_are_read_as_far_as_they_are_asked_for() {
        let files = ProcessFiles::of(std::process::id() as i32);
        let all = files.mapping_flags_below(Address(u64::MAX)).unwrap();
        let program = std::env::current_exe().unwrap();
        let space = files.maps().unwrap();
        let last = space.mappings().iter().rfind(|m| m.path() == program.to_str()).unwrap();
        let some = files.mapping_flags_below(last.range.end()).unwrap();
        assert!(some.len() < all.len() && some.iter().all(|mapping| mapping.range.start() < last.range.end()));
        assert!(some.iter().any(|mapping| mapping.range == last.range && mapping.flags.contains("rd ")), "{some:?}");
        assert!(files.mapping_flags_below(Address(0)).unwrap().is_empty());
    }

    #[test]
    fn a_number_that_nobody_has_is_named() {
        // Above the kernel's largest possible number (PID_MAX_LIMIT is 4 million).
        let error = ProcessFiles::of(i32::MAX).maps().unwrap_err();
        assert!(matches!(error, ObservationError::NoSuchProcess { pid: i32::MAX }), "{error}");
    }
}
