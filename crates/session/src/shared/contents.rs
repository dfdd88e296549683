//! The contents of a segment, by block.
//!
//! lseek(SEEK_DATA) would find data, too, but waits for the lock of the file. A program can hold that lock for ever: by a write
//! from memory whose pages it does not deliver (userfaultfd, FUSE). Counting pages in the page cache takes no lock.

use address_space::PageSize;
use linux::file_cache::cached_pages;
use linux::file_mapping::FileMapping;
use linux::pages::base_page;
use nix::errno::Errno;
use nix::sys::statfs::{Statfs, TMPFS_MAGIC, fstatfs};
use shared_memory::{Contents, Held, Reason};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::time::Instant;

/// Most blocks with data that are stored for one segment: 2 TiB of data if a block has 2 MiB.
const MOST_BLOCKS: usize = 1 << 20;
/// Into so many parts a part is divided that is neither empty nor full.
const PARTS: u64 = 64;

/// Counts what each block of a tmpfs file holds.
///
/// # Errors
/// [`Reason::Unreadable`].
pub(super) fn contents(file: &File, huge: PageSize, until: Instant) -> Result<Contents, Reason> {
    let unreadable = |error: io::Error| Reason::Unreadable { why: error.to_string() };
    let tmpfs = fstatfs(file).map_err(|errno| unreadable(errno.into()))?;
    if tmpfs.filesystem_type() != TMPFS_MAGIC {
        return Err(Reason::Unreadable { why: "it is no longer on tmpfs".to_owned() });
    }
    let length = file.metadata().map_err(unreadable)?.len();
    let room = room_of(&tmpfs);
    let mut looking = Looking { file, huge, until, blocks: Vec::new(), by_mapping: false };
    let whole = 0..length.div_ceil(huge.bytes());
    let unseen = match looking.part(whole) {
        Ok(is_complete) => (!is_complete).then_some(Reason::TooScattered),
        Err(error) => return Err(unreadable(error)),
    };
    Ok(Contents { length, blocks: looking.blocks, already: 0, room, unseen })
}

/// Bytes that a tmpfs can still take; `None` without a limit. Before Linux 6.7 several CPUs together may have taken more than the
/// limit, and the kernel prints the number below zero without a sign (`shmem_statfs`).
fn room_of(tmpfs: &Statfs) -> Option<u64> {
    let left = Some(tmpfs.blocks_available()).filter(|left| *left <= tmpfs.blocks()).unwrap_or(0);
    (tmpfs.blocks() > 0).then(|| left.saturating_mul(tmpfs.block_size() as u64))
}

/// Bytes that the tmpfs of a file can still take; `None` without a limit.
///
/// # Errors
/// The kernel's.
pub(super) fn room(file: &File) -> io::Result<Option<u64>> {
    Ok(room_of(&fstatfs(file)?))
}

/// The data that one block holds.
///
/// # Errors
/// The kernel's.
pub(super) fn held_in(file: &File, huge: PageSize, block: u64) -> io::Result<Held> {
    let until = Instant::now();
    let mut looking = Looking { file, huge, until, blocks: Vec::new(), by_mapping: false };
    looking.count(&(block..block + 1))
}

struct Looking<'a> {
    file: &'a File,
    huge: PageSize,
    until: Instant,
    blocks: Vec<(u64, Held)>,
    /// The kernel does not count (before Linux 6.5).
    by_mapping: bool,
}

impl Looking<'_> {
    /// Adds the blocks of a range that have data. Returns false if there were too many, or no time was left.
    fn part(&mut self, blocks: Range<u64>) -> io::Result<bool> {
        let (number, block) = (blocks.end - blocks.start, self.huge.bytes());
        if number == 0 {
            return Ok(true);
        }
        if self.blocks.len() >= MOST_BLOCKS || Instant::now() >= self.until {
            return Ok(false);
        }
        let held = self.count(&blocks)?;
        // Swapped pages are located block by block.
        let is_full = held.present >= number.saturating_mul(block);
        if held.data() == 0 {
            return Ok(true);
        }
        if number == 1 || is_full {
            let room = MOST_BLOCKS - self.blocks.len();
            self.blocks
                .extend(blocks.take(room).map(|number| (number, Held { present: held.present.min(block), ..held })));
            return Ok(number as usize <= room);
        }
        let step = number.div_ceil(PARTS);
        let mut start = blocks.start;
        while start < blocks.end {
            let end = (start + step).min(blocks.end);
            if !self.part(start..end)? {
                return Ok(false);
            }
            start = end;
        }
        Ok(true)
    }

    /// The data of a range of blocks. mincore(2) does not distinguish swapped pages from holes.
    fn count(&mut self, blocks: &Range<u64>) -> io::Result<Held> {
        let block = self.huge.bytes();
        if !self.by_mapping {
            let offsets = blocks.start.saturating_mul(block)..blocks.end.saturating_mul(block);
            match cached_pages(self.file, offsets) {
                Ok(pages) => {
                    let bytes = |pages: u64| pages.saturating_mul(base_page().bytes());
                    return Ok(Held { present: bytes(pages.cached), swapped: bytes(pages.evicted), ..Held::default() });
                }
                Err(error) if error.raw_os_error() == Some(Errno::ENOSYS as i32) => self.by_mapping = true,
                Err(error) => return Err(error),
            }
        }
        // mincore(2) checks every page, so that a part of many blocks is not counted, but divided.
        if blocks.end - blocks.start > PARTS {
            return Ok(Held { present: 1, ..Held::default() });
        }
        let length = (blocks.end - blocks.start) * block;
        let mapping = FileMapping::readable(self.file, blocks.start * block, length, self.huge)?;
        Ok(Held { present: mapping.cached_bytes(0, length)?, ..Held::default() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;
    use std::time::Duration;

    fn huge() -> PageSize {
        PageSize::new(2 << 20).unwrap()
    }

    fn found(file: &File, by_mapping: bool) -> Vec<(u64, Held)> {
        let length = file.metadata().unwrap().len();
        let until = Instant::now() + Duration::from_secs(60);
        let mut looking = Looking { file, huge: huge(), until, blocks: Vec::new(), by_mapping };
        assert!(looking.part(0..length.div_ceil(huge().bytes())).unwrap());
        looking.blocks
    }

    #[test]
    fn blocks_with_data_are_found_by_either_way() {
        let (file, page, block) = (tempfile::tempfile_in("/dev/shm").unwrap(), base_page().bytes(), huge().bytes());
        file.set_len(1000 * block).unwrap();
        for block_of_data in [3, 700] {
            file.write_all_at(&vec![1; 2 * page as usize], block_of_data * block + page).unwrap();
        }
        file.write_all_at(&vec![1; 2 * block as usize], 500 * block).unwrap();
        let held = |present| Held { present, ..Held::default() };
        let expected = [(3, held(2 * page)), (500, held(block)), (501, held(block)), (700, held(2 * page))];
        assert_eq!(found(&file, true), expected);
        assert_eq!(found(&file, false), expected);
        assert_eq!(held_in(&file, huge(), 3).unwrap(), held(2 * page));
        assert_eq!(held_in(&file, huge(), 4).unwrap(), held(0));
    }

    #[test]
    fn a_sparse_file_of_a_terabyte_takes_few_looks() {
        let file = tempfile::tempfile_in("/dev/shm").unwrap();
        file.set_len(1 << 40).unwrap();
        file.write_all_at(b"x", (1 << 40) - 1).unwrap();
        let contents = contents(&file, huge(), Instant::now() + Duration::from_secs(60)).unwrap();
        assert_eq!((contents.blocks.len(), contents.unseen, contents.length), (1, None, 1 << 40));
        assert!(contents.room.is_some());
    }

    #[test]
    fn looking_ends_with_its_time() {
        let file = tempfile::tempfile_in("/dev/shm").unwrap();
        file.set_len(1 << 40).unwrap();
        file.write_all_at(b"x", 0).unwrap();
        let contents = contents(&file, huge(), Instant::now()).unwrap();
        assert_eq!((contents.blocks.len(), contents.unseen), (0, Some(Reason::TooScattered)));
    }

    #[test]
    fn what_is_no_tmpfs_is_refused() {
        let file = File::open("/proc/self/stat").unwrap();
        assert!(matches!(contents(&file, huge(), Instant::now()), Err(Reason::Unreadable { .. })));
    }
}
