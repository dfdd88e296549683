//! A file that limits how many bytes its reader may read.

use object::ReadCacheOps;
use std::fs::File;
use std::os::unix::fs::FileExt;

/// Number of bytes of a file's beginning that are read at once. It holds most of what is read of a sound ELF file, in
/// seven pieces.
const BEGINNING: usize = 2 << 10;

/// Reads at positions, independent of the file's cursor, and never beyond a budget: a hostile file can make its reader
/// read more than its length.
#[derive(Debug)]
pub struct BoundedFile<'a> {
    file: &'a File,
    length: u64,
    position: u64,
    budget: u64,
    /// The file's first bytes, once any of them has been read.
    beginning: Option<Vec<u8>>,
}

impl<'a> BoundedFile<'a> {
    /// A reader of `file`, `length` bytes long, that gives at most `budget` bytes in all.
    pub fn new(file: &'a File, length: u64, budget: u64) -> Self {
        Self { file, length, position: 0, budget, beginning: None }
    }

    /// Returns the bytes at the position, where all of them lie in the file's beginning.
    fn read_beginning(&mut self, length: usize) -> Option<&[u8]> {
        let start = usize::try_from(self.position).ok()?;
        let end = start.checked_add(length).filter(|&end| end <= BEGINNING)?;
        let file = self.file;
        let beginning = self.beginning.get_or_insert_with(|| {
            let mut bytes = vec![0; BEGINNING];
            let read = file.read_at(&mut bytes, 0).unwrap_or(0);
            bytes.truncate(read);
            bytes
        });
        beginning.get(start..end)
    }

    fn spend(&mut self, bytes: usize) -> Result<(), ()> {
        self.budget = self.budget.checked_sub(bytes as u64).ok_or(())?;
        Ok(())
    }
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
        let count = self.file.read_at(buffer, self.position).map_err(|_| ())?;
        self.position += count as u64;
        Ok(count)
    }

    fn read_exact(&mut self, buffer: &mut [u8]) -> Result<(), ()> {
        self.spend(buffer.len())?;
        match self.read_beginning(buffer.len()) {
            Some(bytes) => buffer.copy_from_slice(bytes),
            None => self.file.read_exact_at(buffer, self.position).map_err(|_| ())?,
        }
        self.position += buffer.len() as u64;
        Ok(())
    }
}
