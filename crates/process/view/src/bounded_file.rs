//! A file that limits how many bytes its reader may read.

use object::ReadCacheOps;
use std::cell::Cell;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Number of bytes at a file's beginning that are read at once. It contains most of the bytes needed from a sound ELF
/// file, which are read in seven pieces.
const BEGINNING: usize = 2 << 10;
/// Number of bytes that are read around a short piece: names of one table are close together.
const WINDOW: usize = 4 << 10;
/// Maximum length of a short piece, in bytes.
const SHORT: usize = 256;

/// Reads at positions, independent of the file's cursor, and never beyond a budget: a hostile file can make its reader
/// read more than its length.
#[derive(Debug)]
pub struct BoundedFile<'a> {
    file: &'a File,
    length: u64,
    position: u64,
    budget: u64,
    /// The file's first bytes, once any has been read.
    beginning: Option<Vec<u8>>,
    /// Position and bytes of the part in which a short piece was last read.
    window: (u64, Vec<u8>),
    /// Set once a read fails.
    failed: Option<&'a Cell<bool>>,
}

impl<'a> BoundedFile<'a> {
    /// A reader of `file`, `length` bytes long, that gives at most `budget` bytes in all.
    pub fn new(file: &'a File, length: u64, budget: u64) -> Self {
        Self { file, length, position: 0, budget, beginning: None, window: (0, Vec::new()), failed: None }
    }

    /// Sets `failed` once the kernel refuses to read the file. Readers of ELF files do not distinguish that from a damaged file.
    pub fn reporting(self, failed: &'a Cell<bool>) -> Self {
        Self { failed: Some(failed), ..self }
    }

    /// Returns the result of a read, and reports an error.
    fn report<T>(failed: Option<&Cell<bool>>, result: io::Result<T>) -> Option<T> {
        if let (Some(failed), Err(error)) = (failed, &result) {
            failed.set(failed.get() || is_refusal(error));
        }
        result.ok()
    }

    /// Returns the bytes at the position if all are in the file's beginning.
    fn read_beginning(&mut self, length: usize) -> Option<&[u8]> {
        let start = usize::try_from(self.position).ok()?;
        let end = start.checked_add(length).filter(|&end| end <= BEGINNING)?;
        let (file, failed) = (self.file, self.failed);
        let beginning = self.beginning.get_or_insert_with(|| {
            let mut bytes = vec![0; BEGINNING];
            let read = Self::report(failed, file.read_at(&mut bytes, 0)).unwrap_or(0);
            bytes.truncate(read);
            bytes
        });
        beginning.get(start..end)
    }

    /// Returns up to `length` bytes at the position, if they are a short piece within one window and were read already or can
    /// be read now.
    fn read_window(&mut self, length: usize) -> Option<&[u8]> {
        let start = self.position - self.position % WINDOW as u64;
        let inside = (self.position - start) as usize;
        if length > SHORT || inside + length > WINDOW {
            return None;
        }
        let (at, bytes) = &mut self.window;
        if bytes.is_empty() || *at != start {
            bytes.resize(WINDOW, 0);
            let read = Self::report(self.failed, self.file.read_at(bytes, start)).unwrap_or(0);
            bytes.truncate(read);
            *at = start;
        }
        bytes.get(inside..(inside + length).min(bytes.len())).filter(|bytes| !bytes.is_empty())
    }

    fn spend(&mut self, bytes: usize) -> Result<(), ()> {
        self.budget = self.budget.checked_sub(bytes as u64).ok_or(())?;
        Ok(())
    }
}

/// True for an error of the file or its medium; false if a damaged file leads to a place that no file has.
pub fn is_refusal(error: &io::Error) -> bool {
    !matches!(error.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::InvalidInput)
}

impl ReadCacheOps for BoundedFile<'_> {
    fn len(&mut self) -> Result<u64, ()> {
        Ok(self.length)
    }

    fn seek(&mut self, position: u64) -> Result<u64, ()> {
        self.position = position;
        Ok(position)
    }

    fn read(&mut self, buffer: &mut [u8]) -> Result<usize, ()> {
        self.spend(buffer.len())?;
        let count = match self.read_window(buffer.len()) {
            Some(bytes) => {
                buffer[..bytes.len()].copy_from_slice(bytes);
                bytes.len()
            }
            None => Self::report(self.failed, self.file.read_at(buffer, self.position)).ok_or(())?,
        };
        self.position += count as u64;
        Ok(count)
    }

    fn read_exact(&mut self, buffer: &mut [u8]) -> Result<(), ()> {
        self.spend(buffer.len())?;
        let length = buffer.len();
        if let Some(bytes) = self.read_beginning(length) {
            buffer.copy_from_slice(bytes);
        } else if let Some(bytes) = self.read_window(length).filter(|bytes| bytes.len() == length) {
            buffer.copy_from_slice(bytes);
        } else {
            Self::report(self.failed, self.file.read_exact_at(buffer, self.position)).ok_or(())?;
        }
        self.position += buffer.len() as u64;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_piece_has_the_bytes_of_its_place() {
        let path = std::env::current_exe().unwrap();
        let (file, bytes) = (File::open(&path).unwrap(), std::fs::read(&path).unwrap());
        let all = bytes.len();
        let mut bounded = BoundedFile::new(&file, all as u64, u64::MAX);
        let places = || (0..3 * WINDOW).step_by(97).chain(WINDOW - 3..WINDOW + 3).chain(all - SHORT - 9..all + SHORT);
        for (length, at) in
            [1, SHORT - 1, SHORT, SHORT + 1, WINDOW].into_iter().flat_map(|l| places().map(move |at| (l, at)))
        {
            let mut piece = vec![0; length];
            let whole = bytes.get(at..at + length);
            bounded.seek(at as u64).unwrap();
            assert_eq!(bounded.read_exact(&mut piece).ok(), whole.map(drop), "{length} at {at}");
            assert!(whole.is_none_or(|whole| piece == whole), "{length} at {at}");
            bounded.seek(at as u64).unwrap();
            let count = bounded.read(&mut piece).unwrap();
            assert_eq!(count, length.min(all.saturating_sub(at)), "{length} at {at}");
            assert_eq!(piece[..count], bytes[at.min(all)..][..count], "{length} at {at}");
        }
    }

    #[test]
    fn an_error_of_the_file_is_reported_and_a_damaged_one_is_none() {
        let write_only = tempfile::NamedTempFile::new().unwrap();
        write_only.as_file().set_len(8192).unwrap();
        let write_only = std::fs::OpenOptions::new().write(true).open(write_only.path()).unwrap();
        let own = File::open(std::env::current_exe().unwrap()).unwrap();
        for (file, is_reported) in [(&own, false), (&write_only, true)] {
            for (position, length) in [(0, 8), (4096, 8), (4096, 4096), (u64::MAX, 4096), (i64::MAX as u64, 1)] {
                let failed = Cell::new(false);
                let mut bounded = BoundedFile::new(file, u64::MAX, u64::MAX).reporting(&failed);
                bounded.seek(position).unwrap();
                let _ = bounded.read_exact(&mut vec![0; length]);
                let _ = bounded.read(&mut vec![0; length]);
                assert_eq!(failed.get(), is_reported && i64::try_from(position).is_ok(), "{length} at {position}");
            }
        }
    }
}
