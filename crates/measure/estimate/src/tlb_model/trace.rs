//! The form of a trace, which the tracer sends and the simulation reads: 64-bit words in the machine's byte order.
//!
//! A stream begins with [`MAGIC`] and the page of the first store, which is on the stack of the first thread. Blocks
//! follow, each for one virtual CPU, that is, for one thread: a head ([`block_head`]), then the words of [`TraceStep`]s.
//!
//! A tracer omits an access to the same page as the thread's previous access on that side: a TLB with at least one
//! entry cannot miss it, and the order of replacement does not change.

/// The first word; the last digit is the version of the form.
pub const MAGIC: u64 = u64::from_be_bytes(*b"PLTRACE1");

/// Words in a block at most.
pub const LONGEST_BLOCK: usize = 8192;

/// The most instructions that one record counts.
pub const MOST_INSTRUCTIONS: u64 = (1 << COUNT_BITS) - 1;

const KIND_BITS: u32 = 2;
const COUNT_BITS: u32 = 12;
const PAGE_SHIFT: u32 = KIND_BITS + COUNT_BITS;

/// One step of a thread. Pages are base page numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceStep {
    /// A load or store touches this page.
    Data {
        /// The page.
        page: u64,
    },
    /// Instructions are fetched from this page.
    Code {
        /// The page.
        page: u64,
        /// Instructions that have been executed since the thread's last record of this kind, at most
        /// [`MOST_INSTRUCTIONS`].
        executed: u64,
    },
    /// The mapping of these pages has changed. The number of pages is a separate word.
    Changed {
        /// The first page.
        page: u64,
        /// Number of pages.
        pages: u64,
    },
}

impl TraceStep {
    /// The record's words; only a change has two.
    pub fn words(self) -> (u64, Option<u64>) {
        let word = |kind: u64, count: u64, page: u64| kind | count << KIND_BITS | page << PAGE_SHIFT;
        match self {
            Self::Data { page } => (word(0, 0, page), None),
            Self::Code { page, executed } => (word(1, executed, page), None),
            Self::Changed { page, pages } => (word(2, 0, page), Some(pages)),
        }
    }

    /// Takes a record from the words; `None` at their end and for words that are no record.
    pub fn take(words: &mut impl Iterator<Item = u64>) -> Option<Self> {
        let word = words.next()?;
        let (page, count) = (word >> PAGE_SHIFT, word >> KIND_BITS & MOST_INSTRUCTIONS);
        match word & ((1 << KIND_BITS) - 1) {
            0 => Some(Self::Data { page }),
            1 => Some(Self::Code { page, executed: count }),
            2 => Some(Self::Changed { page, pages: words.next()? }),
            _ => None,
        }
    }
}

/// The head of a block of this many words.
pub fn block_head(cpu: u32, words: usize) -> u64 {
    u64::from(cpu) << 32 | words as u64
}

/// The virtual CPU and the number of words that a block's head names; `None` for more than [`LONGEST_BLOCK`].
pub fn parse_block_head(head: u64) -> Option<(u32, usize)> {
    let words = (head & u64::from(u32::MAX)) as usize;
    (words <= LONGEST_BLOCK).then_some(((head >> 32) as u32, words))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let page = (1 << 50) - 1;
        let records = [
            TraceStep::Data { page },
            TraceStep::Code { page: 0, executed: MOST_INSTRUCTIONS },
            TraceStep::Changed { page, pages: u64::MAX },
            TraceStep::Code { page, executed: 0 },
        ];
        let words = records.iter().flat_map(|record| {
            let (first, second) = record.words();
            [Some(first), second].into_iter().flatten()
        });
        let mut words = words.collect::<Vec<_>>().into_iter();
        assert_eq!(std::iter::from_fn(|| TraceStep::take(&mut words)).collect::<Vec<_>>(), records);
        assert_eq!(TraceStep::take(&mut [3].into_iter()), None);
    }

    #[test]
    fn a_block_has_a_bound() {
        assert_eq!(parse_block_head(block_head(7, LONGEST_BLOCK)), Some((7, LONGEST_BLOCK)));
        assert_eq!(parse_block_head(block_head(7, LONGEST_BLOCK + 1)), None);
    }
}
