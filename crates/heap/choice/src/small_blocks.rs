//! The bytes of small blocks that a program holds, by the records that mimalloc keeps in the program's memory.
//!
//! Rules for this file, since all input comes from another program, which keeps running and may be hostile:
//! - no number is used before it is within bounds, so that neither sizes nor loops exceed the limits in this file;
//! - inconsistent data is read again, and then reported as not known: no number is invented.
//!
//! A block counts with the size of its class, which is up to an eighth more than requested. A block that another thread
//! than its page's own has freed counts as held until the own thread takes it back, as mimalloc itself counts.

use address_space::{Address, AddressRange};
use heap_abi::SmallRecords;
use process_view::ProcessMemoryFile;

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod model;
#[cfg(test)]
mod tests;

/// Number of attempts to read records that change while they are read.
const ATTEMPTS: usize = 5;
/// Tolerated pages that are read in the middle of a change: the number of pages divided by this.
const TORN_SHARE: u64 = 100;

/// Bounds of the values in a program's records; mimalloc's own numbers are below.
const MOST_ARENAS: u64 = 1024;
const LARGEST_RECORD: u64 = 4096;
const SLICES: std::ops::RangeInclusive<u64> = 4096..=1 << 30;
const CHUNK_BITS: std::ops::RangeInclusive<u64> = 64..=1024;
const WORD_BITS: u64 = 64;

/// Small blocks of a program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SmallBlocks {
    /// Bytes of blocks that the program holds.
    pub live: u64,
    /// The arenas that contain them, sorted.
    pub arenas: Vec<AddressRange>,
}

/// Why the bytes of small blocks are not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotKnown {
    /// There is no memory any more.
    #[error("the process ended while its heap was read")]
    Ended,
    /// An address leads nowhere.
    #[error("the heap's records are outside the process's memory")]
    Outside,
    /// Numbers are out of bounds, or contradict each other however often they are read.
    #[error("the heap's records are inconsistent")]
    Inconsistent,
}

/// Another program's memory.
pub trait Memory {
    /// Fills `into` with the bytes at `address`.
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), NotKnown>;
}

impl Memory for ProcessMemoryFile {
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), NotKnown> {
        self.read_exact(Address(address), into).ok_or(if self.has_ended() {
            NotKnown::Ended
        } else {
            NotKnown::Outside
        })
    }
}

impl SmallBlocks {
    /// Reads them by the records at address `records`. `arenas` is the size of all arenas in bytes, by the account.
    pub fn read(memory: &impl Memory, records: u64, arenas: impl Fn() -> Option<u64>) -> Result<Self, NotKnown> {
        let mut bytes = [0; SmallRecords::BYTES];
        memory.read(records, &mut bytes)?;
        let records = Bounded::check(SmallRecords::from_bytes(&bytes)).ok_or(NotKnown::Inconsistent)?;
        let mut result = Err(NotKnown::Inconsistent);
        for _ in 0..ATTEMPTS {
            result = records.small_blocks(memory, arenas().ok_or(NotKnown::Ended)?);
            if result != Err(NotKnown::Inconsistent) {
                break;
            }
        }
        result
    }
}

/// Records whose sizes and offsets are within bounds.
struct Bounded(SmallRecords);

/// An arena. Only its range and the position of its records are known.
struct Arena {
    range: AddressRange,
    /// The address and number of its chunks of bits.
    chunks: u64,
    chunk_count: u64,
    /// The address of its records of pages.
    pages: u64,
}

/// Bytes in use in some pages.
#[derive(Default)]
struct Sum {
    live: u64,
    pages: u64,
    /// Pages whose record does not fit together.
    torn: u64,
}

impl Bounded {
    fn check(records: SmallRecords) -> Option<Self> {
        let r = &records;
        let within = |offset: u64, bytes: u64, whole: u64| offset.checked_add(bytes).is_some_and(|end| end <= whole);
        let bitmap = r.bitmap_chunks <= LARGEST_RECORD && within(r.bitmap_chunk_count, 8, r.bitmap_chunks);
        let chunk = CHUNK_BITS.contains(&r.chunk_bits) && r.chunk_bits.is_multiple_of(WORD_BITS);
        let arena = r.arena <= LARGEST_RECORD
            && [r.arena_slices, r.arena_pages, r.arena_page_bits].iter().all(|&offset| within(offset, 8, r.arena));
        let page = r.page <= LARGEST_RECORD
            && [r.page_used, r.page_capacity, r.page_reserved].iter().all(|&offset| within(offset, 2, r.page))
            && [r.page_block, r.page_start].iter().all(|&offset| within(offset, 8, r.page));
        let slice = r.slice.is_power_of_two() && SLICES.contains(&r.slice);
        (bitmap && chunk && arena && page && slice && r.most_arenas <= MOST_ARENAS).then_some(Self(records))
    }

    fn small_blocks(&self, memory: &impl Memory, expected: u64) -> Result<SmallBlocks, NotKnown> {
        let arenas = self.arenas(memory)?;
        let bytes: u64 = arenas.iter().map(|arena| arena.range.len()).sum();
        if bytes != expected {
            return Err(NotKnown::Inconsistent);
        }
        let mut sum = Sum::default();
        for arena in &arenas {
            self.add_arena(memory, arena, &mut sum)?;
        }
        if sum.live > bytes || sum.torn > sum.pages / TORN_SHARE {
            return Err(NotKnown::Inconsistent);
        }
        Ok(SmallBlocks { live: sum.live, arenas: arenas.iter().map(|arena| arena.range).collect() })
    }

    /// The arenas, sorted; none overlaps another.
    fn arenas(&self, memory: &impl Memory) -> Result<Vec<Arena>, NotKnown> {
        let count = word_at(memory, self.0.arena_count)?;
        if count > self.0.most_arenas {
            return Err(NotKnown::Inconsistent);
        }
        let mut table = vec![0; (count * 8) as usize];
        memory.read(self.0.arenas, &mut table)?;
        // An entry can be empty for a moment.
        let starts = table.chunks_exact(8).filter_map(|entry| word(entry, 0)).filter(|&start| start != 0);
        let mut arenas = starts.map(|start| self.arena(memory, start)).collect::<Result<Vec<_>, _>>()?;
        arenas.sort_by_key(|arena| arena.range.start());
        let overlap = arenas.windows(2).any(|pair| pair[0].range.end() > pair[1].range.start());
        if overlap { Err(NotKnown::Inconsistent) } else { Ok(arenas) }
    }

    fn arena(&self, memory: &impl Memory, start: u64) -> Result<Arena, NotKnown> {
        let r = &self.0;
        let mut record = vec![0; r.arena as usize];
        memory.read(start, &mut record)?;
        let field = |offset| word(&record, offset).ok_or(NotKnown::Inconsistent);
        let (slices, pages, bits) = (field(r.arena_slices)?, field(r.arena_pages)?, field(r.arena_page_bits)?);
        let chunk_count = word_at(memory, bits.checked_add(r.bitmap_chunk_count).ok_or(NotKnown::Inconsistent)?)?;
        let arena = || {
            let most = r.chunk_bits * r.chunk_bits;
            let fits = start.is_multiple_of(r.slice)
                && (1..=most).contains(&slices)
                && chunk_count.checked_mul(r.chunk_bits) == Some(slices);
            let end = start.checked_add(slices.checked_mul(r.slice)?)?;
            // The records of an arena are in the arena itself.
            let chunks = bits.checked_add(r.bitmap_chunks)?;
            let inside = |from: u64, bytes: u64| from >= start && from.checked_add(bytes).is_some_and(|to| to <= end);
            let fits = fits && inside(chunks, slices / 8) && inside(pages, slices.checked_mul(r.page)?);
            let range = AddressRange::new(Address(start), Address(end));
            fits.then_some(Arena { range, chunks, chunk_count, pages })
        };
        arena().ok_or(NotKnown::Inconsistent)
    }

    fn add_arena(&self, memory: &impl Memory, arena: &Arena, sum: &mut Sum) -> Result<(), NotKnown> {
        let chunk_bytes = (self.0.chunk_bits / 8) as usize;
        let mut bits = vec![0; arena.chunk_count as usize * chunk_bytes];
        memory.read(arena.chunks, &mut bits)?;
        let mut pages = vec![0; (self.0.chunk_bits * self.0.page) as usize];
        for (chunk, bits) in (0..).zip(bits.chunks_exact(chunk_bytes)) {
            let set: Vec<u64> = set_bits(bits).collect();
            let (Some(&first), Some(&last)) = (set.first(), set.last()) else { continue };
            // Only the records of pages are read: otherwise the kernel would have to allocate memory for untouched
            // records.
            let records = &mut pages[..((last + 1 - first) * self.0.page) as usize];
            let before = chunk * self.0.chunk_bits;
            memory.read(arena.pages + (before + first) * self.0.page, records)?;
            for bit in set {
                let record = &records[((bit - first) * self.0.page) as usize..][..self.0.page as usize];
                let slice = arena.range.start().0 + (before + bit) * self.0.slice;
                sum.pages += 1;
                match self.live_of(record, slice, arena.range.end().0) {
                    Some(live) => sum.live = sum.live.saturating_add(live),
                    None => sum.torn += 1,
                }
            }
        }
        Ok(())
    }

    /// Bytes in use in the page that begins with the slice at this address; `None` if its record contradicts itself.
    fn live_of(&self, record: &[u8], slice: u64, end: u64) -> Option<u64> {
        let r = &self.0;
        let (used, block) = (half_word(record, r.page_used)?, word(record, r.page_block)?);
        if used == 0 || block == 0 {
            // New, or just freed.
            return Some(0);
        }
        let (capacity, reserved) = (half_word(record, r.page_capacity)?, half_word(record, r.page_reserved)?);
        let start = word(record, r.page_start)?;
        let counts_fit = used <= capacity && capacity <= reserved;
        let begins_here = start >= slice && start - slice < r.slice;
        let blocks_end = start.checked_add(reserved.checked_mul(block)?)?;
        let fits = counts_fit && begins_here && blocks_end <= end;
        fits.then(|| used * block)
    }
}

fn word_at(memory: &impl Memory, address: u64) -> Result<u64, NotKnown> {
    let mut bytes = [0; 8];
    memory.read(address, &mut bytes)?;
    Ok(u64::from_ne_bytes(bytes))
}

fn word(bytes: &[u8], offset: u64) -> Option<u64> {
    let bytes = bytes.get(usize::try_from(offset).ok()?..)?.first_chunk()?;
    Some(u64::from_ne_bytes(*bytes))
}

fn half_word(bytes: &[u8], offset: u64) -> Option<u64> {
    let bytes = bytes.get(usize::try_from(offset).ok()?..)?.first_chunk()?;
    Some(u64::from(u16::from_ne_bytes(*bytes)))
}

/// The numbers of the bits that are set.
fn set_bits(chunk: &[u8]) -> impl Iterator<Item = u64> + '_ {
    let words = (0..).zip(chunk.chunks_exact(8).filter_map(|bytes| word(bytes, 0)));
    words.flat_map(|(index, word): (u64, u64)| {
        (0..WORD_BITS).filter(move |bit| word >> bit & 1 == 1).map(move |bit| index * WORD_BITS + bit)
    })
}
