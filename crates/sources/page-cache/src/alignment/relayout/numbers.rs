//! The numbers of a file that a new layout changes.

use super::headers::{PROGRAM_HEADER, SECTION_HEADER};
use super::layout::Piece;
use super::{Field, OFFSET_AT, PROGRAMS_AT, SECTION_OFFSET_AT, SECTIONS_AT};
use object::elf::{self, FileHeader64, ProgramHeader64};
use object::read::elf::{FileHeader as _, ProgramHeader as _};
use object::{LittleEndian, ReadRef};

/// Length of a number, in bytes.
const NUMBER: u64 = 8;

/// The headers of a file, each with its place in another layout.
pub struct Numbers {
    /// The program headers.
    programs: Piece,
    /// The section headers.
    sections: Piece,
    /// For each program header, true if its segment is loaded.
    are_loaded: Vec<bool>,
}

impl Numbers {
    /// Reads the headers of a file. `moved` returns the place of a range of bytes in the other layout. `None` if the headers
    /// are unsound, or a table has no single place there.
    pub fn read<'data, R: ReadRef<'data>>(data: R, moved: impl Fn(u64, u64) -> Option<u64>) -> Option<Self> {
        let header = FileHeader64::<LittleEndian>::parse(data).ok()?;
        let endian = header.endian().ok()?;
        let programs: &[ProgramHeader64<LittleEndian>] = header.program_headers(endian, data).ok()?;
        let sections = header.section_headers(endian, data).ok()?;
        let table = |from: u64, headers: usize, size: u64| {
            let length = headers as u64 * size;
            Some(Piece { from, to: moved(from, length)?, length })
        };
        Some(Self {
            programs: table(header.e_phoff(endian), programs.len(), PROGRAM_HEADER)?,
            sections: table(header.e_shoff(endian), sections.len(), SECTION_HEADER)?,
            are_loaded: programs.iter().map(|program| program.p_type(endian) == elf::PT_LOAD).collect(),
        })
    }

    /// True if a field is one of the numbers: the offset of a table, with its place as the new value, any number of a loaded
    /// segment's program header, and the offset in another program header or in a section header.
    pub fn contain(&self, field: &Field) -> bool {
        let place = |table: &Piece, size: u64| {
            let inside = field.from.checked_sub(table.from)?;
            let is_number = inside < table.length && table.to + inside == field.to && inside.is_multiple_of(NUMBER);
            is_number.then_some((inside / size, inside % size))
        };
        let is_offset_of = |table: &Piece, at: u64| (field.from, field.to, field.new) == (at, at, table.to);
        let is_of_program = place(&self.programs, PROGRAM_HEADER).is_some_and(|(number, at)| {
            let is_loaded = self.are_loaded.get(number as usize) == Some(&true);
            // The first number also holds the kind of the segment.
            at == OFFSET_AT || is_loaded && (at > 0 || field.new as u32 == elf::PT_LOAD.0)
        });
        is_of_program
            || is_offset_of(&self.programs, PROGRAMS_AT)
            || is_offset_of(&self.sections, SECTIONS_AT)
            || place(&self.sections, SECTION_HEADER).is_some_and(|(_, at)| at == SECTION_OFFSET_AT)
    }
}
