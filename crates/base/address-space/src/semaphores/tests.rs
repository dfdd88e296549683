use super::*;
use crate::{ElfKind, LoadSegment, Protection};
use alloc::string::String;
use alloc::vec;
use proptest::prelude::*;

const DATA: u64 = 0x20_0000;
const DATA_BYTES: u64 = 0x1000;

/// Code, and data of which the first page comes from the file.
fn image() -> ElfImage {
    let segment = |start, file_size, bytes, protection| LoadSegment {
        memory: AddressRange::sized(Address(start), bytes),
        file_size,
        offset: start,
        protection,
        align: 4096,
    };
    ElfImage {
        machine: 62,
        kind: ElfKind::PositionIndependent,
        entry: Address(64),
        headers: None,
        segments: vec![
            segment(0, 0x1000, 0x1000, Protection::READ_EXECUTE),
            segment(DATA, DATA_BYTES, 3 * DATA_BYTES, Protection::READ_WRITE),
        ],
        relro: None,
        interpreter: None,
        dynamic: true,
        text_relocations: false,
        soname: None,
        build_id: None,
    }
}

struct Described {
    name: &'static str,
    kind: u32,
    flags: u64,
    address: u64,
    bytes: Vec<u8>,
}

fn described(name: &'static str, kind: u32, flags: u64, address: u64, bytes: Vec<u8>) -> Described {
    Described { name, kind, flags, address, bytes }
}

/// A note as sys/sdt.h makes it: the place of the probe, the base, the semaphore, provider, name and arguments.
fn note_of(semaphore: u64, base: u64) -> Vec<u8> {
    let texts = b"provider\0name\0-4@%eax\0";
    let description: Vec<u8> = [0x1234, base, semaphore].iter().flat_map(|w: &u64| w.to_ne_bytes()).collect();
    let description = [&description[..], texts].concat();
    let lengths = [8, description.len() as u32, NOTE_KIND].map(u32::to_ne_bytes).concat();
    let mut note = [&lengths[..], NOTE_NAME, &description].concat();
    note.resize(note.len().next_multiple_of(4), 0);
    note
}

/// A file with these sections; the last one has their names.
fn file(sections: &[Described]) -> Vec<u8> {
    let mut names = String::from("\0.shstrtab\0");
    let mut bytes = vec![0; HEADER];
    bytes[..6].copy_from_slice(&[0x7f, b'E', b'L', b'F', 2, if cfg!(target_endian = "little") { 1 } else { 2 }]);
    let mut headers = vec![0; HEADER];
    let mut header = |name: u32, section: &Described, offset: u64, size: u64| {
        headers.extend([name, section.kind].map(u32::to_ne_bytes).concat());
        headers.extend([section.flags, section.address, offset, size].map(u64::to_ne_bytes).concat());
        headers.resize(headers.len().next_multiple_of(HEADER), 0);
    };
    for section in sections {
        header(names.len() as u32, section, bytes.len() as u64, section.bytes.len() as u64);
        names += section.name;
        names.push('\0');
        bytes.extend(&section.bytes);
    }
    header(1, &described("", 3, 0, 0, Vec::new()), bytes.len() as u64, names.len() as u64);
    bytes.extend(names.as_bytes());
    let (table, count) = (bytes.len() as u64, sections.len() as u16 + 2);
    bytes.extend(headers);
    bytes[40..48].copy_from_slice(&table.to_ne_bytes());
    bytes[58..64].copy_from_slice(&[HEADER as u16, count, count - 1].map(u16::to_ne_bytes).concat());
    bytes
}

fn read(bytes: &[u8]) -> Option<RangeSet> {
    semaphores(&image(), |offset, length| {
        let start = usize::try_from(offset).ok()?;
        Some(bytes.get(start..start.checked_add(usize::try_from(length).ok()?)?)?.to_vec())
    })
}

fn found(sections: &[Described]) -> Vec<(u64, u64)> {
    read(&file(sections)).unwrap().iter().map(|range| (range.start().0, range.len())).collect()
}

fn notes_section(notes: &[Vec<u8>]) -> Described {
    described(".note.stapsdt", SECTION_OF_NOTES, 0, 0, notes.concat())
}

fn base_section(address: u64) -> Described {
    described(".stapsdt.base", 1, 2, address, vec![0])
}

#[test]
fn semaphores_are_those_that_notes_name() {
    let notes = [note_of(DATA + 0x10, 0x900), note_of(0, 0x900), note_of(DATA + 0x40, 0x900)];
    assert_eq!(found(&[notes_section(&notes)]), [(DATA + 0x10, 2), (DATA + 0x40, 2)]);
    assert_eq!(found(&[notes_section(&notes), base_section(0x900)]), [(DATA + 0x10, 2), (DATA + 0x40, 2)]);
    assert_eq!(found(&[]), []);
}

/// prelink changes addresses, and no notes.
#[test]
fn a_file_that_was_moved_has_its_semaphores_elsewhere() {
    let notes = notes_section(&[note_of(DATA + 0x10, 0x900)]);
    assert_eq!(found(&[notes, base_section(0x980)]), [(DATA + 0x90, 2)]);
    let notes = notes_section(&[note_of(DATA + 0x90, 0x980)]);
    assert_eq!(found(&[notes, base_section(0x900)]), [(DATA + 0x10, 2)]);
}

/// A user can name a semaphore to a tracer by its address.
#[test]
fn the_section_of_semaphores_counts_without_notes() {
    let probes = || described(".probes", 1, WRITABLE_MEMORY, DATA + 0x100, vec![0; 6]);
    assert_eq!(found(&[probes()]), [(DATA + 0x100, 6)]);
    assert_eq!(found(&[Described { flags: 2, ..probes() }]), [], "read-only");
    assert_eq!(found(&[Described { name: ".probes2", ..probes() }]), []);
}

/// The kernel finds a semaphore by file and offset.
#[test]
fn what_does_not_come_from_the_file_holds_none() {
    let notes = [note_of(0x800, 0), note_of(DATA + DATA_BYTES, 0), note_of(DATA + DATA_BYTES - 1, 0), note_of(!0, 0)];
    assert_eq!(found(&[notes_section(&notes)]), [(DATA + DATA_BYTES - 1, 1)]);
}

#[test]
fn other_notes_are_passed_over_and_cut_ones_end_the_list() {
    let mut other = note_of(DATA + 8, 0);
    other[8..12].copy_from_slice(&4u32.to_ne_bytes());
    let renamed = note_of(DATA + 16, 0).iter().map(|&byte| if byte == b's' { b'S' } else { byte }).collect();
    let sound = note_of(DATA + 24, 0);
    let cut = note_of(DATA + 32, 0)[..30].to_vec();
    assert_eq!(found(&[notes_section(&[other, renamed, sound, cut])]), [(DATA + 24, 2)]);
}

#[test]
fn notes_that_cannot_be_read_are_not_taken_for_none() {
    let sections = [notes_section(&[note_of(DATA, 0)])];
    let mut bytes = file(&sections);
    let table = word(&bytes, 40).unwrap() as usize;
    for (size, known) in [(8, true), (1 << 20, false), (MOST_NOTE_BYTES + 1, false)] {
        bytes[table + HEADER + 32..table + HEADER + 40].copy_from_slice(&u64::to_ne_bytes(size));
        assert_eq!(read(&bytes).is_some(), known, "{size}");
    }
}

#[test]
fn a_file_without_sound_section_headers_has_none() {
    let sound = file(&[notes_section(&[note_of(DATA, 0)])]);
    let with = |at: usize, bytes: &[u8]| {
        let mut changed = sound.clone();
        changed[at..at + bytes.len()].copy_from_slice(bytes);
        read(&changed)
    };
    assert!(!read(&sound).unwrap().is_empty());
    for (at, bytes) in [(40, &[0; 8][..]), (40, &[0xff; 8]), (58, &[40, 0]), (60, &[0xff; 2]), (62, &[9, 0]), (5, &[3])]
    {
        assert_eq!(with(at, bytes), Some(RangeSet::new()), "{at}");
    }
    assert_eq!(read(b"#!/bin/sh\n"), Some(RangeSet::new()));
}

proptest! {
    #[test]
    fn hostile_files_name_only_writable_memory_of_the_file(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..40),
        cut in any::<Option<prop::sample::Index>>(),
    ) {
        let notes = [note_of(DATA + 0x10, 0x900), note_of(DATA + 0x40, 0x900)];
        let probes = described(".probes", 1, WRITABLE_MEMORY, DATA + 0x100, vec![0; 6]);
        let mut bytes = file(&[notes_section(&notes), base_section(0x980), probes]);
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        bytes.truncate(cut.map_or(bytes.len(), |cut| cut.index(bytes.len())));
        let of_file = AddressRange::sized(Address(DATA), DATA_BYTES);
        for range in read(&bytes).iter().flat_map(RangeSet::iter) {
            prop_assert!(of_file.covers(range), "{range}");
        }
    }
}
