//! The ELF header and the program headers, rewritten for an image.

use super::identity::OwnNotes;
use super::sections::PlacedSections;
use super::{Placed, moved};
use crate::StoreError;
use address_space::{Address, ElfError};
use object::elf;
use object::pod::bytes_of;
use object::read::elf::{FileHeader, ProgramHeader};
use object::{Endianness, ReadRef, U16, U32, U64};

type Header = elf::FileHeader64<Endianness>;
type Segment = elf::ProgramHeader64<Endianness>;

/// The source's own.
pub(super) struct Headers {
    pub endian: Endianness,
    header: Header,
    pub segments: Vec<Segment>,
}

impl Headers {
    /// Reads headers that `ElfImage` has found sound.
    pub fn read<'data, R: ReadRef<'data>>(data: R) -> Result<Self, StoreError> {
        let damaged = |_| ElfError::Damaged("its header");
        let header = Header::parse(data).map_err(damaged)?;
        let endian = header.endian().map_err(damaged)?;
        let segments = header.program_headers(endian, data).map_err(damaged)?.to_vec();
        Ok(Self { endian, header: *header, segments })
    }

    /// Length of the table of program headers.
    pub fn table_bytes(&self) -> u64 {
        size_of_val(&self.segments[..]) as u64
    }

    /// The header and the table of program headers as the image has them.
    pub fn rewritten(
        mut self,
        table_offset: u64,
        placed: &[Placed],
        notes: Option<&OwnNotes>,
        sections: Option<&PlacedSections>,
    ) -> (Vec<u8>, Vec<u8>) {
        let endian = self.endian;
        self.header.e_phoff = U64::new(endian, table_offset);
        self.header.e_shoff = U64::new(endian, sections.map_or(0, |sections| sections.offset));
        if sections.is_none() {
            self.header.e_shnum = U16::new(endian, 0);
            self.header.e_shstrndx = U16::new(endian, elf::SHN_UNDEF);
        }
        let mut loads = placed.iter();
        let mut table = Vec::new();
        for segment in &mut self.segments {
            if segment.p_type(endian) == elf::PT_LOAD {
                rewrite_load(segment, endian, loads.next());
            } else {
                rewrite_other(segment, endian, placed, notes);
            }
            table.extend_from_slice(bytes_of(segment));
        }
        (bytes_of(&self.header).to_vec(), table)
    }
}

fn rewrite_load(segment: &mut Segment, endian: Endianness, placed: Option<&Placed>) {
    let Some(placed) = placed else { return };
    segment.p_offset = U64::new(endian, placed.offset);
    // Offset and address must agree modulo the alignment; they do so modulo the huge page only for the layout's base.
    let apart = placed.offset.wrapping_sub(segment.p_vaddr(endian));
    if apart != 0 {
        let most = 1 << apart.trailing_zeros();
        segment.p_align = U64::new(endian, segment.p_align(endian).min(most));
    }
}

fn rewrite_other(segment: &mut Segment, endian: Endianness, placed: &[Placed], notes: Option<&OwnNotes>) {
    let (offset, length, address) = (segment.p_offset(endian), segment.p_filesz(endian), segment.p_vaddr(endian));
    // A header without contents, such as PT_GNU_STACK.
    if length == 0 && segment.p_memsz(endian) == 0 {
        segment.p_offset = U64::new(endian, 0);
        return;
    }
    if segment.p_type(endian) == elf::PT_NOTE
        && let Some(offset) = notes.and_then(|notes| notes.moved(offset, length))
    {
        segment.p_offset = U64::new(endian, offset);
        return;
    }
    // Some linkers count the zeros behind the file's part into the length of PT_GNU_RELRO.
    let held = length.min(file_part(placed, address).unwrap_or(length));
    match moved(placed, offset, held, address) {
        Some(offset) => segment.p_offset = U64::new(endian, offset),
        None => {
            segment.p_type = U32::new(endian, elf::PT_NULL);
            segment.p_offset = U64::new(endian, 0);
            segment.p_filesz = U64::new(endian, 0);
        }
    }
}

/// Returns how much of the file a segment shows from an address on.
fn file_part(placed: &[Placed], address: u64) -> Option<u64> {
    let holder = placed.iter().find(|placed| placed.segment.file_memory().contains(Address(address)))?;
    Some(holder.segment.file_memory().end() - Address(address))
}
