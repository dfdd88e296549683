//! Semaphores of USDT probes in an ELF file (sys/sdt.h of SystemTap).
//!
//! A program can skip the preparation of a probe's arguments while the probe is not traced: it reads the probe's
//! semaphore, a counter in its writable data. A tracer passes the counter's offset in the file to the kernel
//! (`ref_ctr_offset` of perf_event_open(2)), and the kernel changes the counter only in mappings of that file.

use crate::{Address, AddressRange, ElfImage, RangeSet};
use alloc::vec::Vec;

/// Section of the notes, one for each place of a probe.
const NOTES: &[u8] = b".note.stapsdt";
/// Section whose address, compared with that in a note, is the distance by which prelink has moved the file.
const BASE: &[u8] = b".stapsdt.base";
/// Section of the semaphores themselves.
const SEMAPHORES: &[u8] = b".probes";
const NOTE_NAME: &[u8] = b"stapsdt\0";
const NOTE_KIND: u32 = 3;
/// `SHT_NOTE`.
const SECTION_OF_NOTES: u32 = 7;
/// `SHF_WRITE` and `SHF_ALLOC`.
const WRITABLE_MEMORY: u64 = 3;
/// Size of a semaphore in bytes (`unsigned short`).
const SIZE: u64 = 2;

/// Length in bytes of the ELF header and of a section header of 64 bits.
const HEADER: usize = 64;
/// Maximum number of section headers; linked files have about forty, and 65,535 at most without the extension for object files.
const MOST_SECTIONS: u64 = 1 << 16;
/// Maximum length of the section names, in bytes; about 500 in linked files.
const MOST_NAME_BYTES: u64 = 1 << 20;
/// Maximum length of the notes, in bytes; a server with 1,000 places of probes has about 100 kB.
const MOST_NOTE_BYTES: u64 = 16 << 20;

/// Returns the semaphores of the file whose headers are `image`, before the bias: those that its notes name, and all of
/// the section for them. `read` returns so many bytes of the file from an offset on, or `None` where it cannot.
///
/// A file whose section headers lead nowhere has none, since no tracer finds them either. `None`: the file has such
/// notes or sections, but they cannot be read, or are larger than any sound file's.
pub fn semaphores(image: &ElfImage, mut read: impl FnMut(u64, u64) -> Option<Vec<u8>>) -> Option<RangeSet> {
    let mut found = RangeSet::new();
    let Some(sections) = Sections::read(&mut read) else { return Some(found) };
    let base = sections.named(BASE).map(|base| base.address);
    for section in sections.all_named(SEMAPHORES).filter(|section| section.flags & WRITABLE_MEMORY == WRITABLE_MEMORY) {
        found.insert(in_file(image, AddressRange::sized(Address(section.address), section.size)));
    }
    for section in sections.all_named(NOTES).filter(|section| section.kind == SECTION_OF_NOTES) {
        if section.size > MOST_NOTE_BYTES {
            return None;
        }
        for (semaphore, assembled_base) in notes(&read(section.offset, section.size)?) {
            let moved = base.map_or(0, |base| base.wrapping_sub(assembled_base));
            found.insert(in_file(image, AddressRange::sized(Address(semaphore) + moved, SIZE)));
        }
    }
    Some(found)
}

/// The part of a range that comes from the file in a writable segment.
fn in_file(image: &ElfImage, range: AddressRange) -> AddressRange {
    let writable = image.segments.iter().filter(|segment| segment.protection.write);
    let mut parts = writable.map(|segment| segment.file_memory().intersect(range));
    parts.find(|part| !part.is_empty()).unwrap_or(AddressRange::new(Address(0), Address(0)))
}

#[derive(Clone, Copy)]
struct Section {
    name: u32,
    kind: u32,
    flags: u64,
    address: u64,
    offset: u64,
    size: u64,
}

/// The section headers of a file, and their names.
struct Sections {
    sections: Vec<Section>,
    names: Vec<u8>,
}

impl Sections {
    /// `None` where the file has none that are sound.
    fn read(read: &mut impl FnMut(u64, u64) -> Option<Vec<u8>>) -> Option<Self> {
        let header = read(0, HEADER as u64)?;
        // Programs of another byte order do not run here.
        let own_order = if cfg!(target_endian = "little") { 1 } else { 2 };
        if header.get(5) != Some(&own_order) || half(&header, 58)? as usize != HEADER {
            return None;
        }
        let (table, count, names) = (word(&header, 40)?, half(&header, 60)?, half(&header, 62)?);
        if table == 0 {
            return None;
        }
        // Numbers that do not fit into the header are in the first section's.
        let first = section(&read(table, HEADER as u64)?)?;
        let count = if count == 0 { first.0.size } else { count.into() };
        let names = if names == u16::MAX { first.1 } else { names.into() };
        if count > MOST_SECTIONS {
            return None;
        }
        let headers = read(table, count * HEADER as u64)?;
        let sections: Vec<_> = headers.chunks_exact(HEADER).filter_map(|bytes| Some(section(bytes)?.0)).collect();
        let of_names = sections.get(names as usize).filter(|names| names.size <= MOST_NAME_BYTES)?;
        let names = read(of_names.offset, of_names.size)?;
        Some(Self { sections, names })
    }

    fn all_named<'a>(&'a self, name: &'a [u8]) -> impl Iterator<Item = Section> + 'a {
        let is_named = |section: &&Section| {
            let own = self.names.get(section.name as usize..);
            own.is_some_and(|own| own.starts_with(name) && own.get(name.len()) == Some(&0))
        };
        self.sections.iter().filter(is_named).copied()
    }

    fn named(&self, name: &[u8]) -> Option<Section> {
        self.all_named(name).next()
    }
}

/// A section header, and its link to another section.
fn section(bytes: &[u8]) -> Option<(Section, u32)> {
    let section = Section {
        name: number(bytes, 0)?,
        kind: number(bytes, 4)?,
        flags: word(bytes, 8)?,
        address: word(bytes, 16)?,
        offset: word(bytes, 24)?,
        size: word(bytes, 32)?,
    };
    Some((section, number(bytes, 40)?))
}

/// The semaphore of each note that names one, and the address that the base had when the file was assembled.
fn notes(bytes: &[u8]) -> impl Iterator<Item = (u64, u64)> + '_ {
    let mut rest = bytes;
    core::iter::from_fn(move || {
        let (note, behind) = Note::first(rest)?;
        rest = behind;
        Some(note)
    })
    .filter(|note| note.name == NOTE_NAME && note.kind == NOTE_KIND)
    .filter_map(|note| Some((word(note.description, 16)?, word(note.description, 8)?)))
    .filter(|&(semaphore, _)| semaphore != 0)
}

/// A note (elf(5)).
struct Note<'a> {
    name: &'a [u8],
    kind: u32,
    description: &'a [u8],
}

impl<'a> Note<'a> {
    /// The first note, and what follows it. Its name and its description are padded to four bytes.
    fn first(bytes: &'a [u8]) -> Option<(Self, &'a [u8])> {
        const LENGTHS: usize = 12;
        let (name, description) = (number(bytes, 0)? as usize, number(bytes, 4)? as usize);
        let at_description = LENGTHS.checked_add(name.checked_next_multiple_of(4)?)?;
        let behind = at_description.checked_add(description.checked_next_multiple_of(4)?)?;
        let note = Self {
            name: bytes.get(LENGTHS..LENGTHS.checked_add(name)?)?,
            kind: number(bytes, 8)?,
            description: bytes.get(at_description..at_description.checked_add(description)?)?,
        };
        Some((note, bytes.get(behind..).unwrap_or_default()))
    }
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().copied().map(u16::from_ne_bytes)
}

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().copied().map(u32::from_ne_bytes)
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().copied().map(u64::from_ne_bytes)
}

#[cfg(test)]
mod tests;
