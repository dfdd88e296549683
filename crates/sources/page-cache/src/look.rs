//! The blocks of a file that are in huge folios.

use crate::blocks::{offsets_of, runs, whole_blocks};
use address_space::{AddressRange, PageSize, RangeSet};
use linux::file_cache::cached_pages;
use linux::file_holes::{next_data, next_hole};
use linux::file_mapping::FileMapping;
use linux::pagemap::Pagemap;
use linux::pages::base_page;
use process_view::ProcessFiles;
use std::fs::File;
use std::io;
use std::ops::Range;

/// A failure to read the state of the page cache.
#[derive(Debug, thiserror::Error)]
#[error("{what}: {source}")]
pub struct Error {
    /// The operation that failed.
    pub what: &'static str,
    /// The kernel's answer.
    #[source]
    pub source: io::Error,
}

impl Error {
    pub(crate) fn new(what: &'static str, source: impl Into<io::Error>) -> Self {
        Self { what, source: source.into() }
    }
}

/// Maximum number of bytes of one file that are checked; the rest is left out.
pub const MOST_LOOKED_AT: u64 = 4 << 40;

/// Number of bytes that are mapped at a time. Each touched block outside of huge folios needs a page table.
const WINDOW: u64 = 1 << 30;

/// The parts of a file that are in huge folios of the page cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HugeExtents {
    /// Offsets in bytes, multiples of the huge page size, sorted; no two ranges touch.
    pub huge: Vec<Range<u64>>,
    /// Length of the file in bytes.
    pub file_length: u64,
}

impl HugeExtents {
    /// Number of bytes in huge folios.
    pub fn bytes(&self) -> u64 {
        self.huge.iter().map(|part| part.end - part.start).sum()
    }

    /// True if all of `offsets` is in huge folios.
    pub fn covers(&self, offsets: &Range<u64>) -> bool {
        offsets.is_empty() || self.huge.iter().any(|part| part.start <= offsets.start && offsets.end <= part.end)
    }
}

/// Finds the blocks that are completely within `offsets` and in huge folios. Any process that maps them at addresses
/// that agree with the offsets modulo `huge` gets entries for huge pages.
///
/// It maps the file at such addresses, touches each cached block once, and asks the kernel (about 0.4 ms for 96 MiB).
/// The file only needs to be open for reading. If the caller may not query cached pages (see [`cached_pages`]), the
/// first page of a block that is not cached is read from disk; blocks with holes are left out then. At most
/// [`MOST_LOOKED_AT`] is checked.
///
/// # Errors
/// [`Error`]: the file cannot be mapped, `/proc` is missing, or Linux is older than 5.14.
pub fn look(file: &File, offsets: Range<u64>, huge: PageSize) -> Result<HugeExtents, Error> {
    look_and_hold(file, offsets, huge).map(|(extents, _)| extents)
}

/// Like [`look`], but keeps the blocks in huge folios mapped.
///
/// # Errors
/// As for [`look`].
pub fn look_and_hold(file: &File, offsets: Range<u64>, huge: PageSize) -> Result<(HugeExtents, Hold), Error> {
    let file_length = file.metadata().map_err(|error| Error::new("fstat", error))?.len();
    let blocks = whole_blocks(&offsets, file_length, huge);
    let Looked { blocks, hold } = huge_blocks(file, &blocks, huge)?;
    let extents = HugeExtents { huge: runs(&blocks).iter().map(|run| offsets_of(run, huge)).collect(), file_length };
    Ok((extents, hold))
}

/// Keeps blocks of a file mapped until it is dropped. Reclaim takes pages that nobody maps first, by DAMON these alone.
#[derive(Debug, Default)]
pub struct Hold {
    /// Each with one place in each block, as distances from the start of the mapping.
    mappings: Vec<(FileMapping, Vec<u64>)>,
}

impl Hold {
    /// Maps the blocks again in a process that was copied from the one which held them: a fork copies no page table
    /// entries of shared mappings of files. A block that has been dropped since comes back in small folios.
    pub fn renew(&self) {
        for (mapping, places) in &self.mappings {
            // A block that cannot be read is not held.
            let _ = mapping.touch(places);
        }
    }
}

/// Blocks in huge folios, sorted, and the hold that keeps them there.
#[derive(Debug, Default)]
pub(crate) struct Looked<H = Hold> {
    pub blocks: Vec<u64>,
    pub hold: H,
}

/// Finds the blocks in huge folios.
pub(crate) fn huge_blocks(file: &File, blocks: &Range<u64>, huge: PageSize) -> Result<Looked, Error> {
    let mut looked = Looked::default();
    let at_once = (WINDOW / huge.bytes()).max(1);
    let end = blocks.end.min(blocks.start.saturating_add(MOST_LOOKED_AT / huge.bytes()));
    let mut start = blocks.start;
    while let Some(next) = next_block_with_data(file, start..end, huge)? {
        start = end.min(next + at_once);
        look_at_window(file, &(next..start), huge, &mut looked)?;
    }
    Ok(looked)
}

/// Returns the first block that may have data. Windows without cached pages are left out anyway if these can be counted, which
/// takes no lock. lseek(2) waits for the lock of the file, which a program can hold for ever; no signal ends that wait.
fn next_block_with_data(file: &File, blocks: Range<u64>, huge: PageSize) -> Result<Option<u64>, Error> {
    if blocks.is_empty() {
        return Ok(None);
    }
    if cached_pages(file, offsets_of(&(blocks.start..blocks.start + 1), huge)).is_ok() {
        return Ok(Some(blocks.start));
    }
    // If the file system does not report holes, there are none.
    let data = next_data(file, blocks.start * huge.bytes()).unwrap_or(Some(blocks.start * huge.bytes()));
    Ok(data.map(|offset| offset / huge.bytes()).filter(|block| *block < blocks.end))
}

/// Adds the blocks of one window that are in huge folios.
fn look_at_window(file: &File, blocks: &Range<u64>, huge: PageSize, looked: &mut Looked) -> Result<(), Error> {
    let in_block = huge.bytes() / base_page().bytes();
    let cached = |blocks: &Range<u64>| cached_pages(file, offsets_of(blocks, huge)).ok().map(|pages| pages.cached);
    let in_window = cached(blocks);
    if in_window.is_some_and(|pages| pages < in_block) {
        return Ok(());
    }
    let start = blocks.start * huge.bytes();
    let mapping = FileMapping::readable(file, start, (blocks.end - blocks.start) * huge.bytes(), huge)
        .map_err(|error| Error::new("mapping the file", error))?;
    mapping.expect_random_reads().map_err(|error| Error::new("madvise(MADV_RANDOM)", error))?;
    let place = |block: &u64| block * huge.bytes() - start;
    let is_all_cached = in_window.is_some_and(|pages| pages >= in_block * (blocks.end - blocks.start));
    let may_be_huge = |block: &u64| match in_window {
        Some(_) => is_all_cached || cached(&(*block..block + 1)).is_none_or(|pages| pages >= in_block),
        // Without cachestat(2), or without the right to make it.
        None => !has_hole(file, *block, huge) && mapping.is_cached(place(block), huge.bytes()).unwrap_or(true),
    };
    let touched: Vec<u64> = blocks.clone().filter(may_be_huge).collect();
    mapping.touch(&touched.iter().map(place).collect::<Vec<_>>()).map_err(touch_failed)?;
    let parts = huge_parts(mapping.range(), huge)?;
    let numbers = parts.iter().flat_map(|part| {
        let first = blocks.start + (part.start().0 - mapping.range().start().0).div_ceil(huge.bytes());
        let end = blocks.start + (part.end().0 - mapping.range().start().0) / huge.bytes();
        first..end
    });
    let found: Vec<u64> = numbers.collect();
    // The pages of other blocks could not be evicted as long as they are mapped.
    for run in runs(&touched.into_iter().filter(|block| found.binary_search(block).is_err()).collect::<Vec<_>>()) {
        let length = (run.end - run.start) * huge.bytes();
        mapping
            .withdraw_part(place(&run.start), length)
            .map_err(|error| Error::new("madvise(MADV_DONTNEED)", error))?;
    }
    if !found.is_empty() {
        looked.hold.mappings.push((mapping, found.iter().map(place).collect()));
        looked.blocks.extend(found);
    }
    Ok(())
}

/// True if a part of the block was never written: an access to that part would make a page of zeros.
fn has_hole(file: &File, block: u64, huge: PageSize) -> bool {
    let hole = next_hole(file, block * huge.bytes()).ok().flatten();
    hole.is_some_and(|offset| offset < (block + 1) * huge.bytes())
}

pub(crate) fn touch_failed(error: io::Error) -> Error {
    Error::new("madvise(MADV_POPULATE_READ), which Linux has since 5.14", error)
}

/// The parts of one of this process's own mappings that are mapped by huge pages.
fn huge_parts(range: AddressRange, huge: PageSize) -> Result<RangeSet, Error> {
    let own = std::process::id() as i32;
    let pagemap = Pagemap::open(own, base_page()).map_err(|error| Error::new("opening /proc/self/pagemap", error))?;
    match pagemap.huge(range) {
        Ok(found) => Ok(found),
        // Before Linux 6.7 smaps counts them.
        Err(_) => {
            let usages = ProcessFiles::of(own)
                .smaps()
                .map_err(|error| Error::new("/proc/self/smaps", io::Error::other(error)))?;
            let Some(usage) = usages.iter().find(|usage| usage.mapping.range.covers(range)) else {
                return Ok(RangeSet::new());
            };
            Ok(usage
                .huge_parts(huge, |part| pagemap.touched(part).ok())
                .iter()
                .map(|part| part.intersect(range))
                .collect())
        }
    }
}
