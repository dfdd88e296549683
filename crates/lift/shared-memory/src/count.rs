//! The contents of private memory, counted by block within a limit of time. Memory on huge pages is skipped, and the next count
//! continues with the block at which this one ends.

use crate::{Held, Reason, View};
use address_space::{Address, AddressRange, PageSize, RangeSet};
use std::ops::Range;

/// Most blocks with data that are stored for one process: 2 TiB of data if a block has 2 MiB.
const MOST_BLOCKS: usize = 1 << 20;
/// Bytes of addresses between two checks of the time.
const AT_ONCE: u64 = 1 << 30;

/// The page tables of a process.
pub trait PageTables {
    /// The parts of a range with data.
    ///
    /// # Errors
    /// Why they cannot be read, in words.
    fn with_data(&mut self, range: AddressRange) -> Result<RangeSet, String>;
    /// The data of a range.
    ///
    /// # Errors
    /// Why it cannot be counted, in words.
    fn held(&mut self, range: AddressRange) -> Result<Held, String>;
    /// False once the time is up.
    fn has_time(&mut self) -> bool;
}

/// The result of a count.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// Number of each block with data, in ascending order, and its contents. Blocks on huge pages are left out.
    pub blocks: Vec<(u64, Held)>,
    /// Bytes on huge pages.
    pub already: u64,
    /// The block with which the next count begins; `None` if all was counted.
    pub next: Option<u64>,
    /// Why the rest was not counted.
    pub unseen: Option<Reason>,
}

/// Counts the contents of mappings, which are in ascending order, from block `from` on, and then those before it.
pub fn count(views: &[View], huge: PageSize, from: u64, tables: &mut impl PageTables) -> Counted {
    let mut later = Part::new(views, huge, tables, MOST_BLOCKS);
    let mut ended = later.count(from..u64::MAX / huge.bytes());
    let (mut blocks, mut already) = (later.blocks, later.already);
    if ended == Ok(None) && from > 0 {
        let mut earlier = Part::new(views, huge, tables, MOST_BLOCKS - blocks.len());
        ended = earlier.count(0..from);
        earlier.blocks.append(&mut blocks);
        (blocks, already) = (earlier.blocks, already + earlier.already);
    }
    blocks.retain(|(_, held)| held.data() > 0);
    let (next, unseen) = match ended {
        Ok(None) => (None, None),
        Ok(next) => (next, Some(Reason::TooScattered)),
        Err(why) => (None, Some(Reason::Unreadable { why })),
    };
    Counted { blocks, already, next, unseen }
}

/// A count of a range of blocks.
struct Part<'a, T> {
    views: &'a [View],
    huge: PageSize,
    tables: &'a mut T,
    most: usize,
    blocks: Vec<(u64, Held)>,
    already: u64,
}

impl<'a, T: PageTables> Part<'a, T> {
    fn new(views: &'a [View], huge: PageSize, tables: &'a mut T, most: usize) -> Self {
        Self { views, huge, tables, most, blocks: Vec::new(), already: 0 }
    }

    /// Returns the first block that was not counted, if there is one.
    fn count(&mut self, blocks: Range<u64>) -> Result<Option<u64>, String> {
        let (wanted, huge) = (AddressRange::new(self.start_of(blocks.start), self.start_of(blocks.end)), self.huge);
        for view in self.views {
            let range = view.range.intersect(wanted);
            let mut start = range.start();
            for part in view.huge_parts.within(range).map(|part| part.whole_pages(huge)) {
                if part.is_empty() {
                    continue;
                }
                if let Some(end) = self.small(view, AddressRange::new(start, part.start()))? {
                    return Ok(Some(end));
                }
                self.already += part.len();
                start = part.end();
            }
            if let Some(end) = self.small(view, AddressRange::new(start, range.end()))? {
                return Ok(Some(end));
            }
        }
        Ok(None)
    }

    /// Counts a part of a mapping without huge pages. Returns the first block that was not counted, if there is one.
    fn small(&mut self, view: &View, part: AddressRange) -> Result<Option<u64>, String> {
        let (mut start, mut counted) = (part.start(), None);
        while start < part.end() {
            let piece = AddressRange::sized(start, AT_ONCE.min(part.end() - start));
            if !self.tables.has_time() {
                return Ok(Some(self.ends_at(self.number(start))));
            }
            for found in self.tables.with_data(piece)?.iter() {
                for number in self.number(found.start())..=self.number(Address(found.end().0 - 1)) {
                    // A block is counted as a whole at its first part with data.
                    if counted.is_some_and(|last| last >= number) {
                        continue;
                    }
                    if self.blocks.len() >= self.most || !self.tables.has_time() {
                        return Ok(Some(self.ends_at(number)));
                    }
                    let block = AddressRange::sized(self.start_of(number), self.huge.bytes());
                    let held = self.tables.held(block.intersect(view.range))?;
                    self.add(number, held);
                    counted = Some(number);
                }
            }
            start = piece.end();
        }
        Ok(None)
    }

    /// Drops what another mapping holds of the block at which the count ends.
    fn ends_at(&mut self, number: u64) -> u64 {
        self.blocks.pop_if(|(last, _)| *last == number);
        number
    }

    /// Adds what a mapping holds of a block; two mappings can share one.
    fn add(&mut self, number: u64, more: Held) {
        match self.blocks.last_mut().filter(|(last, _)| *last == number) {
            Some((_, held)) => {
                held.present += more.present;
                held.swapped += more.swapped;
                held.common += more.common;
                held.guards += more.guards;
            }
            None => self.blocks.push((number, more)),
        }
    }

    fn number(&self, address: Address) -> u64 {
        address.0 / self.huge.bytes()
    }

    fn start_of(&self, block: u64) -> Address {
        Address(block * self.huge.bytes())
    }
}
