//! The GNU hash table of exported symbols: header, filter, buckets, and for each symbol its hash, whose lowest bit marks the end
//! of a chain.

use super::contents::Contents;
use object::{Endianness, ReadRef, U32, U64};
use process_view::symbols::{Section, Sections};

/// Words of four bytes in the header.
const HEADER: u64 = 4;
/// Number of words that are read at once: the reader keeps each piece that it has read, however short.
const WORDS: u64 = 1024;
/// Maximum number of symbols that are read for one hash. Sound tables have a few for each.
const LONGEST_CHAIN: usize = 1 << 14;

/// A hash table. Its header, filter and buckets are inside its section.
pub(super) struct HashTable<'data, R: ReadRef<'data>> {
    contents: Contents<'data, R>,
    endian: Endianness,
    buckets: u32,
    first: u32,
    filter: u32,
    shift: u32,
}

impl<'data, R: ReadRef<'data>> HashTable<'data, R> {
    pub fn of(sections: &Sections<'data, R>, section: &Section) -> Option<Self> {
        let (contents, endian) = (Contents::of(sections, section)?, sections.endian);
        let header: &[U32<Endianness>; 4] = contents.entries(0, HEADER)?.try_into().ok()?;
        let [buckets, first, filter, shift] = header.each_ref().map(|word| word.get(endian));
        let table = Self { contents, endian, buckets, first, filter, shift };
        (table.chains() * 4 <= table.contents.size()).then_some(table)
    }

    /// The index of the first symbol that the table holds.
    pub fn first(&self) -> u32 {
        self.first
    }

    fn buckets(&self) -> u64 {
        HEADER + 2 * u64::from(self.filter)
    }

    fn chains(&self) -> u64 {
        self.buckets() + u64::from(self.buckets)
    }

    fn word(&self, index: u64) -> Option<u32> {
        let words = self.contents.entries::<U32<Endianness>>(index - index % WORDS, WORDS)?;
        Some(words.get((index % WORDS) as usize)?.get(self.endian))
    }

    /// The symbols with this hash.
    pub fn with_hash(&self, hash: u32) -> impl Iterator<Item = u32> {
        let may_be_there = self.buckets > 0 && self.passes_filter(hash);
        let bucket = || self.word(self.buckets() + u64::from(hash % self.buckets));
        let mut next = may_be_there.then(bucket).flatten().filter(|&index| index != 0 && index >= self.first);
        std::iter::from_fn(move || {
            let index = next?;
            let found = self.word(self.chains() + u64::from(index - self.first))?;
            next = if found & 1 == 0 { index.checked_add(1) } else { None };
            Some((index, found))
        })
        .take(LONGEST_CHAIN)
        .filter(move |(_, found)| found | 1 == hash | 1)
        .map(|(index, _)| index)
    }

    /// False if no symbol has this hash. The dynamic linker asks the filter first, too.
    fn passes_filter(&self, hash: u32) -> bool {
        const BITS: u32 = u64::BITS;
        // The number of the filter's words is a power of two.
        let index = u64::from((hash / BITS) & self.filter.wrapping_sub(1));
        let word = self.contents.entries::<U64<Endianness>>(HEADER / 2 + index, 1).and_then(|words| words.first());
        let is_set = |word: u64, bit: u32| (word >> (bit % BITS)) & 1 == 1;
        word.is_none_or(|word| {
            let word = word.get(self.endian);
            is_set(word, hash) && is_set(word, hash.checked_shr(self.shift).unwrap_or(0))
        })
    }
}
