//! Each field of an image, by files that differ from the small one in just that, and by limits reached and passed.

use crate::{PAGE, small_elf};
use address_space::{Address, AddressRange, ElfError, ElfImage, LoadedObject, ObjectRole, PageSize, Protection};

const HEADERS: usize = 64;
const HEADER: usize = 56;
const INTERPRETER: usize = 4;
const NOTE: usize = 5;
const DYNAMIC: usize = 6;

/// Offsets of fields in program headers and in the file's header, in bytes.
const SIZE_IN_FILE: usize = 32;
const SIZE_IN_MEMORY: usize = 40;
const TABLE: usize = 32;
const HEADER_COUNT: usize = 56;

fn put(bytes: &mut [u8], at: usize, word: u64) {
    bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
}

fn word(bytes: &[u8], at: usize) -> usize {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()) as usize
}

/// The offset in the file of a program header's contents.
fn contents_of(bytes: &[u8], header: usize) -> usize {
    word(bytes, HEADERS + HEADER * header + 8)
}

fn with(change: impl FnOnce(&mut Vec<u8>)) -> Result<ElfImage, ElfError> {
    let mut bytes = small_elf();
    change(&mut bytes);
    ElfImage::parse(bytes.as_slice())
}

fn with_dynamic(words: [u64; 8]) -> ElfImage {
    with(|bytes| {
        let at = contents_of(bytes, DYNAMIC);
        words.iter().enumerate().for_each(|(index, &word)| put(bytes, at + 8 * index, word));
    })
    .unwrap()
}

#[test]
fn segments_have_the_protections_that_their_flags_ask_for() {
    let image = ElfImage::parse(small_elf().as_slice()).unwrap();
    let protections: Vec<_> = image.segments.iter().map(|segment| segment.protection).collect();
    assert_eq!(protections, [Protection::READ, Protection::READ_EXECUTE, Protection::READ_WRITE]);
}

#[test]
fn text_relocations_are_told_by_a_tag_or_a_flag_before_the_end_of_the_table() {
    const NULL: u64 = 0;
    const TEXTREL: u64 = 22;
    const FLAGS: u64 = 30;
    assert!(with_dynamic([TEXTREL, 0, NULL, 0, NULL, 0, NULL, 0]).text_relocations);
    assert!(with_dynamic([FLAGS, 4, NULL, 0, NULL, 0, NULL, 0]).text_relocations);
    assert!(!with_dynamic([FLAGS, 8, NULL, 0, NULL, 0, NULL, 0]).text_relocations, "DF_BIND_NOW");
    assert!(!with_dynamic([NULL, 0, TEXTREL, 0, FLAGS, 4, NULL, 0]).text_relocations, "behind the end");
    assert!(with_dynamic([FLAGS, 12, NULL, 0, NULL, 0, NULL, 0]).text_relocations);
}

#[test]
fn only_a_gnu_note_of_its_type_is_a_build_id() {
    let changed = |at: usize, byte: u8| {
        let image = with(|bytes| {
            let note = contents_of(bytes, NOTE);
            bytes[note + at] = byte;
        });
        image.unwrap().build_id
    };
    assert_eq!(changed(8, 3).as_deref(), Some("abcdef01"));
    assert_eq!(changed(8, 1), None, "NT_GNU_ABI_TAG");
    assert_eq!(changed(12, b'X'), None, "a note of somebody else");
}

#[test]
fn headers_are_found_in_the_segment_that_holds_them() {
    // The table moves to a place in the third segment, which the file has so many bytes of.
    let moved = |at: u64, size: u64| {
        with(|bytes| {
            bytes.resize(3 * PAGE as usize, 0);
            let table = bytes[HEADERS..HEADERS + 7 * HEADER].to_vec();
            bytes[at as usize..at as usize + table.len()].copy_from_slice(&table);
            put(bytes, TABLE, at);
            put(bytes, at as usize + 2 * HEADER + SIZE_IN_FILE, size);
            // Not the offset in the file.
            put(bytes, at as usize + 2 * HEADER + 16, 3 * PAGE);
            put(bytes, at as usize + 3 * HEADER + 16, 3 * PAGE);
        })
        .unwrap()
        .headers
    };
    assert_eq!(moved(2 * PAGE + 8, 512), Some(Address(3 * PAGE + 8)));
    assert_eq!(moved(2 * PAGE + 8, 8), None, "the segment ends where the table begins");
    assert_eq!(moved(2 * PAGE + 8, 9), Some(Address(3 * PAGE + 8)));
}

#[test]
fn limits_are_reached_before_they_are_passed() {
    let headers = |count: u16| {
        with(|bytes| {
            let (at, table) = (bytes.len(), bytes[HEADERS..HEADERS + 7 * HEADER].to_vec());
            bytes.extend(&table);
            // The rest is PT_NULL.
            bytes.resize(at + usize::from(count) * HEADER, 0);
            put(bytes, TABLE, at as u64);
            bytes[HEADER_COUNT..HEADER_COUNT + 2].copy_from_slice(&count.to_le_bytes());
        })
    };
    assert_eq!(headers(4096).map(|image| image.segments.len()), Ok(3));
    assert_eq!(headers(4097), Err(ElfError::Damaged("too many program headers")));

    let sized = |header: usize, size: u64| {
        with(|bytes| {
            bytes.resize(bytes.len() + size as usize, 0);
            for field in [SIZE_IN_FILE, SIZE_IN_MEMORY] {
                put(bytes, HEADERS + header * HEADER + field, size);
            }
        })
    };
    assert_eq!(sized(INTERPRETER, 4096).unwrap().interpreter.as_deref(), Some("/lib/ld.so"));
    assert_eq!(sized(INTERPRETER, 4097), Err(ElfError::Damaged("an interpreter longer than any path")));
    assert_eq!(sized(DYNAMIC, 1 << 20).unwrap().soname.as_deref(), Some("libsmall.so"));
    assert_eq!(sized(DYNAMIC, (1 << 20) + 16).unwrap().soname, None);
}

#[test]
fn a_dynamic_linker_is_known_by_its_name() {
    let small = ElfImage::parse(small_elf().as_slice()).unwrap();
    let named =
        |name: &str, entry: u64| ElfImage { soname: Some(name.to_owned()), entry: Address(entry), ..small.clone() };
    for name in ["ld-linux-x86-64.so.2", "ld-musl-aarch64.so.1", "ld64.so.2", "ld.so.1"] {
        assert!(named(name, 0).is_dynamic_linker(), "{name}");
    }
    // musl's C library is its linker, too, and has an entry; a `libc.so` without one is a library.
    assert!(named("libc.so", 0x1000).is_dynamic_linker() && !named("libc.so", 0).is_dynamic_linker());
    assert!(!named("libz.so", 0x1000).is_dynamic_linker() && !small.is_dynamic_linker());
    assert!(!ElfImage { soname: None, ..small.clone() }.is_dynamic_linker());
    assert!(!small.is_static() && ElfImage { interpreter: None, ..small }.is_static());
}

#[test]
fn a_loaded_object_lies_where_its_bias_says() {
    let image = ElfImage::parse(small_elf().as_slice()).unwrap();
    let (path, page) = ("/usr/lib/libsmall.so".to_owned(), PageSize::new(PAGE).unwrap());
    let object = LoadedObject { path, link: None, role: ObjectRole::SharedObject, bias: 16 * PAGE, image };
    assert_eq!((object.name(), object.entry()), ("libsmall.so", Address(17 * PAGE)));
    assert_eq!(object.extent(), AddressRange::sized(Address(16 * PAGE), 5 * PAGE));
    assert_eq!(object.relro(page), None, "it is smaller than a page");
    let relro = |start, end| {
        let relro = Some(AddressRange::new(Address(start), Address(end)));
        LoadedObject { image: ElfImage { relro, ..object.image.clone() }, ..object.clone() }.relro(page)
    };
    let expected = AddressRange::new(Address(18 * PAGE), Address(19 * PAGE));
    assert_eq!(relro(2 * PAGE + 0x123, 3 * PAGE + 0x123), Some(expected));
}
