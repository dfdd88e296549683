//! Images of random ELF files, sound and hostile, made in memory.

use super::*;
use address_space::{Address, AddressRange, ElfKind, Protection};
use object::elf;
use object::pod::{bytes_of, bytes_of_slice};
use object::read::elf::{FileHeader, SectionHeader};
use object::{Endianness, U16, U32, U64};
use proptest::prelude::*;

const LE: Endianness = Endianness::Little;
const PAGE: u64 = 4096;
/// Small, so that small files have many huge pages.
const HUGE: u64 = 4 * PAGE;
const SEGMENT_BYTES: usize = size_of::<elf::ProgramHeader64<Endianness>>();

#[derive(Clone, Debug)]
struct SegmentSpec {
    protection: Protection,
    /// Pages left free in memory before it.
    gap: u64,
    file_size: u64,
    bss: u64,
}

#[derive(Clone, Debug)]
struct Spec {
    executable: bool,
    segments: Vec<SegmentSpec>,
    /// Names, lengths and alignments of sections that no segment loads.
    unloaded: Vec<(&'static str, u64, u64)>,
    seed: u8,
}

fn specs() -> impl Strategy<Value = Spec> {
    let protections = [Protection::READ, Protection::READ_EXECUTE, Protection::READ_WRITE];
    let segment = (prop::sample::select(protections.to_vec()), 0..9u64, 1..9 * PAGE, prop_oneof![Just(0), 0..6 * PAGE]);
    let segment = segment.prop_map(|(protection, gap, file_size, bss)| {
        let bss = if protection.write { bss } else { 0 };
        SegmentSpec { protection, gap, file_size, bss }
    });
    let names = [".symtab", ".strtab", ".debug_info", ".debug_line", ".comment"];
    let section = (prop::sample::select(names.to_vec()), 0..3 * PAGE, prop::sample::select(vec![0, 1, 8, 64, 1 << 40]));
    let sections = prop::collection::vec(section, 0..6);
    (any::<bool>(), prop::collection::vec(segment, 1..6), sections, any::<u8>())
        .prop_map(|(executable, segments, unloaded, seed)| Spec { executable, segments, unloaded, seed })
}

/// A file as linkers write them: segments follow each other in the file without padding, so that they share pages.
fn build(spec: &Spec) -> Vec<u8> {
    let note = build_id_note();
    let has_relro = spec.segments.iter().any(|segment| segment.protection.write);
    let table_bytes = (SEGMENT_BYTES * (spec.segments.len() + 1 + usize::from(has_relro))) as u64;
    let first_bytes = 64 + table_bytes + note.len() as u64;
    let mut headers = vec![program_header(elf::PT_NOTE, 64 + table_bytes, 0, note.len() as u64, note.len() as u64, 4)];
    let mut relro = None;
    let mut sections = vec![section(0, elf::SHT_NULL, 0, 0, 0, 0)];
    let mut names = vec![0u8];
    let mut name = |text: &str| {
        let at = names.len() as u32;
        names.extend(text.bytes().chain([0]));
        at
    };
    let base = if spec.executable { 0x40_0000 } else { 0 };
    headers[0].p_vaddr = U64::new(LE, base + 64 + table_bytes);
    let (mut offset, mut free) = (0, base);
    for (index, segment) in spec.segments.iter().enumerate() {
        let file_size = if index == 0 { segment.file_size.max(first_bytes) } else { segment.file_size };
        let gap = if index == 0 { 0 } else { segment.gap * PAGE };
        let address = free + gap + offset % PAGE;
        let memory_size = file_size + segment.bss;
        let mut header = program_header(elf::PT_LOAD, offset, address, file_size, memory_size, PAGE);
        header.p_flags = U32::new(LE, elf::ProgramFlags(flags_of(segment.protection)));
        headers.push(header);
        if segment.protection.write {
            // As lld writes it: the length in the file counts zeros that are not in the file.
            relro = Some(program_header(elf::PT_GNU_RELRO, offset, address, memory_size, memory_size, 1));
        }
        sections.push(section(name(".text"), elf::SHT_PROGBITS, address, offset, file_size, 16));
        if segment.bss > 0 {
            let start = address + file_size;
            sections.push(section(name(".bss"), elf::SHT_NOBITS, start, offset + file_size, segment.bss, 16));
        }
        offset += file_size;
        free = (address + memory_size).next_multiple_of(PAGE);
    }
    headers.extend(relro);
    let mut file: Vec<u8> = (0..offset).map(|at| (at as u8).wrapping_mul(31) ^ (at >> 8) as u8 ^ spec.seed).collect();
    for (title, length, align) in &spec.unloaded {
        sections.push(section(name(title), elf::SHT_PROGBITS, 0, file.len() as u64, *length, *align));
        file.extend((0..*length).map(|at| !(at as u8) ^ spec.seed));
    }
    let names_section = sections.len() as u16;
    let at = name(".shstrtab");
    sections.push(section(at, elf::SHT_STRTAB, 0, file.len() as u64, names.len() as u64, 1));
    file.extend(&names);
    file.resize(file.len().next_multiple_of(8), 0);
    let header = file_header(spec, headers.len(), file.len() as u64, sections.len(), names_section);
    file.extend(bytes_of_slice(&sections));
    let head = [bytes_of(&header), bytes_of_slice(&headers), &note].concat();
    file[..head.len()].copy_from_slice(&head);
    file
}

fn file_header(
    spec: &Spec,
    segments: usize,
    sections_at: u64,
    sections: usize,
    names: u16,
) -> elf::FileHeader64<Endianness> {
    elf::FileHeader64 {
        e_ident: elf::Ident {
            magic: elf::ELFMAG,
            class: elf::ELFCLASS64,
            data: elf::ELFDATA2LSB,
            version: elf::EV_CURRENT,
            os_abi: elf::ELFOSABI_NONE,
            abi_version: 0,
            padding: [0; 7],
        },
        e_type: U16::new(LE, if spec.executable { elf::ET_EXEC } else { elf::ET_DYN }),
        e_machine: U16::new(LE, elf::EM_X86_64),
        e_version: U32::new(LE, 1),
        e_entry: U64::new(LE, 0x1234),
        e_phoff: U64::new(LE, 64),
        e_shoff: U64::new(LE, sections_at),
        e_flags: U32::new(LE, elf::FileFlags(0)),
        e_ehsize: U16::new(LE, 64),
        e_phentsize: U16::new(LE, SEGMENT_BYTES as u16),
        e_phnum: U16::new(LE, segments as u16),
        e_shentsize: U16::new(LE, 64),
        e_shnum: U16::new(LE, sections as u16),
        e_shstrndx: U16::new(LE, elf::SymbolSection(names)),
    }
}

fn program_header(
    kind: elf::ProgramType,
    offset: u64,
    address: u64,
    file_size: u64,
    memory_size: u64,
    align: u64,
) -> elf::ProgramHeader64<Endianness> {
    elf::ProgramHeader64 {
        p_type: U32::new(LE, kind),
        p_flags: U32::new(LE, elf::PF_R),
        p_offset: U64::new(LE, offset),
        p_vaddr: U64::new(LE, address),
        p_paddr: U64::new(LE, address),
        p_filesz: U64::new(LE, file_size),
        p_memsz: U64::new(LE, memory_size),
        p_align: U64::new(LE, align),
    }
}

fn section(
    name: u32,
    kind: elf::SectionType,
    address: u64,
    offset: u64,
    size: u64,
    align: u64,
) -> elf::SectionHeader64<Endianness> {
    elf::SectionHeader64 {
        sh_name: U32::new(LE, name),
        sh_type: U32::new(LE, kind),
        sh_flags: U64::new(LE, elf::SectionFlags(0)),
        sh_addr: U64::new(LE, address),
        sh_offset: U64::new(LE, offset),
        sh_size: U64::new(LE, size),
        sh_link: U32::new(LE, 0),
        sh_info: U32::new(LE, 0),
        sh_addralign: U64::new(LE, align),
        sh_entsize: U64::new(LE, 0),
    }
}

fn flags_of(protection: Protection) -> u32 {
    u32::from(protection.execute) | u32::from(protection.write) << 1 | u32::from(protection.read) << 2
}

fn build_id_note() -> Vec<u8> {
    let words = [4u32, 8, elf::NT_GNU_BUILD_ID.0].map(u32::to_le_bytes);
    [&words.concat()[..], b"GNU\0", b"\xde\xad\xbe\xef\x01\x02\x03\x04"].concat()
}

fn layout(base_offset: u64) -> Layout {
    Layout::at(PageSize::new(HUGE).unwrap(), base_offset)
}

fn base_page() -> PageSize {
    PageSize::new(PAGE).unwrap()
}

fn recipe(file: &[u8], base_offset: u64) -> Result<Recipe, StoreError> {
    let record = record::write(std::path::Path::new("/usr/bin/random"));
    Recipe::new(file, file.len() as u64, layout(base_offset), base_page(), record)
}

/// The image in memory.
fn bake(recipe: &Recipe, source: &[u8]) -> Vec<u8> {
    let mut image = vec![0; recipe.size() as usize];
    for number in recipe.pages() {
        let start = (number * HUGE) as usize;
        let mut read = |offset: u64, into: &mut [u8]| {
            into.copy_from_slice(&padded(source, offset, into.len()));
            Ok(())
        };
        recipe.fill(number, &mut image[start..start + HUGE as usize], &mut read).unwrap();
    }
    image
}

fn padded(bytes: &[u8], offset: u64, length: usize) -> Vec<u8> {
    let mut found: Vec<u8> = bytes.iter().skip(offset as usize).take(length).copied().collect();
    found.resize(length, 0);
    found
}

/// True if two pieces of the recipe overlap.
fn overlaps(recipe: &Recipe) -> bool {
    recipe.pieces.windows(2).any(|pair| pair[0].offset + pair[0].length > pair[1].offset)
}

fn contents(file: &[u8]) -> Vec<(Vec<u8>, Vec<u8>)> {
    let header = elf::FileHeader64::<Endianness>::parse(file).unwrap();
    let sections = header.sections(LE, file).unwrap();
    let content = |section: &elf::SectionHeader64<Endianness>| section.data(LE, file).unwrap().to_vec();
    sections.iter().map(|s| (sections.section_name(LE, s).unwrap().to_vec(), content(s))).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn an_image_holds_every_page_where_its_address_says(spec in specs(), offset in 0..HUGE / PAGE) {
        let base_offset = offset * PAGE;
        let source = build(&spec);
        let elf = ElfImage::parse(&source[..]).unwrap();
        let recipe = match recipe(&source, base_offset) {
            Err(StoreError::NothingToMap) => return Ok(()),
            recipe => recipe.unwrap(),
        };
        prop_assert!(!overlaps(&recipe), "{recipe:?}");
        prop_assert_eq!(recipe.size() % HUGE, 0);
        let baked = bake(&recipe, &source);
        let image = ElfImage::parse(&baked[..]).unwrap();
        prop_assert_eq!((image.kind, image.entry, image.relro), (elf.kind, elf.entry, elf.relro));
        // The bytes that are mapped stay the same, the id that tools see in the image is its own.
        let lengths = [&elf, &image].map(|elf| elf.build_id.as_ref().map(String::len));
        prop_assert_eq!(lengths, [Some(16); 2]);
        prop_assert_ne!(&image.build_id, &elf.build_id);
        prop_assert_eq!(record::read(&baked[record::OFFSET as usize..]), Some("/usr/bin/random".into()));
        prop_assert_eq!(elf.segments.len(), image.segments.len());
        for (old, new) in elf.segments.iter().zip(&image.segments) {
            prop_assert_eq!((old.memory, old.file_size, old.protection), (new.memory, new.file_size, new.protection));
            prop_assert_eq!((new.memory.start().0 + base_offset) % HUGE, new.offset % HUGE);
            let pages = old.file_memory().widened(base_page());
            let before = old.memory.start() - pages.start();
            let (from, to) = (old.offset - before, new.offset - before);
            prop_assert_eq!(padded(&source, from, pages.len() as usize), padded(&baked, to, pages.len() as usize));
        }
    }

    #[test]
    fn every_section_keeps_its_contents_or_is_inactive(spec in specs(), offset in 0..HUGE / PAGE) {
        let source = build(&spec);
        let Ok(recipe) = recipe(&source, offset * PAGE) else { return Ok(()) };
        let baked = bake(&recipe, &source);
        let loaded: u64 = ElfImage::parse(&source[..]).unwrap().segments.iter().map(|s| s.file_size).sum();
        let debug: u64 = spec.unloaded.iter().filter(|s| s.0.starts_with(".debug")).map(|s| s.1).sum();
        let (old, new) = (contents(&source), contents(&baked));
        prop_assert_eq!(old.len(), new.len());
        for ((name, was), (same_name, is)) in old.iter().zip(&new) {
            prop_assert_eq!(name, same_name);
            if name.starts_with(b".debug") && debug > loaded {
                prop_assert!(is.is_empty());
            } else {
                prop_assert_eq!(was, is);
            }
        }
    }

    #[test]
    fn whole_huge_pages_are_found_at_offsets_that_agree(spec in specs(), offset in 0..HUGE / PAGE) {
        let base_offset = offset * PAGE;
        let source = build(&spec);
        let Ok(recipe) = recipe(&source, base_offset) else { return Ok(()) };
        let baked = bake(&recipe, &source);
        let segments = mappable_segments(&ElfImage::parse(&baked[..]).unwrap(), base_page());
        prop_assert!(!segments.is_empty());
        for segment in &segments {
            for page in segment.memory.shifted(base_offset).whole_pages(PageSize::new(HUGE).unwrap()).pages(base_page()) {
                let at = segment.offset + (page.start().0 - base_offset - segment.memory.start().0);
                prop_assert_eq!(at % HUGE, page.start().0 % HUGE);
            }
        }
    }

    #[test]
    fn no_damaged_file_makes_the_recipe_panic(
        spec in specs(),
        damage in prop::collection::vec((0..1024usize, any::<u8>(), any::<bool>()), 1..12),
        cut in prop::option::of(0..20_000usize),
    ) {
        let mut source = build(&spec);
        let length = source.len();
        for (at, byte, from_end) in damage {
            let at = if from_end { length - 1 - at % length } else { at % length };
            source[at] = byte;
        }
        source.truncate(cut.unwrap_or(length));
        if let Ok(recipe) = recipe(&source, 0) {
            prop_assert!(!overlaps(&recipe));
            // The image's size is checked before a buffer is allocated, since a hostile file can ask for any size.
            if recipe.size() < 1 << 24 {
                bake(&recipe, &source);
            } else {
                recipe.memory();
            }
        }
    }
}

fn plain(segments: Vec<SegmentSpec>) -> Spec {
    Spec { executable: false, segments, unloaded: Vec::new(), seed: 0 }
}

fn segment(protection: Protection, file_size: u64) -> SegmentSpec {
    SegmentSpec { protection, gap: 0, file_size, bss: 0 }
}

#[test]
fn what_cannot_be_mapped_is_refused() {
    let small = build(&plain(vec![segment(Protection::READ_EXECUTE, PAGE)]));
    assert!(matches!(recipe(&small, 0), Err(StoreError::NothingToMap)));
    let writable = build(&plain(vec![segment(Protection::READ_WRITE, 4 * HUGE)]));
    assert!(matches!(recipe(&writable, 0), Err(StoreError::NothingToMap)));
    let mut cut = build(&plain(vec![segment(Protection::READ_EXECUTE, 4 * HUGE)]));
    assert!(recipe(&cut, 0).is_ok());
    cut.truncate(3 * HUGE as usize);
    assert!(matches!(recipe(&cut, 0), Err(StoreError::CutOff { .. })));
    assert!(matches!(recipe(b"#!/bin/sh\n", 0), Err(StoreError::Elf(ElfError::NotElf))));
}

#[test]
fn headers_of_the_image_do_not_cost_a_huge_page_where_there_is_room() {
    let spec = plain(vec![segment(Protection::READ_EXECUTE, 3 * HUGE - PAGE)]);
    let source = build(&spec);
    // At base offset 0 the source's own first page claims offset 0 modulo a huge page.
    assert_eq!(recipe(&source, 0).unwrap().memory(), 4 * HUGE);
    assert_eq!(recipe(&source, PAGE).unwrap().memory(), 3 * HUGE);
}

#[test]
fn sections_that_claim_the_file_many_times_are_left_out() {
    let mut spec = plain(vec![segment(Protection::READ_EXECUTE, 4 * HUGE)]);
    spec.unloaded = vec![(".comment", 100, 1); 20];
    let mut source = build(&spec);
    assert_eq!(contents(&bake(&recipe(&source, 0).unwrap(), &source)).len(), contents(&source).len());
    let table = u64::from_le_bytes(source[40..48].try_into().unwrap()) as usize;
    let length = source.len() as u64;
    for index in 2..22 {
        let at = table + index * 64;
        source[at + 24..at + 32].copy_from_slice(&0u64.to_le_bytes());
        source[at + 32..at + 40].copy_from_slice(&(length - 8).to_le_bytes());
    }
    let recipe = recipe(&source, 0).unwrap();
    assert!(recipe.memory() <= length + 2 * HUGE, "{} of {length}", recipe.memory());
    let image = ElfImage::parse(&bake(&recipe, &source)[..]).unwrap();
    assert_eq!(image.kind, ElfKind::PositionIndependent);
    assert_eq!(image.extent(), AddressRange::new(Address(0), Address(4 * HUGE)));
}
