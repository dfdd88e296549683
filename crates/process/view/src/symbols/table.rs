//! Symbols from `.symtab` or `.dynsym`.

use super::names::Readable;
use super::sections::{Sections, text_at};
use super::{Symbol, names};
use address_space::{Address, RangeSet};
use linux::bounded::Budget;
use object::{Endianness, ReadRef, elf};

type Entry = elf::Sym64<Endianness>;

/// The code symbols in a file's symbol table of this type within `wanted`, addresses as in the file, until `budget` is
/// used up.
pub(crate) fn symbols_of<'data, R: ReadRef<'data>>(
    sections: &Sections<'data, R>,
    kind: elf::SectionType,
    wanted: &RangeSet,
    budget: &mut Budget,
) -> Vec<Symbol> {
    let mut symbols = Vec::new();
    for section in sections.of_type(kind) {
        let Some((entries, texts)) = sections.symbols(section) else { continue };
        let named = entries.iter().filter_map(|entry| symbol_of(entry, sections, texts, wanted));
        let within = named.take_while(|(symbol, work)| budget.spend(symbol.memory() + work));
        symbols.extend(within.map(|(symbol, _)| symbol));
    }
    symbols
}

/// A symbol, and the work for its name ([`Readable::work`]).
fn symbol_of<'data, R: ReadRef<'data>>(
    entry: &Entry,
    sections: &Sections<'data, R>,
    texts: &[u8],
    wanted: &RangeSet,
) -> Option<(Symbol, u64)> {
    let endian = sections.endian;
    let kind = entry.st_type();
    if ![elf::STT_FUNC, elf::STT_GNU_IFUNC, elf::STT_NOTYPE].contains(&kind) {
        return None;
    }
    let section = entry.st_shndx.get(endian);
    if section == elf::SHN_UNDEF {
        return None;
    }
    let address = Address(entry.st_value.get(endian));
    if !wanted.overlaps(address_space::AddressRange::sized(address, 1)) {
        return None;
    }
    let name = text_at(texts, entry.st_name.get(endian))?;
    // `$x`, `$d` and the like mark code and data for disassemblers (ELF for the Arm 64-bit architecture).
    if name.is_empty() || name.starts_with(b"$") {
        return None;
    }
    let global = entry.st_bind() == elf::STB_GLOBAL;
    let Readable { name, work } = names::readable(name);
    let symbol = Symbol {
        address,
        size: entry.st_size.get(endian),
        limit: Address(section.index().and_then(|i| sections.end_of(i.into())).unwrap_or(u64::MAX)),
        name,
        rank: u8::from(kind != elf::STT_NOTYPE) * 2 + u8::from(global),
    };
    Some((symbol, work))
}
