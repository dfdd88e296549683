//! Characteristic symbols of one ELF file, found with few reads. Exported symbols are found by the hash table. Imported
//! symbols precede the hash table's first symbol. An executable's own symbol table is read only if a search of its
//! names finds one.

use super::scan::find_text;
use super::telling::{ENDS, ENDS_IN_STATIC, NAMES, OPERATORS_NEW, is_searched, kept_name};
use linux::bounded::{Budget, SYMBOL_TABLES};
use object::elf::{self, FileHeader64, Sym64};
use object::read::StringTable;
use object::read::elf::{GnuHashTable, SectionHeader};
use object::{Endianness, ReadRef};
use process_view::symbols::{Section, Sections, text_at};
use std::collections::BTreeSet;
use std::fs::File;

/// Size up to which a table of names is read as a whole; the names of a larger one are read one by one.
const SMALL_NAMES: u64 = 1 << 20;

/// Telling symbols of one file, under the names by which they are kept.
#[derive(Default)]
pub(super) struct Symbols {
    /// Defined, whether or not for other objects.
    pub defines: BTreeSet<String>,
    /// Defined for other objects.
    pub exports: BTreeSet<String>,
    /// Needed of other objects.
    pub imports: BTreeSet<String>,
}

impl Symbols {
    fn take(&mut self, name: &[u8], symbol: &Sym64<Endianness>, is_dynamic: bool, file: &mut Reading<'_>) {
        let Ok(name) = std::str::from_utf8(name) else { return };
        let is_defined = symbol.st_shndx.get(file.endian) != elf::SHN_UNDEF;
        let Some(name) = kept_name(name.split('@').next().unwrap_or(name), is_defined) else { return };
        if !file.budget.spend(name.len() as u64) {
            return;
        }
        if !is_defined {
            self.imports.insert(name.to_owned());
            return;
        }
        if is_dynamic && symbol.st_bind() != elf::STB_LOCAL {
            self.exports.insert(name.to_owned());
        }
        self.defines.insert(name.to_owned());
    }
}

/// A file that is being read.
pub(super) struct Reading<'a> {
    pub file: &'a File,
    pub endian: Endianness,
    pub budget: &'a mut Budget,
}

/// Reads the characteristic symbols of a file from its dynamic symbol table and, for executables, from the other one.
/// `executable` is `None` for a library; otherwise it is true for a static program.
pub(super) fn read<'data>(
    sections: &Sections<'data, impl ReadRef<'data>>,
    executable: Option<bool>,
    file: &mut Reading<'_>,
) -> Symbols {
    let mut symbols = Symbols::default();
    for table in sections.of_type(elf::SHT_DYNSYM) {
        take_dynamic(sections, table, file, &mut symbols);
    }
    let Some(is_static) = executable else { return symbols };
    let endian = file.endian;
    let more: &[&[u8]] = if is_static { &ENDS_IN_STATIC } else { &[] };
    let ends: Vec<&[u8]> = ENDS.iter().chain(more).copied().collect();
    for table in sections.of_type(elf::SHT_SYMTAB) {
        let names = sections.linked(table).filter(|names| names.sh_type(endian) == elf::SHT_STRTAB);
        let tells = |text: &str| is_searched(text).then_some(());
        if names.and_then(|names| find_text(file.file, place(names, endian), &ends, tells)).is_none() {
            continue;
        }
        let Some((entries, names)) = sections.symbols(table) else { continue };
        for symbol in entries {
            let Some(name) = text_at(names, symbol.st_name.get(endian)) else { continue };
            symbols.take(name, symbol, false, file);
        }
    }
    symbols
}

/// Offset and size of a section in the file.
pub(super) fn place(section: &Section, endian: Endianness) -> (u64, u64) {
    (section.sh_offset(endian), section.sh_size(endian))
}

fn take_dynamic<'data>(
    sections: &Sections<'data, impl ReadRef<'data>>,
    table: &Section,
    file: &mut Reading<'_>,
    symbols: &mut Symbols,
) {
    let endian = file.endian;
    let Some(entries) = sections.entries::<Sym64<Endianness>>(table) else { return };
    let Some(names) = sections.linked(table).and_then(|names| Names::of(sections, names)) else { return };
    let hash = sections.of_type(elf::SHT_GNU_HASH).next().and_then(|section| sections.bytes(section));
    let hash =
        hash.and_then(|bytes| GnuHashTable::<FileHeader64<Endianness>>::parse(endian, bytes).ok().zip(Some(bytes)));
    // Without such a table every symbol is read.
    let unhashed = hash.as_ref().map_or(entries.len(), |(hash, _)| hash.symbol_base() as usize);
    for symbol in entries.iter().take(unhashed) {
        let Some(name) = names.get(symbol.st_name.get(endian)) else { continue };
        symbols.take(name, symbol, true, file);
    }
    let Some((hash, bytes)) = hash else { return };
    let chains = Chains { base: hash.symbol_base(), bytes, endian };
    for name in NAMES.iter().chain(&OPERATORS_NEW) {
        let same_hash = chains.with_hash(elf::gnu_hash(name.as_bytes()));
        for symbol in same_hash.filter_map(|index| entries.get(index as usize)) {
            if names.get(symbol.st_name.get(endian)).is_some_and(|found| found == name.as_bytes()) {
                symbols.take(name.as_bytes(), symbol, true, file);
            }
        }
    }
    // An allocator with a prefix has the prefix in every function's name; an allocator that serves a program also exports
    // malloc.
    if symbols.exports.contains("malloc") {
        for symbol in entries.iter().skip(unhashed).filter(|symbol| symbol.st_type() == elf::STT_FUNC) {
            let Some(name) = names.get(symbol.st_name.get(endian)) else { continue };
            symbols.take(name, symbol, true, file);
        }
    }
}

/// The chains of a GNU hash table: header, filter, buckets, and for each symbol its hash, whose lowest bit marks the end.
struct Chains<'a> {
    base: u32,
    bytes: &'a [u8],
    endian: Endianness,
}

impl Chains<'_> {
    fn word(&self, index: usize) -> Option<u32> {
        let bytes: [u8; 4] = self.bytes.get(index.checked_mul(4)?..)?.get(..4)?.try_into().ok()?;
        Some(match self.endian {
            Endianness::Little => u32::from_le_bytes(bytes),
            Endianness::Big => u32::from_be_bytes(bytes),
        })
    }

    /// The symbols with this hash.
    fn with_hash(&self, hash: u32) -> impl Iterator<Item = u32> {
        const HEADER: usize = 4;
        let buckets = self.word(0).unwrap_or(0);
        let filter = self.word(2).unwrap_or(0) as usize;
        let buckets_at = HEADER.saturating_add(filter.saturating_mul(2));
        let chains_at = buckets_at.saturating_add(buckets as usize);
        let first = (buckets > 0).then(|| self.word(buckets_at + (hash % buckets) as usize)).flatten();
        let mut next = first.filter(|&index| index != 0 && index >= self.base);
        std::iter::from_fn(move || {
            let index = next?;
            let found = self.word(chains_at.saturating_add((index - self.base) as usize))?;
            next = if found & 1 == 0 { index.checked_add(1) } else { None };
            Some((index, found))
        })
        .filter(move |(_, found)| found | 1 == hash | 1)
        .map(|(index, _)| index)
    }
}

/// A table of names.
enum Names<'data, R: ReadRef<'data>> {
    Whole(&'data [u8]),
    Each(StringTable<'data, R>),
}

impl<'data, R: ReadRef<'data>> Names<'data, R> {
    fn of(sections: &Sections<'data, R>, section: &Section) -> Option<Self> {
        let (offset, size) = place(section, sections.endian);
        if section.sh_type(sections.endian) != elf::SHT_STRTAB || size > SYMBOL_TABLES.bytes() {
            return None;
        }
        match size {
            ..=SMALL_NAMES => sections.bytes(section).map(Self::Whole),
            _ => Some(Self::Each(StringTable::new(sections.data(), offset, offset.checked_add(size)?))),
        }
    }

    fn get(&self, offset: u32) -> Option<&'data [u8]> {
        match self {
            Self::Whole(names) => text_at(names, offset),
            Self::Each(names) => names.get(offset).ok(),
        }
    }
}
