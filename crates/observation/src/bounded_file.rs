//! A file as a source of bytes for readers that cannot be trusted to stop.

use object::ReadCacheOps;
use std::fs::File;
use std::os::unix::fs::FileExt;

/// Reads at positions, so that nothing depends on the file's cursor, and never past a budget: a hostile file makes
/// the reader read more than it is long.
#[derive(Debug)]
pub struct BoundedFile<'a> {
    file: &'a File,
    length: u64,
    position: u64,
    budget: u64,
}

impl<'a> BoundedFile<'a> {
    /// A reader of `file`, `length` bytes long, that gives at most `budget` bytes in all.
    pub fn new(file: &'a File, length: u64, budget: u64) -> Self {
        Self { file, length, position: 0, budget }
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
        self.file.read_exact_at(buffer, self.position).map_err(|_| ())?;
        self.position += buffer.len() as u64;
        Ok(())
    }
}
