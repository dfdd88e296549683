//! Reads an open file by positions, and never past a budget: a hostile file makes a reader read more than it is long.

use crate::StoreError;
use address_space::ElfImage;
use object::ReadCache;
use object::read::ReadCacheOps;
use observation::FileIdentity;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// More of a file than this is never read for its headers.
const MOST_HEADER_BYTES: u64 = 16 << 20;
/// More than one tick of the slowest clock that stamps files (10 ms where the kernel ticks 100 times a second).
const TICK: Duration = Duration::from_millis(25);
/// The same for file systems that know whole seconds only (FAT even pairs of them).
const WHOLE_SECONDS: Duration = Duration::from_secs(3);

/// The identity of an open regular file.
pub(crate) fn identity(file: &File) -> Result<FileIdentity, StoreError> {
    let metadata = file.metadata().map_err(|error| StoreError::io("fstat of the source", error))?;
    if !metadata.is_file() {
        return Err(StoreError::NotARegularFile);
    }
    Ok(FileIdentity::of(&metadata))
}

/// The identity of a file that has stayed the same for so long that every later change gives it another identity.
///
/// Files are stamped with a clock that stands still for some milliseconds: a change within the same tick as the one
/// before leaves the times as they are.
pub(crate) fn settled_identity(file: &File) -> Result<FileIdentity, StoreError> {
    let found = identity(file)?;
    if found.changed == (0, 0) {
        return Err(StoreError::NoTimeOfChange);
    }
    let newest = found.changed.max(found.modified);
    let whole_seconds = found.changed.1 == 0;
    let Some(age) = age_of(newest) else { return Ok(found) };
    if whole_seconds && age < WHOLE_SECONDS {
        return Err(StoreError::SourceChanging);
    }
    if age < TICK {
        std::thread::sleep(TICK);
        return if identity(file)? == found { Ok(found) } else { Err(StoreError::SourceChanging) };
    }
    Ok(found)
}

/// How long ago a time was; `None` for one that lies ahead by more than a tick.
fn age_of((seconds, nanoseconds): (i64, i64)) -> Option<Duration> {
    let time = Duration::new(seconds.try_into().ok()?, nanoseconds.try_into().ok()?);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
    now.checked_sub(time).or_else(|| (time - now < TICK).then_some(Duration::ZERO))
}

/// The loadable shape of an open file; of the file only its headers are read.
///
/// # Errors
/// [`StoreError`] where it is no regular file, or no sound ELF file.
pub fn read_elf(file: &File) -> Result<ElfImage, StoreError> {
    let length = identity(file)?.size;
    elf_image(file, length)
}

/// The loadable shape of an open file of `length` bytes.
pub(crate) fn elf_image(file: &File, length: u64) -> Result<ElfImage, StoreError> {
    Ok(ElfImage::parse(&cache(file, length))?)
}

/// A view of the file for readers of ELF files.
pub(crate) fn cache(file: &File, length: u64) -> ReadCache<Positioned<'_>> {
    ReadCache::new(Positioned { file, length, position: 0, budget: MOST_HEADER_BYTES })
}

/// Does not depend on the descriptor's own position, which it may share with others.
pub(crate) struct Positioned<'a> {
    file: &'a File,
    length: u64,
    position: u64,
    budget: u64,
}

impl Positioned<'_> {
    fn spend(&mut self, bytes: usize) -> Result<(), ()> {
        self.budget = self.budget.checked_sub(bytes as u64).ok_or(())?;
        Ok(())
    }
}

impl ReadCacheOps for Positioned<'_> {
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
