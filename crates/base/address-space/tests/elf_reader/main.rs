//! The ELF reader against real, cut, damaged and hostile files, and biases against what the kernel says.

mod biases;
mod fields;

use address_space::{
    Address, AddressRange, AddressSpace, ElfError, ElfImage, ElfKind, MappingName, PageSize, bias_of, file_groups,
};
use object::ReadCache;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::io::{Read, Seek, SeekFrom};

const PAGE: u64 = 4096;

/// A program header: type, flags, offset, address, size in the file, size in memory, alignment.
fn program_header(kind: u32, flags: u32, [offset, address, file, memory, align]: [u64; 5]) -> Vec<u8> {
    let mut bytes = [kind.to_le_bytes(), flags.to_le_bytes()].concat();
    for word in [offset, address, address, file, memory, align] {
        bytes.extend(word.to_le_bytes());
    }
    bytes
}

/// A small shared object: read-only data with headers, interpreter and note, code, data with RELRO and bss.
fn small_elf() -> Vec<u8> {
    let interpreter = b"/lib/ld.so\0";
    let note =
        [&4u32.to_le_bytes()[..], &4u32.to_le_bytes(), &3u32.to_le_bytes(), b"GNU\0", &[0xab, 0xcd, 0xef, 1]].concat();
    let (soname_table, texts) = ("libsmall.so", b"\0libsmall.so\0");
    assert_eq!(&texts[1..12], soname_table.as_bytes());
    let headers = 64 + 7 * 56;
    let (at_interpreter, at_note) = (headers, headers + 16);
    let (at_texts, at_dynamic) = (at_note + 24, at_note + 48);
    let dynamic: Vec<u8> = [5u64, at_texts, 14, 1, 30, 4, 0, 0].iter().flat_map(|word| word.to_le_bytes()).collect();
    let mut bytes = vec![0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    bytes.extend([3u16, 62].iter().flat_map(|half| half.to_le_bytes()));
    bytes.extend(1u32.to_le_bytes());
    bytes.extend([PAGE, 64, 0].iter().flat_map(|word| word.to_le_bytes()));
    bytes.extend(0u32.to_le_bytes());
    bytes.extend([64u16, 56, 7, 64, 0, 0].iter().flat_map(|half| half.to_le_bytes()));
    for header in [
        program_header(1, 4, [0, 0, at_dynamic + 64, at_dynamic + 64, PAGE]),
        program_header(1, 5, [PAGE, PAGE, 64, 64, PAGE]),
        program_header(1, 6, [2 * PAGE, 2 * PAGE, 64, 3 * PAGE, PAGE]),
        program_header(0x6474_e552, 4, [2 * PAGE, 2 * PAGE, 32, 32, 1]),
        program_header(3, 4, [at_interpreter, at_interpreter, interpreter.len() as u64, 11, 1]),
        program_header(4, 4, [at_note, at_note, note.len() as u64, 20, 4]),
        program_header(2, 4, [at_dynamic, at_dynamic, 64, 64, 8]),
    ] {
        bytes.extend(header);
    }
    for (offset, part) in
        [(at_interpreter, &interpreter[..]), (at_note, &note), (at_texts, texts), (at_dynamic, &dynamic)]
    {
        bytes.resize(offset as usize, 0);
        bytes.extend(part);
    }
    bytes.resize(2 * PAGE as usize + 64, 0x90);
    bytes
}

/// The properties of every image that the reader accepts.
fn check(image: &ElfImage) {
    let mut end = Address(0);
    assert!(!image.segments.is_empty());
    for segment in &image.segments {
        assert!(segment.memory.start() >= end, "segments in order");
        assert!(segment.file_size <= segment.memory.len() && segment.align.is_power_of_two());
        assert!(segment.memory.covers(segment.file_memory()) && image.extent().covers(segment.memory));
        if segment.file_size > 0 {
            assert_eq!(image.offset_of_address(segment.memory.start()), Some(segment.offset));
        }
        end = segment.memory.end();
    }
    if let Some(headers) = image.headers {
        assert!(image.segments.iter().any(|s| s.file_memory().contains(headers)));
    }
    let page = PageSize::new(PAGE).unwrap();
    assert!(image.largest_alignment(page) >= page);
    assert!(image.soname.as_ref().is_none_or(|name| name.len() <= 256));
}

#[test]
fn a_small_object_is_read_as_it_was_written() {
    let image = ElfImage::parse(small_elf().as_slice()).unwrap();
    check(&image);
    assert_eq!((image.machine, image.kind, image.entry), (62, ElfKind::PositionIndependent, Address(PAGE)));
    assert_eq!((image.headers, image.segments.len()), (Some(Address(64)), 3));
    assert_eq!(image.relro, Some(AddressRange::sized(Address(2 * PAGE), 32)));
    assert_eq!(image.interpreter.as_deref(), Some("/lib/ld.so"));
    assert_eq!((image.soname.as_deref(), image.build_id.as_deref()), (Some("libsmall.so"), Some("abcdef01")));
    assert!(image.dynamic && image.text_relocations);
    assert_eq!(image.extent().end(), Address(5 * PAGE));
}

#[test]
fn a_file_cut_at_any_length_is_refused_or_read_without_panic() {
    let whole = small_elf();
    let full = ElfImage::parse(whole.as_slice()).unwrap();
    let headers = 64 + 7 * 56;
    for length in 0..whole.len() {
        match ElfImage::parse(&whole[..length]) {
            Ok(image) => {
                check(&image);
                assert!(length >= headers);
                assert_eq!((&image.segments, image.relro), (&full.segments, full.relro));
            }
            Err(error) => assert!(length < headers, "{length}: {error}"),
        }
    }
}

#[test]
fn what_is_no_elf_file_is_named() {
    assert_eq!(ElfImage::parse(&b""[..]), Err(ElfError::NotElf));
    assert_eq!(ElfImage::parse(&b"#!/bin/sh\necho a script is no ELF file\n"[..]), Err(ElfError::NotElf));
    let mut elf = small_elf();
    elf[4] = 1;
    assert_eq!(ElfImage::parse(elf.as_slice()), Err(ElfError::ThirtyTwoBit));
    let mut elf = small_elf();
    elf[16] = 1;
    assert_eq!(ElfImage::parse(elf.as_slice()), Err(ElfError::NotLoadable(1)));
}

/// A sparse file that pretends to be enormous: its beginning, then zeros. Counts what is read.
struct Enormous {
    start: Vec<u8>,
    position: u64,
    read: u64,
}

impl Read for &mut Enormous {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        for (index, byte) in buffer.iter_mut().enumerate() {
            *byte = self.start.get(self.position as usize + index).copied().unwrap_or(0);
        }
        self.position += buffer.len() as u64;
        self.read += buffer.len() as u64;
        Ok(buffer.len())
    }
}

impl Seek for &mut Enormous {
    fn seek(&mut self, to: SeekFrom) -> std::io::Result<u64> {
        self.position = match to {
            SeekFrom::Start(position) => position,
            _ => 1 << 62,
        };
        Ok(self.position)
    }
}

#[test]
fn a_header_that_claims_hundreds_of_megabytes_does_not_make_the_reader_read_them() {
    for index in 0..7 {
        let mut file = Enormous { start: small_elf(), position: 0, read: 0 };
        let sizes = 64 + 56 * index + 32;
        file.start[sizes..sizes + 16]
            .copy_from_slice(&[(1u64 << 28).to_le_bytes(), (1u64 << 28).to_le_bytes()].concat());
        let _ = ElfImage::parse(&ReadCache::new(&mut file));
        assert!(file.read < 1 << 20, "{} bytes read for header {index}", file.read);
    }
    // As many program headers as the extended count (PN_XNUM) can say.
    let mut file = Enormous { start: small_elf(), position: 0, read: 0 };
    file.start[40..48].copy_from_slice(&4096u64.to_le_bytes());
    file.start[56..58].copy_from_slice(&u16::MAX.to_le_bytes());
    file.start[4096 + 44..4096 + 48].copy_from_slice(&u32::MAX.to_le_bytes());
    assert_eq!(ElfImage::parse(&ReadCache::new(&mut file)), Err(ElfError::Damaged("too many program headers")));
    assert!(file.read < 1 << 20);
}

/// Paths of real files: this test, the libraries it uses, and some programs.
fn real_files() -> Vec<String> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let space = AddressSpace::parse(&maps).unwrap();
    let mut paths: Vec<String> = file_groups(&space).into_keys().map(|key| key.path).collect();
    paths.extend(["/proc/self/exe", "/bin/true", "/bin/sh"].map(str::to_owned));
    paths
}

#[test]
fn real_files_are_understood() {
    let mut read = 0;
    for path in real_files() {
        let Ok(file) = std::fs::File::open(&path) else { continue };
        let image = match ElfImage::parse(&ReadCache::new(file)) {
            Ok(image) => image,
            Err(error) => panic!("{path}: {error}"),
        };
        check(&image);
        assert!(image.segments.iter().any(|s| s.protection.execute), "{path} has code");
        assert_eq!(image.machine, std::fs::read("/proc/self/exe").unwrap()[18] as u16);
        read += 1;
    }
    assert!(read >= 3, "this test, its C library and the dynamic linker");
}

/// `/proc/self/auxv` as a map from type to value.
fn auxiliary() -> BTreeMap<u64, u64> {
    let bytes = std::fs::read("/proc/self/auxv").unwrap();
    let words: Vec<u64> = bytes.chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap())).collect();
    words.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect()
}

#[test]
fn the_bias_of_this_test_is_the_one_the_kernel_told() {
    const AT_PHDR: u64 = 3;
    const AT_BASE: u64 = 7;
    const AT_ENTRY: u64 = 9;
    let (auxiliary, page) = (auxiliary(), PageSize::new(auxiliary()[&6]).unwrap());
    let space = AddressSpace::parse(&std::fs::read_to_string("/proc/self/maps").unwrap()).unwrap();
    let own = std::fs::read_link("/proc/self/exe").unwrap();
    let mut seen = 0;
    for (key, mappings) in file_groups(&space) {
        let image = ElfImage::parse(&ReadCache::new(std::fs::File::open(&key.path).unwrap())).unwrap();
        let biases = bias_of(&image, &space, &mappings, page);
        assert_eq!(biases.len(), 1, "{} at {biases:x?}", key.path);
        if own.to_str() == Some(&key.path) {
            assert_eq!(image.entry + biases[0], Address(auxiliary[&AT_ENTRY]));
            assert_eq!(image.headers.unwrap() + biases[0], Address(auxiliary[&AT_PHDR]));
            // The linker script of every C tool chain puts `main` into code; so does Rust.
            let here = Address(the_bias_of_this_test_is_the_one_the_kernel_told as fn() as usize as u64);
            assert!(image.segments.iter().any(|s| s.protection.execute && s.memory.shifted(biases[0]).contains(here)));
            seen += 1;
        } else if biases[0] == auxiliary[&AT_BASE] {
            assert!(image.is_dynamic_linker(), "{}", key.path);
            seen += 1;
        }
    }
    assert_eq!(seen, 2);
}

#[test]
fn the_heap_and_the_stack_are_no_files() {
    let space = AddressSpace::parse(&std::fs::read_to_string("/proc/self/maps").unwrap()).unwrap();
    let in_files: Vec<usize> = file_groups(&space).into_values().flatten().collect();
    assert!(in_files.iter().all(|&index| matches!(space.mappings()[index].name, MappingName::File { .. })));
}

/// Lays the segments of `image` out at `bias` as the kernel and the dynamic linker do, RELRO sealed.
fn layout(image: &ElfImage, bias: u64) -> AddressSpace {
    let page = PageSize::new(PAGE).unwrap();
    let mut text = String::new();
    for segment in &image.segments {
        let pages = segment.file_memory().widened(page).shifted(bias);
        let relro =
            image.relro.map_or(pages.start(), |r| (r.end() + bias).align_down(page)).clamp(pages.start(), pages.end());
        let offset = segment.offset & !(PAGE - 1);
        let sealed = if segment.protection.write { "r--".to_owned() } else { segment.protection.to_string() };
        for (start, end, protection) in
            [(pages.start(), relro, sealed), (relro, pages.end(), segment.protection.to_string())]
        {
            if start < end {
                let offset = offset + (start - pages.start());
                text += &format!("{:x}-{:x} {protection}p {offset:x} fe:00 9 /file\n", start.0, end.0);
            }
        }
    }
    AddressSpace::parse(&text).unwrap()
}

proptest! {
    #[test]
    fn no_damaged_header_makes_the_reader_panic(
        damage in prop::collection::vec((0usize..64 + 7 * 56 + 160, any::<u8>()), 1..12),
    ) {
        let mut bytes = small_elf();
        for (at, value) in damage {
            bytes[at] = value;
        }
        if let Ok(image) = ElfImage::parse(bytes.as_slice()) {
            check(&image);
        }
    }

    #[test]
    fn no_bytes_make_the_reader_panic(rest in prop::collection::vec(any::<u8>(), 0..600)) {
        let bytes = [&[0x7f, b'E', b'L', b'F', 2, 1, 1, 0][..], &rest].concat();
        if let Ok(image) = ElfImage::parse(bytes.as_slice()) {
            check(&image);
        }
    }

    #[test]
    fn an_image_is_found_where_it_was_laid(base in 1u64..1 << 30) {
        let image = ElfImage::parse(small_elf().as_slice()).unwrap();
        let space = layout(&image, base * PAGE);
        let mappings: Vec<usize> = (0..space.mappings().len()).collect();
        prop_assert_eq!(bias_of(&image, &space, &mappings, PageSize::new(PAGE).unwrap()), vec![base * PAGE]);
    }

    #[test]
    fn no_image_and_no_mapping_make_the_search_for_a_bias_panic(
        damage in prop::collection::vec((64usize..64 + 7 * 56, any::<u8>()), 0..8),
        starts in prop::collection::vec((any::<u64>(), any::<u64>(), any::<u64>()), 1..6),
    ) {
        let mut bytes = small_elf();
        damage.into_iter().for_each(|(at, value)| bytes[at] = value);
        let Ok(image) = ElfImage::parse(bytes.as_slice()) else { return Ok(()) };
        let mut starts = starts;
        starts.sort_unstable();
        let mut text = String::new();
        let mut free = 0;
        for (start, length, offset) in starts {
            let start = (start & !(PAGE - 1)).max(free);
            let end = start.saturating_add(length) & !(PAGE - 1);
            if start < end {
                text += &format!("{start:x}-{end:x} r-xp {:x} fe:00 9 /file\n", offset & !(PAGE - 1));
                free = end;
            }
        }
        let space = AddressSpace::parse(&text).unwrap();
        let mappings: Vec<usize> = (0..space.mappings().len()).collect();
        for bias in bias_of(&image, &space, &mappings, PageSize::new(PAGE).unwrap()) {
            let _ = image.extent().shifted(bias);
        }
    }
}
