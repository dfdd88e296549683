//! The files of one process under `/proc` (proc(5)).

use crate::{AuxiliaryVector, ObservationError, printable};
use address_space::{
    Address, AddressSpace, MappingFlags, MappingUsage, MapsError, PageSize, ProcessStat, parse_flags, parse_smaps,
};
use linux::bounded::KERNEL_TEXT;
use linux::text::{bytes_of, open_of_process};
use linux::watch::watched;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// Number of bytes of smaps that are read at once: the most that the kernel gives per read where pages have 4 KiB.
const READ_AT_ONCE: usize = 4 << 10;
/// Number of times that the mappings of a process that keeps changing them are read.
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

    /// The files of this program, also where `/proc` numbers the processes of another PID namespace.
    pub fn own() -> Self {
        Self { pid: std::process::id() as i32, directory: PathBuf::from("/proc/self") }
    }

    /// Refuses a number of another PID namespace: `unshare --pid` leaves the old `/proc` in place, and `nsenter --mount` leads to
    /// the `/proc` of others; both show other processes under the same numbers.
    ///
    /// # Errors
    /// [`ObservationError::OtherNumbers`].
    pub fn check_number(&self) -> Result<(), ObservationError> {
        static ALIKE: OnceLock<bool> = OnceLock::new();
        let own = Path::new("/proc/self");
        match self.directory == own || *ALIKE.get_or_init(|| numbers_this_program(own)) {
            true => Ok(()),
            false => Err(ObservationError::OtherNumbers { pid: self.pid }),
        }
    }

    /// The path of the file that the process executes, as the kernel shows it.
    pub fn executed_path(&self) -> Option<PathBuf> {
        self.check_number().ok()?;
        std::fs::read_link(self.path("exe")).ok()
    }

    /// Time of the process's start in clock ticks since boot, which distinguishes it from a later process with this PID. Reading
    /// it takes none of the locks that a program can hold. `None` if it has ended.
    pub fn start_time(&self) -> Option<u64> {
        // The name in it is any bytes.
        ProcessStat::parse(&self.bytes("stat").ok()?)?.start_time()
    }

    /// The PID.
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

    /// The mappings with the smaps entry of each, from `/proc/PID/smaps`.
    ///
    /// # Errors
    /// [`ObservationError`].
    pub fn smaps(&self) -> Result<Vec<MappingUsage>, ObservationError> {
        self.consistent(|| in_order(parse_smaps(&self.text("smaps")?)?))
    }

    /// Returns the smaps entries of the mappings that begin below `end`, as [`ProcessFiles::mapping_flags_below`] returns
    /// the flags.
    ///
    /// # Errors
    /// [`ObservationError`].
    pub fn smaps_below(&self, end: Address) -> Result<Vec<MappingUsage>, ObservationError> {
        self.consistent(|| in_order(parse_smaps(&self.accounts_below(end, &[])?)?))
    }

    /// Returns the flags of each mapping that begins below `end`, from `/proc/PID/smaps`. The kernel walks a mapping's
    /// page tables when its entry is read, so entries above `end` are not read.
    ///
    /// # Errors
    /// [`ObservationError`].
    pub fn mapping_flags_below(&self, end: Address) -> Result<Vec<MappingFlags>, ObservationError> {
        self.consistent(|| Ok(parse_flags(&self.accounts_below(end, &["VmFlags:", "ProtectionKey:"])?)?))
    }

    /// The entries with only the lines of these fields; with all lines if none is named.
    fn accounts_below(&self, end: Address, fields: &[&str]) -> Result<String, ObservationError> {
        self.check_number()?;
        let path = self.path("smaps");
        let explained = |error| self.explain(&path, error);
        let mut file = open_of_process(&path).map_err(explained)?;
        let mut kept = Vec::with_capacity(READ_AT_ONCE);
        let (mut piece, mut begun) = (vec![0; READ_AT_ONCE], 0);
        loop {
            if begun == piece.len() {
                piece.resize(2 * begun, 0);
            }
            // The kernel gives at most a page of text for each read, in most cases whole entries.
            let piece_read = || file.read(&mut piece[begun..]);
            let read = watched(|| format!("reading {}", path.display()), piece_read).map_err(explained)?;
            let text = &piece[..begun + read];
            let lines = text.iter().rposition(|&byte| byte == b'\n').map_or(0, |last| last + 1);
            if keep_below(end, fields, &text[..lines], &mut kept) || read == 0 {
                return Ok(
                    String::from_utf8(kept).unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into_owned())
                );
            }
            if (kept.len() + piece.len()) as u64 > KERNEL_TEXT.bytes() {
                return Err(explained(KERNEL_TEXT.exceeded()));
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

    /// The base page of the process; of this program, if the process (a 32-bit one) does not report it.
    ///
    /// # Errors
    /// [`ObservationError`].
    pub fn page_size(&self) -> Result<PageSize, ObservationError> {
        let told = |files: &Self| files.auxiliary().map(|auxiliary| auxiliary.page_size());
        if let Ok(Some(size)) = told(self) {
            return Ok(size);
        }
        told(&Self::own())?.ok_or(ObservationError::ProcNotMounted)
    }

    /// The auxiliary vector of the program, from `/proc/PID/auxv`.
    ///
    /// # Errors
    /// [`ObservationError`].
    pub fn auxiliary(&self) -> Result<AuxiliaryVector, ObservationError> {
        Ok(AuxiliaryVector::parse(&self.bytes("auxv")?))
    }

    /// Returns one of its files as text; what is not UTF-8 (a path in maps) is replaced.
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
        self.check_number()?;
        let path = self.path(name);
        let read = watched(|| format!("reading {}", path.display()), || bytes_of(&path));
        read.map_err(|error| self.explain(&path, error))
    }

    /// The meaning of a failure to read one of the process's files.
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

/// Refuses mappings that overlap: the process has changed while they were read.
fn in_order(usages: Vec<MappingUsage>) -> Result<Vec<MappingUsage>, ObservationError> {
    let overlap = usages.windows(2).position(|w| w[0].mapping.range.end() > w[1].mapping.range.start());
    match overlap {
        None => Ok(usages),
        Some(at) => Err(MapsError { line: 1 + at, text: usages[at + 1].mapping.range.to_string() }.into()),
    }
}

/// Adds to `kept` the lines of smaps that are headers or `fields` (all if none is named), and returns true at the entry
/// of the first mapping at `end` or above. Each entry has over twenty lines.
fn keep_below(end: Address, fields: &[&str], lines: &[u8], kept: &mut Vec<u8>) -> bool {
    for line in lines.split_inclusive(|&byte| byte == b'\n') {
        let is_header = line.first().is_some_and(|byte| !byte.is_ascii_uppercase());
        if is_header && start_of(line).is_some_and(|start| start >= end.0) {
            return true;
        }
        if is_header || fields.is_empty() || fields.iter().any(|field| line.starts_with(field.as_bytes())) {
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

/// True if `/proc/self`, at `own`, is the number of this program, or if there is no `/proc`, which other errors report. The link is
/// there for every process, and cannot be read by one that the PID namespace of this `/proc` does not show.
fn numbers_this_program(own: &Path) -> bool {
    match std::fs::read_link(own) {
        Ok(shown) => shown.to_str().and_then(|shown| shown.parse().ok()) == Some(std::process::id()),
        Err(_) => own.symlink_metadata().is_err(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use address_space::MappingName;

    #[test]
    fn a_list_of_other_processes_is_recognised() {
        let folder = tempfile::tempdir().unwrap();
        let own = folder.path().join("self");
        assert!(numbers_this_program(&own), "no list of processes");
        std::fs::write(&own, "").unwrap();
        assert!(!numbers_this_program(&own), "a link that cannot be read");
        for (number, is_own) in [(std::process::id(), true), (std::process::id() + 1, false)] {
            std::fs::remove_file(&own).unwrap();
            std::os::unix::fs::symlink(number.to_string(), &own).unwrap();
            assert_eq!(numbers_this_program(&own), is_own);
        }
        assert!(numbers_this_program(Path::new("/proc/self")));
    }

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
        let below = files.smaps_below(last.range.end()).unwrap();
        assert!(
            below.iter().map(|usage| usage.mapping.range).eq(some.iter().map(|mapping| mapping.range)),
            "{below:?}"
        );
        assert!(below.iter().any(|usage| usage.resident > 0));
    }

    #[test]
    fn a_number_that_nobody_has_is_named() {
        // Above the kernel's largest possible number (PID_MAX_LIMIT is 4 million).
        let error = ProcessFiles::of(i32::MAX).maps().unwrap_err();
        assert!(matches!(error, ObservationError::NoSuchProcess { pid: i32::MAX }), "{error}");
    }
}
