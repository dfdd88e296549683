//! The kernel's operations that a preparation needs, for one file. Tests use a simulated page cache.

use crate::file_system::FileSystem;
use crate::look::{Hold, Looked, huge_blocks, touch_failed};
use crate::{Error, MappedFiles, Refusal, blocks::offsets_of};
use address_space::PageSize;
use linux::file_cache::{CachedPages, cached_pages};
use linux::file_mapping::FileMapping;
use linux::pages::base_page;
use nix::errno::Errno;
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use process_view::ProcessFiles;
use shared_memory::most_holes;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::ops::Range;
use std::time::{Duration, Instant};

/// Bytes that one call reads ahead: the kernel reads no more than the device's limit, and this is the usual one
/// (`read_ahead_kb`).
const READ_AHEAD: usize = 128 << 10;

/// The page cache of one file, in blocks, which go by their numbers.
pub(crate) trait PageCache {
    /// Keeps blocks in huge folios mapped until it is dropped.
    type Hold: Default;
    /// A mapping of some blocks, until it is dropped.
    type Mapping;

    /// Finds the blocks in huge folios, and holds them. Others are not mapped afterwards.
    fn look(&self, blocks: &Range<u64>) -> Result<Looked<Self::Hold>, Error>;
    /// True if a block may be collapsed or read whole. That fills its holes with memory, which is charged to the caller. If
    /// the pages are the only copy, they stay, so that at most an eighth may be holes. Otherwise the kernel can reclaim
    /// them, and only a block that consists of holes is left alone.
    fn may_be_filled(&self, block: u64) -> Result<bool, Error>;
    /// Maps blocks so that they can be collapsed.
    fn map_to_collapse(&self, blocks: &Range<u64>) -> Result<Self::Mapping, Error>;
    /// Collapses one of the mapped blocks in place.
    fn collapse(&self, mapping: &Self::Mapping, block: u64) -> Result<(), Errno>;
    /// Maps blocks so that a page which is missing is read with its whole block.
    fn map_to_create(&self, blocks: &Range<u64>) -> Result<Self::Mapping, Error>;
    /// Makes the first page of a mapped block present. A block that has been truncated or cannot be read stays untouched.
    fn touch(&self, mapping: &Self::Mapping, block: u64) -> Result<(), Error>;
    /// Evicts those pages of a block that nobody maps or uses.
    fn evict(&self, block: u64) -> Result<(), Error>;
    /// Begins to read the missing pages of a block.
    fn read_ahead(&self, block: u64);
    /// Counts pages of blocks; `None` if the kernel does not report them.
    fn cached(&self, blocks: &Range<u64>) -> Option<CachedPages>;
    /// Writes changed pages to the disk, if that is possible.
    fn write_back(&self);
    /// True if pages may be evicted, since they are not the only copy.
    fn can_be_evicted(&self) -> Result<bool, Error>;
    /// Why evicting and reading again would be in vain, if that is known.
    fn refuse(&self) -> Result<Option<Refusal>, Error>;
    /// The name of the file system.
    fn file_system(&self) -> Result<String, Error>;
    /// Finds the processes that map pages in these blocks.
    fn holders(&self, blocks: &Range<u64>) -> Result<Holders, Error>;
    /// True if memory is free in pieces of a huge page, and if that is unknown.
    fn has_free_huge_pages(&self) -> bool;
    /// Waits for pages in use.
    fn pause(&self, time: Duration);
    /// Time since the preparation began.
    fn elapsed(&self) -> Duration;
}

/// The other processes that have pages of a file mapped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Holders {
    /// The processes, with their names, by block.
    pub by_block: BTreeMap<u64, Vec<(i32, String)>>,
    /// The processes among them that map the file by shared mappings only (`MAP_SHARED`), for reading. Code is mapped
    /// privately; Pagelift itself makes such a mapping for a moment whenever it reads the state of a file.
    pub sharers: BTreeSet<i32>,
    /// Number of processes that this user cannot inspect, or that do not answer.
    pub unseen: u64,
}

/// The running kernel's page cache of an open file.
#[derive(Debug)]
pub(crate) struct KernelCache<'a> {
    pub file: &'a File,
    pub huge: PageSize,
    pub begin: Instant,
}

/// A mapping, and the number of its first block.
pub(crate) struct BlockMapping {
    mapping: FileMapping,
    first: u64,
}

impl KernelCache<'_> {
    fn mapping(
        &self,
        blocks: &Range<u64>,
        map: fn(&File, u64, u64, PageSize) -> std::io::Result<FileMapping>,
    ) -> Result<BlockMapping, Error> {
        let Range { start, end } = offsets_of(blocks, self.huge);
        let mapping =
            map(self.file, start, end - start, self.huge).map_err(|error| Error::new("mapping the file", error))?;
        Ok(BlockMapping { mapping, first: blocks.start })
    }

    fn advise(&self, offsets: Range<u64>, advice: PosixFadviseAdvice) -> Result<(), Errno> {
        posix_fadvise(self.file, offsets.start as i64, (offsets.end - offsets.start) as i64, advice)
    }

    fn kind(&self) -> Result<FileSystem, Error> {
        FileSystem::of(self.file).map_err(|error| Error::new("fstatfs", error))
    }

    fn place(&self, mapping: &BlockMapping, block: u64) -> u64 {
        (block - mapping.first) * self.huge.bytes()
    }
}

impl PageCache for KernelCache<'_> {
    type Hold = Hold;
    type Mapping = BlockMapping;

    fn look(&self, blocks: &Range<u64>) -> Result<Looked, Error> {
        huge_blocks(self.file, blocks, self.huge)
    }

    fn may_be_filled(&self, block: u64) -> Result<bool, Error> {
        let offsets = offsets_of(&(block..block + 1), self.huge);
        let of_disk = self.can_be_evicted()?;
        let most = if of_disk { self.huge.bytes() - 1 } else { most_holes(self.huge) };
        // On tmpfs all data are in memory or swapped. Counting them waits for no lock, as lseek does.
        if !of_disk && let Ok(pages) = cached_pages(self.file, offsets.clone()) {
            let data = pages.cached.saturating_add(pages.evicted).saturating_mul(base_page().bytes());
            return Ok(self.huge.bytes().saturating_sub(data) <= most);
        }
        linux::file_holes::holes_in(self.file, offsets, most)
            .map(|holes| holes <= most)
            .map_err(|error| Error::new("lseek(SEEK_DATA)", error))
    }

    fn map_to_collapse(&self, blocks: &Range<u64>) -> Result<BlockMapping, Error> {
        self.mapping(blocks, FileMapping::executable_if_allowed)
    }

    fn collapse(&self, mapping: &BlockMapping, block: u64) -> Result<(), Errno> {
        mapping
            .mapping
            .collapse_part(self.place(mapping, block), self.huge.bytes())
            .map_err(|error| Errno::from_raw(error.raw_os_error().unwrap_or_default()))
    }

    fn map_to_create(&self, blocks: &Range<u64>) -> Result<BlockMapping, Error> {
        let found = self.mapping(blocks, FileMapping::readable)?;
        found.mapping.prefer_huge().map_err(|error| Error::new("madvise(MADV_HUGEPAGE)", error))?;
        // Else the kernel begins to read the next block, too, and in smaller pieces, which cannot be evicted while they are read.
        found.mapping.expect_random_reads().map_err(|error| Error::new("madvise(MADV_RANDOM)", error))?;
        Ok(found)
    }

    fn touch(&self, mapping: &BlockMapping, block: u64) -> Result<(), Error> {
        mapping.mapping.touch(&[self.place(mapping, block)]).map_err(touch_failed)
    }

    fn evict(&self, block: u64) -> Result<(), Error> {
        self.advise(offsets_of(&(block..block + 1), self.huge), PosixFadviseAdvice::POSIX_FADV_DONTNEED)
            .map_err(|error| Error::new("posix_fadvise(POSIX_FADV_DONTNEED)", error))
    }

    fn read_ahead(&self, block: u64) {
        let Range { start, end } = offsets_of(&(block..block + 1), self.huge);
        for at in (start..end).step_by(READ_AHEAD) {
            let part = at..end.min(at + READ_AHEAD as u64);
            // Processes that need the pages read them otherwise.
            let _ = self.advise(part, PosixFadviseAdvice::POSIX_FADV_WILLNEED);
        }
    }

    fn cached(&self, blocks: &Range<u64>) -> Option<CachedPages> {
        cached_pages(self.file, offsets_of(blocks, self.huge)).ok()
    }

    fn write_back(&self) {
        // File systems that cannot be written have nothing to write back; other failures show afterwards.
        let _ = self.file.sync_data();
    }

    fn can_be_evicted(&self) -> Result<bool, Error> {
        Ok(self.kind()?.can_be_evicted())
    }

    fn refuse(&self) -> Result<Option<Refusal>, Error> {
        Ok(self.kind()?.refuse(self.file))
    }

    fn file_system(&self) -> Result<String, Error> {
        Ok(self.kind()?.name)
    }

    fn holders(&self, blocks: &Range<u64>) -> Result<Holders, Error> {
        let mapped = MappedFiles::read()?;
        let name = |pid| (pid, ProcessFiles::of(pid).name().unwrap_or_else(|_| "ended".to_owned()));
        let users = mapped.users_of(self.file, self.huge)?;
        let sharers = users.sharers();
        let found = users.holders_by_block(blocks, self.huge);
        let by_block = found.into_iter().map(|(block, pids)| (block, pids.into_iter().map(name).collect())).collect();
        Ok(Holders { by_block, sharers, unseen: mapped.unseen() })
    }

    fn has_free_huge_pages(&self) -> bool {
        let order = (self.huge.bytes() / base_page().bytes()).trailing_zeros() as usize;
        fs::read_to_string("/proc/buddyinfo").map_or(true, |text| has_free_pieces(&text, order))
    }

    fn pause(&self, time: Duration) {
        std::thread::sleep(time);
    }

    fn elapsed(&self) -> Duration {
        self.begin.elapsed()
    }
}

/// Lines such as `Node 0, zone   Normal   12   3 …`: free pieces of 1, 2, 4, … pages.
fn has_free_pieces(buddyinfo: &str, order: usize) -> bool {
    let free = |line: &str| line.split_ascii_whitespace().skip(4 + order).any(|count| count.parse() != Ok(0u64));
    buddyinfo.lines().any(free)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_pieces_are_counted_from_their_size_on() {
        let text = "Node 0, zone      DMA      0      0      1\nNode 0, zone   Normal    7    5    0\n";
        assert!(has_free_pieces(text, 2) && has_free_pieces(text, 0) && !has_free_pieces(text, 3));
        assert!(!has_free_pieces("Node 0, zone   Normal    7    5    0\n", 2) && !has_free_pieces("", 0));
    }
}
