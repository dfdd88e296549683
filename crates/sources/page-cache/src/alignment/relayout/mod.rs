//! New offsets for whole segments, so that they agree with addresses modulo the size of a huge page.
//!
//! The page cache has huge folios at multiples of their size in the file; the kernel maps one by a huge page only if
//! the address agrees with the offset modulo that size. lld and gold place segments at other offsets, so that neither a
//! larger `p_align` nor another base helps. This module moves whole segments within the file; no address changes, and
//! only bytes of offsets and alignments in headers change. Contents outside of segments (symbols, debugging
//! information, section headers) move after the segments, and data after the last section stays at the end.

mod headers;
mod layout;
mod numbers;
mod record;
mod refusal;

pub use layout::Piece;
pub use record::Former;
pub use refusal::RelayoutError;

use crate::alignment::{Segment, Segments};
use address_space::PageSize;
use headers::{FILE_HEADER, Headers, PROGRAM_HEADER, Program, SECTION_HEADER, Section};
use layout::{Layout, Load};
use object::{ReadRef, elf};
use options::Edges;

/// Offsets of `e_phoff`, `e_shoff`, `p_offset` and `sh_offset` in their headers (elf(5)).
const PROGRAMS_AT: u64 = 32;
const SECTIONS_AT: u64 = 40;
const OFFSET_AT: u64 = 8;
const SECTION_OFFSET_AT: u64 = 24;

/// Divisor of the old length: a new file has at least this share, since padding between segments may be left out.
const MOST_SHORTENED: u64 = 4;

/// A number of eight bytes in a header that changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Its offset in the file before.
    pub from: u64,
    /// Its offset in the new file.
    pub to: u64,
    /// The value before.
    pub old: u64,
    /// The new value.
    pub new: u64,
}

/// A new layout for a file.
#[derive(Clone, Debug)]
pub struct Relayout {
    /// Length of the file before, in bytes.
    pub old_length: u64,
    /// Length of the new file, in bytes. Bytes that no piece covers are holes.
    pub length: u64,
    /// The bytes to copy. Pieces may overlap in the old file, never in the new one.
    pub pieces: Vec<Piece>,
    /// The numbers that change.
    pub fields: Vec<Field>,
    /// The segments as they are.
    pub before: Segments,
    /// The segments in the new file; adjacent ones of code are one.
    pub after: Segments,
    /// Bytes of read-only data that become executable ([`Edges::MergeReadOnly`]).
    pub widened: u64,
    parts: Vec<Piece>,
}

impl Relayout {
    /// Finds new offsets for a file's segments. With `keep_trailing` data behind the last section move, too, whose format
    /// is not known to count from the end of the file. [`Edges::MergeReadOnly`] makes huge pages executable that code and
    /// read-only data share.
    ///
    /// The layout depends on the file and the sizes of pages only.
    ///
    /// # Errors
    /// [`RelayoutError`]: why the file keeps its layout.
    pub fn plan<'data, R: ReadRef<'data>>(
        data: R,
        huge: PageSize,
        page: PageSize,
        keep_trailing: bool,
        edges: Edges,
    ) -> Result<Self, RelayoutError> {
        let headers = Headers::read(data)?;
        let before = Segments::read(data)?;
        let layout = Layout::new(&headers, data, huge, page, edges)?;
        let after = moved(&before, &layout);
        gains(&before, &after, huge)?;
        let lowest = layout.loads.iter().map(|load| load.old.address).min().unwrap_or(0);
        if !headers.is_fixed && lowest & !(page.bytes() - 1) & (huge.bytes() - 1) != 0 {
            return Err(RelayoutError::LowestAddress { address: lowest, huge });
        }
        match headers.trailing(data) {
            0 => {}
            _ if keep_trailing => {}
            bytes => return Err(RelayoutError::Trailing(bytes)),
        }
        if layout.length < headers.length / MOST_SHORTENED {
            return Err(RelayoutError::Unsound("more padding than contents"));
        }
        let fields = fields(&headers, &layout)?;
        let Layout { length, copies, parts, widened, .. } = layout;
        Ok(Self { old_length: headers.length, length, pieces: copies, fields, before, after, widened, parts })
    }

    /// The text from which [`Former::parse`] restores the file.
    pub fn record(&self) -> String {
        Former::of(self).to_string()
    }

    /// Bytes that the new file takes on the disk, if each piece is written, in blocks of `page`.
    pub fn written(&self, page: PageSize) -> u64 {
        self.pieces.iter().map(|piece| (piece.to % page.bytes() + piece.length).next_multiple_of(page.bytes())).sum()
    }
}

/// The segments in the new layout. Those that have become executable as a whole are a part of the code beside them, as in memory.
fn moved(before: &Segments, layout: &Layout) -> Segments {
    let mut after = before.clone();
    let load_of = |segment: &Segment| layout.loads.iter().find(|load| load.index as u64 == segment.index);
    for segment in &mut after.all {
        if let Some(Load { new, .. }) = load_of(segment) {
            (segment.offset, segment.address, segment.length) = (new.offset, new.address, new.length);
            (segment.align, segment.executable) = (new.align, new.is_executable());
        }
    }
    let has_become_code = |segment: &Segment| load_of(segment).is_some_and(|load| load.new.flags != load.old.flags);
    after.all.dedup_by(|other, one| {
        // Only code that is adjacent in memory and in the file is shared.
        let is_joined = one.executable && other.executable && (has_become_code(one) || has_become_code(other));
        if is_joined {
            one.length = other.address + other.length - one.address;
        }
        is_joined
    });
    after
}

/// An error if a new layout brings no start more huge pages.
fn gains(before: &Segments, after: &Segments, huge: PageSize) -> Result<(), RelayoutError> {
    let sum = |(code, other): (u64, u64)| code + other;
    let (present, new) = (sum(before.covered(huge)), sum(after.covered(huge)));
    match () {
        () if new == 0 => Err(RelayoutError::TooSmall(huge)),
        () if before.is_placed(huge) && new <= present => Err(RelayoutError::Done(huge)),
        () => Ok(()),
    }
}

/// All numbers that change.
fn fields(headers: &Headers, layout: &Layout) -> Result<Vec<Field>, RelayoutError> {
    let unsound = |what| RelayoutError::Unsound(what);
    let programs_length = headers.programs.len() as u64 * PROGRAM_HEADER;
    let programs = layout.moved(headers.programs_at, programs_length).ok_or(unsound("program headers in two parts"))?;
    let sections_length = headers.sections.len() as u64 * SECTION_HEADER;
    let sections = layout.moved(headers.sections_at, sections_length).ok_or(unsound("section headers in two parts"))?;
    if layout.moved(0, FILE_HEADER) != Some(0) {
        return Err(unsound("a file header in two parts"));
    }
    let is_found = |at, offset: fn(&Load) -> u64| found_from_the_first_segment(layout, headers, at, offset);
    if is_found(headers.programs_at, |load| load.old.offset) && !is_found(programs, |load| load.offset) {
        return Err(unsound(
            "program headers that others find by their offset from the first segment, as BOLT places them",
        ));
    }
    let mut fields = vec![
        Field { from: PROGRAMS_AT, to: PROGRAMS_AT, old: headers.programs_at, new: programs },
        Field { from: SECTIONS_AT, to: SECTIONS_AT, old: headers.sections_at, new: sections },
    ];
    for (index, program) in headers.programs.iter().enumerate() {
        let at = index as u64 * PROGRAM_HEADER;
        let mut add = |inside: u64, old, new| {
            let (from, to) = (headers.programs_at + at + inside, programs + at + inside);
            fields.push(Field { from, to, old, new });
        };
        match layout.loads.iter().find(|load| load.index == index) {
            Some(load) => {
                let values = words(&load.old).into_iter().zip(words(&load.new));
                (0..).step_by(8).zip(values).for_each(|(inside, (old, new))| add(inside, old, new));
            }
            None => {
                add(OFFSET_AT, program.offset, of_program(layout, program).ok_or(RelayoutError::Program(index))?);
            }
        }
    }
    for (index, section) in headers.sections.iter().enumerate() {
        let at = index as u64 * SECTION_HEADER + SECTION_OFFSET_AT;
        let new = of_section(layout, section).ok_or(RelayoutError::Section(index))?;
        fields.push(Field { from: headers.sections_at + at, to: sections + at, old: section.offset, new });
    }
    fields.retain(|field| field.old != field.new);
    Ok(fields)
}

/// A segment's program header, as numbers of eight bytes (elf(5)).
fn words(load: &Program) -> [u64; 7] {
    let Program { flags, offset, address, physical, length, memory, align, .. } = *load;
    [u64::from(elf::PT_LOAD.0) | u64::from(flags) << 32, offset, address, physical, length, memory, align]
}

/// True if the address of the program headers, at an offset in the file, is as far from the first segment's as the offset is.
/// Linux before 5.18 computes AT_PHDR so (`create_elf_tables` of fs/binfmt_elf.c), and programs do by `__ehdr_start`.
fn found_from_the_first_segment(layout: &Layout, headers: &Headers, at: u64, offset: fn(&Load) -> u64) -> bool {
    let first = layout.loads.iter().min_by_key(|load| load.old.address);
    let holder = layout
        .loads
        .iter()
        .find(|load| headers.programs_at.checked_sub(load.old.offset).is_some_and(|inside| inside < load.old.length));
    let (Some(first), Some(holder)) = (first, holder) else { return false };
    let address = holder.old.address.wrapping_add(at.wrapping_sub(offset(holder)));
    address.wrapping_sub(first.old.address) == at.wrapping_sub(offset(first))
}

/// The new offset of bytes that are at an address, if a segment holds both at the same distance. `size` is the part of a
/// segment in which they must end.
fn with_segment(layout: &Layout, offset: u64, address: u64, length: u64, size: fn(&Program) -> u64) -> Option<u64> {
    let holds = |load: &&Load| {
        let (from, at) = (offset.checked_sub(load.old.offset), address.checked_sub(load.old.address));
        let end = at.and_then(|at| at.checked_add(length));
        from == at && end.is_some_and(|end| end <= size(&load.old))
    };
    layout.loads.iter().find(holds).map(|load| offset - load.old.offset + load.offset)
}

/// The new offset of something that has an address and no bytes in the file.
fn without_bytes(layout: &Layout, offset: u64, address: u64) -> Option<u64> {
    let holds = |load: &&Load| {
        let inside = address.checked_sub(load.old.address);
        let is_near = offset >= load.old.offset && offset - load.old.offset <= load.old.memory;
        inside.is_some_and(|inside| inside <= load.old.memory) && is_near
    };
    let mut loads = layout.loads.iter();
    loads.find(holds).map(|load| offset - load.old.offset + load.offset)
}

/// The new offset of a program header's bytes other than those that are loaded.
fn of_program(layout: &Layout, program: &Program) -> Option<u64> {
    let Program { offset, address, length, .. } = *program;
    if length == 0 {
        return without_bytes(layout, offset, address).or_else(|| layout.moved(offset, 0)).or(Some(offset));
    }
    // PT_GNU_RELRO may reach beyond the bytes in the file (lld's .relro_padding).
    with_segment(layout, offset, address, length, |load| load.memory).or_else(|| layout.moved(offset, length))
}

fn of_section(layout: &Layout, section: &Section) -> Option<u64> {
    let Section { offset, address, size, .. } = *section;
    match () {
        () if section.is_empty && section.is_allocated => {
            without_bytes(layout, offset, address).or_else(|| layout.moved(offset, 0)).or(Some(offset))
        }
        () if section.is_empty || size == 0 => layout.moved(offset, 0).or(Some(offset)),
        () if section.is_allocated => with_segment(layout, offset, address, size, |load| load.length),
        () => layout.moved(offset, size),
    }
}
