//! Stubs of the procedure linkage table, named after what they jump to (`memcpy@plt`).
//!
//! A stub jumps through a slot of the global offset table; the slot's relocation names the function. Reading the jump
//! itself works for every linker's layout (`.plt`, `.plt.sec`, `.plt.got`, with and without branch protection).

use super::names::Readable;
use super::sections::{Section, Sections, text_at};
use super::{Symbol, names};
use address_space::{Address, AddressRange, RangeSet};
use linux::bounded::{Budget, SLOT_NAMES};
use object::read::elf::SectionHeader;
use object::{Endianness, ReadRef, elf};
use std::collections::BTreeMap;

/// Maximum size of a stub section, in bytes; a larger one counts as damaged.
const MOST_STUB_BYTES: u64 = 1 << 22;

/// A stub: its address and the slot that it jumps through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stub {
    address: u64,
    size: u64,
    slot: u64,
}

/// The stubs of a file within `wanted`, addresses as in the file, until `budget` is used up.
pub(crate) fn stubs_of<'data, R: ReadRef<'data>>(
    sections: &Sections<'data, R>,
    wanted: &RangeSet,
    budget: &mut Budget,
) -> Vec<Symbol> {
    let slots = slots_of(sections);
    let mut symbols = Vec::new();
    for section in [".plt", ".plt.sec", ".plt.got"].iter().filter_map(|name| sections.named(name)) {
        for stub in find_stubs(sections, section) {
            let Some(name) = slots.get(&stub.slot) else { continue };
            let address = Address(stub.address);
            if wanted.overlaps(AddressRange::sized(address, 1)) {
                let Readable { name, work } = names::readable(name);
                let name = name + "@plt";
                let symbol = Symbol { address, size: stub.size, limit: address + stub.size, name, rank: 1 };
                if !budget.spend(symbol.memory() + work) {
                    return symbols;
                }
                symbols.push(symbol);
            }
        }
    }
    symbols
}

/// The names of the functions whose addresses the dynamic linker writes into slots.
fn slots_of<'data, R: ReadRef<'data>>(sections: &Sections<'data, R>) -> BTreeMap<u64, &'data [u8]> {
    let endian = sections.endian;
    let kinds: &[elf::RelocationType] = match sections.machine {
        elf::EM_X86_64 => &[elf::R_X86_64_JUMP_SLOT, elf::R_X86_64_GLOB_DAT],
        elf::EM_AARCH64 => &[elf::R_AARCH64_JUMP_SLOT, elf::R_AARCH64_GLOB_DAT],
        _ => &[],
    };
    let mut slots = BTreeMap::new();
    let mut budget = SLOT_NAMES.budget();
    for section in sections.of_type(elf::SHT_RELA) {
        let symbols = sections.linked(section).and_then(|table| sections.symbols(table));
        let (Some((symbols, texts)), Some(relocations)) =
            (symbols, sections.entries::<elf::Rela64<Endianness>>(section))
        else {
            continue;
        };
        for relocation in relocations.iter().filter(|r| kinds.contains(&r.r_type(endian, false))) {
            let symbol = symbols.get(relocation.r_sym(endian, false) as usize);
            let name = symbol.and_then(|symbol| text_at(texts, symbol.st_name.get(endian)));
            let Some(name) = name.filter(|name| !name.is_empty()) else { continue };
            if !budget.spend(size_of::<(u64, &[u8])>() as u64) {
                return slots;
            }
            slots.insert(relocation.r_offset.get(endian), name);
        }
    }
    slots
}

fn find_stubs<'data, R: ReadRef<'data>>(sections: &Sections<'data, R>, section: &Section) -> Vec<Stub> {
    let endian = sections.endian;
    if section.sh_size(endian) > MOST_STUB_BYTES {
        return Vec::new();
    }
    let Some(code) = sections.bytes(section) else { return Vec::new() };
    let start = section.sh_addr(endian);
    match sections.machine {
        elf::EM_X86_64 => x86_64_stubs(code, start, section.sh_entsize(endian)),
        elf::EM_AARCH64 => aarch64_stubs(code, start),
        _ => Vec::new(),
    }
}

/// `jmp *displacement(%rip)` (`ff 25`) somewhere in each entry.
fn x86_64_stubs(code: &[u8], start: u64, entry_size: u64) -> Vec<Stub> {
    let size = if (8..=64).contains(&entry_size) { entry_size } else { 16 };
    let stub = |(index, entry): (usize, &[u8])| {
        let address = start.wrapping_add(index as u64 * size);
        let at = entry.windows(6).position(|bytes| bytes[..2] == [0xff, 0x25])?;
        let displacement = i32::from_le_bytes(entry[at + 2..at + 6].try_into().ok()?);
        let slot = address.wrapping_add(at as u64 + 6).wrapping_add_signed(displacement.into());
        Some(Stub { address, size, slot })
    };
    code.chunks_exact(size as usize).enumerate().filter_map(stub).collect()
}

/// `adrp x16, page; ldr x17, [x16, #offset]`, perhaps behind a `bti c`.
fn aarch64_stubs(code: &[u8], start: u64) -> Vec<Stub> {
    const BTI_C: u32 = 0xd503_245f;
    let words: Vec<u32> = code.chunks_exact(4).map(|w| u32::from_le_bytes([w[0], w[1], w[2], w[3]])).collect();
    let mut stubs: Vec<Stub> = Vec::new();
    for (index, pair) in words.windows(2).enumerate() {
        let (adrp, load) = (pair[0], pair[1]);
        if adrp & 0x9f00_001f != 0x9000_0010 || load & 0xffc0_03ff != 0xf940_0211 {
            continue;
        }
        let here = start.wrapping_add(4 * index as u64);
        let pages = i64::from(((adrp >> 29 & 3) | (adrp >> 5 & 0x7_ffff) << 2) as i32) << 43 >> 43;
        let slot = (here & !0xfff).wrapping_add_signed(pages << 12).wrapping_add(u64::from(load >> 10 & 0xfff) * 8);
        let address = if index > 0 && words[index - 1] == BTI_C { here.wrapping_sub(4) } else { here };
        if let Some(last) = stubs.last_mut() {
            last.size = last.size.min(address.wrapping_sub(last.address));
        }
        stubs.push(Stub { address, size: start.wrapping_add(code.len() as u64).wrapping_sub(address), slot });
    }
    stubs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stubs_of_x86_64_are_read_in_every_layout() {
        // .plt.sec: endbr64; bnd jmp *0x2f75(%rip); nop. Without protection: jmp *0x2fe2(%rip); push 0; jmp.
        let protected = [0xf3, 0x0f, 0x1e, 0xfa, 0xf2, 0xff, 0x25, 0x75, 0x2f, 0, 0, 0x0f, 0x1f, 0x44, 0, 0];
        let plain = [0xff, 0x25, 0xe2, 0x2f, 0, 0, 0x68, 0, 0, 0, 0, 0xe9, 0xe0, 0xff, 0xff, 0xff];
        let code = [protected, plain].concat();
        let stubs = x86_64_stubs(&code, 0x1050, 16);
        assert_eq!(
            stubs,
            [
                Stub { address: 0x1050, size: 16, slot: 0x1050 + 11 + 0x2f75 },
                Stub { address: 0x1060, size: 16, slot: 0x1060 + 6 + 0x2fe2 },
            ]
        );
    }

    #[test]
    fn stubs_of_aarch64_are_read_with_and_without_protection() {
        // adrp x16, +31 pages; ldr x17, [x16, #0xfd0]; add; br x17; and the next behind a bti c, one page back.
        let words: [u32; 9] = [
            0xf000_00f0,
            0xf947_ea11,
            0x913f_4210,
            0xd61f_0220,
            0xd503_245f,
            0xf0ff_fff0,
            0xf940_0211,
            0x9100_0210,
            0xd61f_0220,
        ];
        let code: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        let stubs = aarch64_stubs(&code, 0x6_0020);
        assert_eq!(
            stubs,
            [
                Stub { address: 0x6_0020, size: 16, slot: 0x7_f000 + 0xfd0 },
                Stub { address: 0x6_0030, size: 20, slot: 0x5_f000 },
            ]
        );
    }
}
