//! Places sections: those that segments load move with them, the others are copied into free space.

use super::identity::OwnNotes;
use super::{Content, Piece, Placed, Room, moved};
use object::elf;
use object::pod::bytes_of_slice;
use object::read::elf::{FileHeader, SectionHeader};
use object::{Endianness, ReadRef, U32, U64};

type Header = elf::FileHeader64<Endianness>;
type Section = elf::SectionHeader64<Endianness>;

/// Maximum number of sections; of a file with more, all sections are left out.
const MOST_SECTIONS: usize = 1 << 16;

/// The source's sections.
pub(super) struct Sections {
    endian: Endianness,
    sections: Vec<Section>,
    /// Sections that only a debugger reads.
    debug: Vec<bool>,
}

/// The table of sections as the image has it.
pub(super) struct PlacedSections {
    pub offset: u64,
    pub table: Vec<u8>,
}

impl Sections {
    /// Reads the sections; `None` if there are none, or if they are damaged: mappings do not need them.
    pub fn read<'data, R: ReadRef<'data>>(data: R, length: u64) -> Option<Self> {
        let header = Header::parse(data).ok()?;
        let endian = header.endian().ok()?;
        let table = header.sections(endian, data).ok()?;
        if table.is_empty() || table.len() > MOST_SECTIONS {
            return None;
        }
        let sections: Vec<Section> = table.iter().copied().collect();
        let debug = table.iter().map(|s| is_debug(table.section_name(endian, s).unwrap_or_default())).collect();
        let read = Self { endian, sections, debug };
        read.are_sound(length).then_some(read)
    }

    /// Only sections within the file count, with no more bytes in all than the file: a hostile file could claim its
    /// bytes many times.
    fn are_sound(&self, length: u64) -> bool {
        let mut sum = 0u64;
        self.sections.iter().filter(|section| self.has_content(section)).all(|section| {
            let (offset, size) = (section.sh_offset(self.endian), section.sh_size(self.endian));
            sum = sum.saturating_add(size);
            sum <= length && offset.checked_add(size).is_some_and(|end| end <= length)
        })
    }

    fn has_content(&self, section: &Section) -> bool {
        let kind = section.sh_type(self.endian);
        kind != elf::SHT_NOBITS && kind != elf::SHT_NULL
    }

    /// Finds a place for each section and for their table, and adds the pieces that must be copied.
    pub fn place(
        mut self,
        placed: &[Placed],
        notes: Option<&OwnNotes>,
        room: &mut Room,
        pieces: &mut Vec<Piece>,
    ) -> Option<PlacedSections> {
        let endian = self.endian;
        let keeps_debug = self.debug_bytes() <= placed.iter().map(|placed| placed.segment.file_size).sum();
        let offset = room.take(size_of_val(&self.sections[..]) as u64, 8)?;
        for index in 0..self.sections.len() {
            let mut section = self.sections[index];
            if section.sh_type(endian) == elf::SHT_NOBITS {
                section.sh_offset = U64::new(endian, zeros_at(&section, endian, placed));
            } else if self.has_content(&section) {
                let (old, size, address) =
                    (section.sh_offset(endian), section.sh_size(endian), section.sh_addr(endian));
                let is_note = section.sh_type(endian) == elf::SHT_NOTE;
                let own = notes.filter(|_| is_note).and_then(|notes| notes.moved(old, size));
                let loaded = own.or_else(|| moved(placed, old, size, address));
                match loaded {
                    Some(offset) => section.sh_offset = U64::new(endian, offset),
                    None if self.debug[index] && !keeps_debug => leave_out(&mut section, endian),
                    None => {
                        let align = alignment(&section, endian);
                        let offset = room.take(size, align)?;
                        section.sh_offset = U64::new(endian, offset);
                        pieces.push(Piece { offset, length: size, content: Content::Source(old) });
                    }
                }
            }
            self.sections[index] = section;
        }
        Some(PlacedSections { offset, table: bytes_of_slice(&self.sections).to_vec() })
    }

    fn debug_bytes(&self) -> u64 {
        let debug =
            self.sections.iter().zip(&self.debug).filter(|(section, debug)| **debug && self.has_content(section));
        debug.map(|(section, _)| section.sh_size(self.endian)).sum()
    }
}

/// Debug information may be many times larger than the program. If it is larger than the program itself, it stays in
/// the source, where debuggers find it by the build-id or the path. Its section becomes inactive instead of removed, so
/// that the numbers of the others do not change.
fn leave_out(section: &mut Section, endian: Endianness) {
    section.sh_type = U32::new(endian, elf::SHT_NULL);
    section.sh_offset = U64::new(endian, 0);
    section.sh_size = U64::new(endian, 0);
}

fn is_debug(name: &[u8]) -> bool {
    let prefixes = [&b".debug"[..], b".zdebug", b".rela.debug", b".rel.debug", b".gdb_index", b".gnu.debuglto"];
    prefixes.iter().any(|prefix| name.starts_with(prefix))
}

/// Returns a section's alignment in a file: at most a page, and 1 if it is not a power of two.
fn alignment(section: &Section, endian: Endianness) -> u64 {
    const MOST: u64 = 4096;
    let align = section.sh_addralign(endian);
    if align.is_power_of_two() { align.min(MOST) } else { 1 }
}

/// The image's offset for a section of zeros.
fn zeros_at(section: &Section, endian: Endianness, placed: &[Placed]) -> u64 {
    let address = section.sh_addr(endian);
    let holder = placed.iter().find(|placed| {
        let memory = placed.segment.memory;
        memory.start().0 <= address && address <= memory.end().0 && !memory.is_empty()
    });
    holder.map_or(0, |placed| placed.offset + (address - placed.segment.memory.start().0).min(placed.segment.file_size))
}
