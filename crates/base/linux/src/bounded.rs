//! Bounds in bytes on what is read of other processes and files: a hostile program or file chooses its sizes freely.
//!
//! All such bounds are in this file, so that one page shows how much memory a command can take. Each is far above the
//! needs of real programs: input beyond it is hostile or damaged.

use std::fs::File;
use std::io::{self, BufRead, BufReader, ErrorKind, Read};

/// Maximum number of bytes that may be read from one source, or kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MemoryBound(u64);

/// One file of `/proc` or `/sys`. smaps of 65,530 mappings, the default maximum, has about 50 MB.
pub const KERNEL_TEXT: MemoryBound = MemoryBound::mebibytes(128);

/// Headers of one ELF file; valid ones have about 2 kB.
pub const ELF_HEADERS: MemoryBound = MemoryBound::mebibytes(4);

/// Headers kept for all ELF files of one process; a program with 500 libraries has about 300 kB.
pub const ELF_IMAGES: MemoryBound = MemoryBound::mebibytes(64);

/// Symbol tables read from one ELF file. Those of a browser with all its symbols have about 150 MB.
pub const SYMBOL_TABLES: MemoryBound = MemoryBound::mebibytes(160);

/// Symbols kept of one process, with their names.
pub const SYMBOLS: MemoryBound = MemoryBound::mebibytes(128);

/// Unpacked size of an ELF file's compressed symbol table (`.gnu_debugdata`); real ones have less than 10 MB.
pub const UNPACKED_SYMBOLS: MemoryBound = MemoryBound::mebibytes(64);

/// The sections of one ELF file by which stacks are unwound (`.eh_frame` and its index). Those of a browser have about 20 MB.
pub const UNWIND_TABLES: MemoryBound = MemoryBound::mebibytes(64);

/// Sections kept of one process by which its stacks are unwound.
pub const UNWIND_TABLES_OF_PROCESS: MemoryBound = MemoryBound::mebibytes(128);

/// Names of the slots through which the stubs of one ELF file jump.
pub const SLOT_NAMES: MemoryBound = MemoryBound::mebibytes(16);

/// A perf map that Pagelift writes.
pub const PERF_MAP: MemoryBound = MemoryBound::mebibytes(128);

/// A perf map that a program writes for code that it generates. It is read line by line, not kept.
pub const PERF_MAP_OF_PROGRAM: MemoryBound = MemoryBound::mebibytes(256);

/// Names of libraries and symbols kept of one ELF file to identify its allocator; a few kilobytes.
pub const ALLOCATOR_NAMES: MemoryBound = MemoryBound::mebibytes(1);

/// Facts of the files of one program that are kept between starts; a browser's 113 libraries have 60 KiB.
pub const KEPT_FACTS: MemoryBound = MemoryBound::mebibytes(1);

/// The environment of a process; the kernel lets an exec have 6 MiB of arguments and environment with the usual stack.
pub const ENVIRONMENT: MemoryBound = MemoryBound::mebibytes(32);

/// Bytes read from the mapped heap library to find its account; it exports about a hundred symbols.
pub const HEAP_LIBRARY: MemoryBound = MemoryBound::mebibytes(4);

/// The mappings of files that are kept of all processes. A machine with 1,000 processes of 100 libraries each has about 100 MB.
pub const MAPPED_FILES: MemoryBound = MemoryBound::mebibytes(512);

/// The record of an attempt to get a file into huge folios; it holds a number for each block of the file.
pub const PAGE_CACHE_RECORD: MemoryBound = MemoryBound::mebibytes(4);

/// A record of `pagelift bench`. A day of blocks of 400 ms windows has about 40 MB.
pub const BENCH_RECORD: MemoryBound = MemoryBound::mebibytes(64);

/// The verdicts of `pagelift agent`. 1,000 keys with 24 measurements each have about 5 MB.
pub const VERDICTS: MemoryBound = MemoryBound::mebibytes(16);

/// The report of one lift, which a run writes for `pagelift bench`; a program with 500 libraries has about 1 MB.
pub const LIFT_REPORT: MemoryBound = MemoryBound::mebibytes(16);

/// The end of the output that a load (`pagelift bench` reads a number from it) or a server at its start prints in one
/// burst.
pub const LOAD_OUTPUT: MemoryBound = MemoryBound::mebibytes(1);

/// Maximum length of one line, in bytes; a longer line is returned in pieces.
const LONGEST_LINE: u64 = 16 << 10;

impl MemoryBound {
    const fn mebibytes(number: u64) -> Self {
        Self(number << 20)
    }

    /// The bound in bytes.
    pub const fn bytes(self) -> u64 {
        self.0
    }

    /// Reads the rest of `file`.
    ///
    /// # Errors
    /// Those of reading; [`ErrorKind::FileTooLarge`] where there is more than the bound allows.
    pub fn read_rest(self, file: impl Read) -> io::Result<Vec<u8>> {
        self.read_behind(Vec::new(), file)
    }

    /// Like [`MemoryBound::read_rest`], but appends to `bytes`, which have been read already and count.
    ///
    /// # Errors
    /// As [`MemoryBound::read_rest`].
    pub fn read_behind(self, mut bytes: Vec<u8>, file: impl Read) -> io::Result<Vec<u8>> {
        let left = self.0.saturating_sub(bytes.len() as u64);
        file.take(left + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > self.0 { Err(self.exceeded()) } else { Ok(bytes) }
    }

    /// The error for a source that exceeds the bound.
    pub fn exceeded(self) -> io::Error {
        io::Error::new(ErrorKind::FileTooLarge, format!("more than {} MiB, which no sound one has", self.0 >> 20))
    }

    /// A budget of as many bytes as the bound.
    pub const fn budget(self) -> Budget {
        Budget { left: self.0 }
    }
}

/// The rest of a [`MemoryBound`] that is still to be spent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    left: u64,
}

impl Budget {
    /// Bytes that are left.
    pub fn left(&self) -> u64 {
        self.left
    }

    /// Takes `bytes` from the budget. Returns false and takes nothing where fewer are left.
    #[must_use]
    pub fn spend(&mut self, bytes: u64) -> bool {
        match self.left.checked_sub(bytes) {
            Some(left) => {
                self.left = left;
                true
            }
            None => false,
        }
    }
}

/// Lines of a file up to a bound, one in memory at a time.
pub struct LineReader<'a> {
    file: io::Take<BufReader<&'a File>>,
    line: Vec<u8>,
}

impl<'a> LineReader<'a> {
    /// Reads lines from the position of `file`, up to `bound` bytes.
    pub fn new(file: &'a File, bound: MemoryBound) -> Self {
        Self { file: BufReader::new(file).take(bound.bytes()), line: Vec::new() }
    }

    /// Returns the next line without its line end, or `None` after the last.
    ///
    /// # Errors
    /// Those of reading.
    pub fn next_line(&mut self) -> io::Result<Option<&[u8]>> {
        self.line.clear();
        let read = (&mut self.file).take(LONGEST_LINE).read_until(b'\n', &mut self.line)?;
        Ok((read > 0).then(|| self.line.strip_suffix(b"\n").unwrap_or(&self.line)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Seek, Write};

    #[test]
    fn nothing_is_read_beyond_the_bound() {
        let bound = MemoryBound(10);
        assert_eq!(bound.read_rest(&b"0123456789"[..]).unwrap(), b"0123456789");
        assert_eq!(bound.read_rest(&b"0123456789a"[..]).unwrap_err().kind(), ErrorKind::FileTooLarge);
        assert_eq!(bound.read_behind(b"0123".to_vec(), &b"456789"[..]).unwrap(), b"0123456789");
        assert!(bound.read_behind(b"0123".to_vec(), io::repeat(0)).is_err());
    }

    #[test]
    fn a_budget_is_spent_once() {
        let mut budget = MemoryBound(10).budget();
        assert!(budget.spend(6) && !budget.spend(5) && budget.spend(4) && !budget.spend(1));
    }

    #[test]
    fn lines_are_bounded_each_and_together() {
        let path = std::env::temp_dir().join(format!("pagelift-lines-{}", std::process::id()));
        let mut file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let long = "x".repeat(LONGEST_LINE as usize + 5);
        write!(file, "one\n\n{long}\nlast").unwrap();
        let lengths = |bound| {
            (&file).rewind().unwrap();
            let mut lines = LineReader::new(&file, bound);
            std::iter::from_fn(|| lines.next_line().unwrap().map(<[u8]>::len)).collect::<Vec<_>>()
        };
        assert_eq!(lengths(MemoryBound(1 << 20)), [3, 0, LONGEST_LINE as usize, 5, 4]);
        assert_eq!(lengths(MemoryBound(2)), [2]);
    }
}
