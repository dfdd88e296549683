//! Contents of sections, and of tables of names. Small ones are read as a whole, since a read costs more than its bytes; pieces of
//! larger ones are read when they are needed.

use super::scan::{Source, find_text};
use super::telling::{SIGNS_OF_OTHERS, may_be_kept, may_have_prefixed};
use memchr::memmem;
use object::elf::{self, Sym64};
use object::read::StringTable;
use object::read::elf::SectionHeader;
use object::{Endianness, Pod, ReadRef, slice_from_all_bytes};
use process_view::symbols::{Section, Sections, text_at};

/// Size up to which a section is read as a whole.
const SMALL: u64 = 64 << 10;
/// Size up to which a table of names is read as a whole: a name costs an allocation otherwise, and often a read.
const SMALL_NAMES: u64 = 128 << 10;

/// Contents of a section.
pub(super) enum Contents<'data, R: ReadRef<'data>> {
    Whole(&'data [u8]),
    Pieces { data: R, offset: u64, size: u64 },
}

impl<'data, R: ReadRef<'data>> Contents<'data, R> {
    pub fn of(sections: &Sections<'data, R>, section: &Section) -> Option<Self> {
        let (offset, size) = sections.place(section)?;
        match size {
            ..=SMALL => sections.bytes(section).map(Self::Whole),
            _ => Some(Self::Pieces { data: sections.data(), offset, size }),
        }
    }

    /// Number of bytes.
    pub fn size(&self) -> u64 {
        match self {
            Self::Whole(bytes) => bytes.len() as u64,
            Self::Pieces { size, .. } => *size,
        }
    }

    /// Up to `count` entries from `first` on; bytes behind the last whole entry do not count.
    pub fn entries<T: Pod>(&self, first: u64, count: u64) -> Option<&'data [T]> {
        let entry = size_of::<T>() as u64;
        let count = (self.size() / entry).checked_sub(first)?.min(count);
        let (start, length) = (first * entry, count * entry);
        let bytes = match self {
            Self::Whole(bytes) => bytes.get(start as usize..(start + length) as usize)?,
            Self::Pieces { data, offset, .. } => data.read_bytes_at(offset.checked_add(start)?, length).ok()?,
        };
        slice_from_all_bytes(bytes).ok()
    }
}

/// A table of names.
pub(super) enum Names<'data, R: ReadRef<'data>> {
    Whole(&'data [u8]),
    Each(StringTable<'data, R>, (u64, u64)),
}

impl<'data, R: ReadRef<'data>> Names<'data, R> {
    /// The table that a section of strings holds.
    pub fn of(sections: &Sections<'data, R>, section: &Section) -> Option<Self> {
        let is_table = section.sh_type(sections.endian) == elf::SHT_STRTAB;
        let (offset, size) = sections.place(section).filter(|_| is_table)?;
        match size {
            ..=SMALL_NAMES => sections.bytes(section).map(Self::Whole),
            _ => Some(Self::each(sections.data(), offset, size)),
        }
    }

    /// The table at a place of the file, which may be no section's.
    pub fn at(data: R, offset: u64, size: u64) -> Self {
        let whole = (size <= SMALL_NAMES).then(|| data.read_bytes_at(offset, size).ok()).flatten();
        whole.map_or_else(|| Self::each(data, offset, size), Self::Whole)
    }

    fn each(data: R, offset: u64, size: u64) -> Self {
        Self::Each(StringTable::new(data, offset, offset.saturating_add(size)), (offset, size))
    }

    pub fn get(&self, offset: u32) -> Option<&'data [u8]> {
        match self {
            Self::Whole(names) => text_at(names, offset),
            Self::Each(names, _) => names.get(offset).ok(),
        }
    }

    /// Calls `take` with the symbols whose names may be telling, and with these names. Names of a large table come in the order of
    /// their offsets: one read piece holds several.
    pub fn each_of(
        &self,
        symbols: &'data [Sym64<Endianness>],
        endian: Endianness,
        mut take: impl FnMut(&'data Sym64<Endianness>, &'data [u8]),
    ) {
        let place = |symbol: &Sym64<Endianness>| symbol.st_name.get(endian);
        let mut take_named = |symbol| self.get(place(symbol)).into_iter().for_each(|name| take(symbol, name));
        match self {
            // Most names end here, by their first bytes.
            Self::Whole(names) => {
                let is_any_kept = may_have_prefixed(names);
                let may_be_kept = |start: u32| names.get(start as usize..).is_some_and(may_be_kept);
                symbols.iter().filter(|symbol| is_any_kept || may_be_kept(place(symbol))).for_each(take_named);
            }
            Self::Each(..) => {
                let mut symbols: Vec<_> = symbols.iter().collect();
                symbols.sort_by_key(|symbol| place(symbol));
                symbols.into_iter().for_each(&mut take_named);
            }
        }
    }

    /// True if a name may be telling that is in no list (see [`SIGNS_OF_OTHERS`]).
    pub fn have_signs_of_others(&self, source: Source<'_>) -> bool {
        match self {
            Self::Whole(names) => SIGNS_OF_OTHERS.iter().any(|sign| memmem::find(names, sign).is_some()),
            Self::Each(_, place) => find_text(source, *place, &SIGNS_OF_OTHERS, |_| Some(())).is_some(),
        }
    }
}
