//! Characteristic symbols of one ELF file, found with few reads. Exported symbols are found by the hash table. Imported
//! symbols precede the hash table's first symbol. An executable's own symbol table is read only if a search of its
//! names finds one.

use super::contents::{Contents, Names};
use super::hash::HashTable;
use super::scan::{Source, find_text};
use super::telling::{ENDS, ENDS_IN_STATIC, NAMES, OPERATORS_NEW, is_searched, kept_name};
use linux::bounded::Budget;
use object::elf::{self, Sym64};
use object::read::elf::SectionHeader;
use object::{Endianness, ReadRef};
use process_view::symbols::{Section, Sections, text_at};
use std::collections::BTreeSet;

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
        let is_defined = symbol.st_shndx.get(file.endian) != elf::SHN_UNDEF;
        let bare = memchr::memchr(b'@', name).map_or(name, |end| &name[..end]);
        let Some(kept) = kept_name(bare, is_defined) else { return };
        let name = if std::str::from_utf8(name).is_ok() { kept } else { return };
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
    pub source: Source<'a>,
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
    // A sound file has one table of each type.
    if let Some(table) = sections.of_type(elf::SHT_DYNSYM).next() {
        take_dynamic(sections, table, file, &mut symbols);
    }
    let Some(is_static) = executable else { return symbols };
    let endian = file.endian;
    let more: &[&[u8]] = if is_static { &ENDS_IN_STATIC } else { &[] };
    let ends: Vec<&[u8]> = ENDS.iter().chain(more).copied().collect();
    let Some(table) = sections.of_type(elf::SHT_SYMTAB).next() else { return symbols };
    let names = sections.linked(table).filter(|names| names.sh_type(endian) == elf::SHT_STRTAB);
    let tells = |text: &str| is_searched(text).then_some(());
    if names.and_then(|names| find_text(file.source, place(names, endian), &ends, tells)).is_none() {
        return symbols;
    }
    let Some((entries, names)) = sections.symbols(table) else { return symbols };
    for symbol in entries {
        let Some(name) = text_at(names, symbol.st_name.get(endian)) else { continue };
        symbols.take(name, symbol, false, file);
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
    let Some(entries) = Contents::of(sections, table) else { return };
    let Some(names) = sections.linked(table).and_then(|names| Names::of(sections, names)) else { return };
    let hash = sections.of_type(elf::SHT_GNU_HASH).next().and_then(|section| HashTable::of(sections, section));
    // Without such a table every symbol is read.
    let unhashed = hash.as_ref().map_or(u64::MAX, |hash| hash.first().into());
    let Some(imports) = entries.entries::<Sym64<Endianness>>(0, unhashed) else { return };
    names.each_of(imports, endian, |symbol, name| symbols.take(name, symbol, true, file));
    let Some(hash) = hash else { return };
    for name in NAMES.iter().chain(&OPERATORS_NEW) {
        let same_hash = hash.with_hash(elf::gnu_hash(name.as_bytes()));
        for symbol in same_hash.filter_map(|index| entries.entries::<Sym64<Endianness>>(index.into(), 1)?.first()) {
            if names.get(symbol.st_name.get(endian)).is_some_and(|found| found == name.as_bytes()) {
                symbols.take(name.as_bytes(), symbol, true, file);
            }
        }
    }
    // An allocator with a prefix has the prefix in every function's name; an allocator that serves a program also exports
    // malloc.
    if symbols.exports.contains("malloc") && names.have_signs_of_others(file.source) {
        let Some(exports) = entries.entries::<Sym64<Endianness>>(unhashed, u64::MAX) else { return };
        for symbol in exports.iter().filter(|symbol| symbol.st_type() == elf::STT_FUNC) {
            let Some(name) = names.get(symbol.st_name.get(endian)) else { continue };
            symbols.take(name, symbol, true, file);
        }
    }
}
