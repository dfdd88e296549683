//! Names for the code of an object.

mod files;
mod names;
mod sections;
mod separate;
mod stubs;
mod table;

pub(crate) use files::SymbolFiles;
pub use names::without_arguments;
pub use sections::{Section, Sections, text_at};

use crate::bounded_file::BoundedFile;
use crate::opening::MappedFile;
use address_space::{Address, LoadedObject, RangeSet};
use linux::bounded::{Budget, SYMBOL_TABLES};
use object::{ReadCache, ReadRef, elf};

use serde::Serialize;
use std::fmt;

/// A name for some code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Symbol {
    /// Address as in the file, before the bias.
    pub address: Address,
    /// Bytes; 0 if the file does not contain it.
    pub size: u64,
    /// The end of its section, which bounds a symbol without a size.
    pub limit: Address,
    /// Readable name, on one line.
    pub name: String,
    /// Which of several names for the same code is the better: functions before labels, global before local ones.
    pub rank: u8,
}

impl Symbol {
    /// Bytes of memory that the symbol takes, with its name.
    fn memory(&self) -> u64 {
        (size_of::<Self>() + self.name.capacity()) as u64
    }
}

/// Where an object's names come from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum SymbolSource {
    /// `.symtab` of the object's file.
    SymbolTable,
    /// `.symtab` of the separate debug file at this path.
    DebugFile(String),
    /// `.gnu_debugdata` and `.dynsym` of the object's file.
    MiniDebugData,
    /// `.dynsym` of the object's file: what it exports.
    DynamicSymbols,
    /// There are none: addresses are named by their offset in the object.
    Nothing,
}

impl fmt::Display for SymbolSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SymbolTable => f.write_str(".symtab"),
            Self::DebugFile(path) => f.write_str(path),
            Self::MiniDebugData => f.write_str(".gnu_debugdata"),
            Self::DynamicSymbols => f.write_str(".dynsym"),
            Self::Nothing => f.write_str("no symbols"),
        }
    }
}

/// The symbols of an object within `wanted` (addresses as in the file), from the best source. Symbols beyond `budget`
/// are omitted.
pub(crate) fn read_symbols(
    files: &SymbolFiles,
    object: &LoadedObject,
    file: &MappedFile,
    wanted: &RangeSet,
    budget: &mut Budget,
) -> (SymbolSource, Vec<Symbol>) {
    if !files.may_read(&file.file) {
        return (SymbolSource::Nothing, Vec::new());
    }
    let bytes = ReadCache::new(BoundedFile::new(&file.file, file.metadata.len(), SYMBOL_TABLES.bytes()));
    let Some(sections) = Sections::parse(&bytes, SYMBOL_TABLES) else { return (SymbolSource::Nothing, Vec::new()) };
    let stubs = stubs::stubs_of(&sections, wanted, budget);
    let (source, mut symbols) = named_functions(files, object, &sections, wanted, budget);
    symbols.extend(stubs);
    (source, symbols)
}

fn named_functions<'data, R: ReadRef<'data>>(
    files: &SymbolFiles,
    object: &LoadedObject,
    sections: &Sections<'data, R>,
    wanted: &RangeSet,
    budget: &mut Budget,
) -> (SymbolSource, Vec<Symbol>) {
    let symbols = table::symbols_of(sections, elf::SHT_SYMTAB, wanted, budget);
    if !symbols.is_empty() {
        return (SymbolSource::SymbolTable, symbols);
    }
    let build_id = object.image.build_id.as_deref();
    if let Some((path, file)) = separate::debug_file(files, &object.path, sections, build_id) {
        let bytes = ReadCache::new(BoundedFile::new(&file.file, file.metadata.len(), SYMBOL_TABLES.bytes()));
        let symbols = symbols_in(&bytes, elf::SHT_SYMTAB, wanted, budget);
        if !symbols.is_empty() {
            return (SymbolSource::DebugFile(path), symbols);
        }
    }
    let mut symbols = table::symbols_of(sections, elf::SHT_DYNSYM, wanted, budget);
    if let Some(unpacked) = separate::mini_debug_data(sections) {
        let more = symbols_in(unpacked.as_slice(), elf::SHT_SYMTAB, wanted, budget);
        if !more.is_empty() {
            symbols.extend(more);
            return (SymbolSource::MiniDebugData, symbols);
        }
    }
    let source = if symbols.is_empty() { SymbolSource::Nothing } else { SymbolSource::DynamicSymbols };
    (source, symbols)
}

fn symbols_in<'data, R: ReadRef<'data>>(
    data: R,
    kind: elf::SectionType,
    wanted: &RangeSet,
    budget: &mut Budget,
) -> Vec<Symbol> {
    Sections::parse(data, SYMBOL_TABLES)
        .map(|sections| table::symbols_of(&sections, kind, wanted, budget))
        .unwrap_or_default()
}

/// Every name that any source within a file gives to code in `wanted`; what is only ever compared is read too.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn read_everything(bytes: &[u8], wanted: &RangeSet) -> Vec<Symbol> {
    let Some(sections) = Sections::parse(bytes, SYMBOL_TABLES) else { return Vec::new() };
    separate::debug_link(&sections);
    sections.build_id();
    let budget = &mut linux::bounded::SYMBOLS.budget();
    let mut found = table::symbols_of(&sections, elf::SHT_SYMTAB, wanted, budget);
    found.extend(table::symbols_of(&sections, elf::SHT_DYNSYM, wanted, budget));
    found.extend(stubs::stubs_of(&sections, wanted, budget));
    if let Some(unpacked) = separate::mini_debug_data(&sections) {
        found.extend(symbols_in(unpacked.as_slice(), elf::SHT_SYMTAB, wanted, budget));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use address_space::AddressRange;
    use proptest::prelude::*;
    use std::sync::OnceLock;

    /// A real file, small where possible.
    fn sample() -> &'static [u8] {
        static SAMPLE: OnceLock<Vec<u8>> = OnceLock::new();
        SAMPLE.get_or_init(|| {
            let paths = ["/bin/true", "/proc/self/exe"];
            paths.iter().find_map(|path| std::fs::read(path).ok()).expect("/proc is mounted")
        })
    }

    fn read_all(bytes: &[u8]) -> usize {
        let everything: RangeSet = [AddressRange::new(Address(0), Address(u64::MAX))].into_iter().collect();
        read_everything(bytes, &everything).len()
    }

    #[test]
    fn the_sample_is_worth_damaging() {
        assert!(read_all(sample()) > 10);
    }

    #[test]
    fn no_truncated_file_makes_the_reader_panic() {
        let sample = sample();
        let step = (sample.len() / 2000).max(1);
        for length in (0..sample.len().min(4096)).chain((0..sample.len()).step_by(step)) {
            read_all(&sample[..length]);
        }
    }

    proptest! {
        #[test]
        fn no_damaged_file_makes_the_reader_panic(
            damage in prop::collection::vec((any::<prop::sample::Index>(), any::<bool>(), any::<u8>()), 1..24),
        ) {
            let mut bytes = sample().to_vec();
            // The section headers are at the end; half of the damage goes there and into the file's header.
            let tail = bytes.len().saturating_sub(4096);
            for (at, in_headers, value) in damage {
                let position = match in_headers {
                    true => (at.index(4096 + 64) + tail) % bytes.len(),
                    false => at.index(bytes.len()),
                };
                bytes[position] = value;
            }
            read_all(&bytes);
        }

        #[test]
        fn no_name_makes_the_demangler_panic(name in "_(Z|R)[A-Za-z0-9_]{0,60}", noise in any::<Vec<u8>>()) {
            prop_assert!(!names::readable(name.as_bytes()).name.contains('\n'));
            prop_assert!(!names::readable(&noise).name.contains('\n'));
        }
    }
}
