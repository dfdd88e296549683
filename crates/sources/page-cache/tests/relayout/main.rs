//! New layouts of random and real files: nothing that a start maps, and nothing that a tool finds, may differ.

mod builder;

use address_space::PageSize;
use builder::{HUGE, PAGE, adjacent_wishes, build, wishes};
use object::LittleEndian;
use object::elf::{self, FileHeader64};
use object::read::elf::{FileHeader as _, ProgramHeader as _, SectionHeader as _};
use options::Edges;
use page_cache::alignment::{Field, Former, Piece, Relayout, RelayoutError};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::path::Path;

const MIB: u64 = 1 << 20;

fn plan(bytes: &[u8], huge: u64) -> Result<Relayout, RelayoutError> {
    plan_with(bytes, huge, Edges::Exact)
}

fn plan_with(bytes: &[u8], huge: u64, edges: Edges) -> Result<Relayout, RelayoutError> {
    Relayout::plan(bytes, PageSize::new(huge).unwrap(), PageSize::new(PAGE).unwrap(), true, edges)
}

/// The file that follows from pieces and fields.
fn applied(old: &[u8], length: u64, pieces: &[Piece], fields: &[Field]) -> Vec<u8> {
    let mut new = vec![0; length as usize];
    for piece in pieces {
        let (from, to, length) = (piece.from as usize, piece.to as usize, piece.length as usize);
        new[to..to + length].copy_from_slice(&old[from..from + length]);
    }
    for field in fields {
        new[field.to as usize..][..8].copy_from_slice(&field.new.to_le_bytes());
    }
    new
}

/// Kind, flags, offset, address, length, memory, alignment.
type Load = (u32, u32, u64, u64, u64, u64, u64);

struct View {
    programs: Vec<Load>,
    /// Kind, flags, address, offset, size.
    sections: Vec<(u32, u64, u64, u64, u64)>,
}

fn view(bytes: &[u8]) -> View {
    let header = FileHeader64::<LittleEndian>::parse(bytes).unwrap();
    let e = header.endian().unwrap();
    let programs = header.program_headers(e, bytes).unwrap().iter().map(|p| {
        let sizes = (p.p_filesz(e), p.p_memsz(e), p.p_align(e));
        (p.p_type(e).0, p.p_flags(e).0, p.p_offset(e), p.p_vaddr(e), sizes.0, sizes.1, sizes.2)
    });
    let sections = header.section_headers(e, bytes).unwrap().iter();
    let sections = sections.map(|s| (s.sh_type(e).0, s.sh_flags(e).0, s.sh_addr(e), s.sh_offset(e), s.sh_size(e)));
    View { programs: programs.collect(), sections: sections.collect() }
}

/// Number and offset of the program header in which each segment is described.
fn loads(bytes: &[u8]) -> (u64, Vec<(usize, Load)>) {
    let at = u64::from_le_bytes(bytes[32..40].try_into().unwrap());
    let programs = view(bytes).programs.into_iter().enumerate();
    (at, programs.filter(|(_, program)| program.0 == 1).map(|(n, program)| (at as usize + 56 * n, program)).collect())
}

/// Gives the segment of the program headers the address by which they are found from the first segment. False if it would not
/// be the last one.
fn place_as_bolt_does(bytes: &mut [u8]) -> bool {
    let (at, loads) = loads(bytes);
    let Some(((header, _), others)) = loads.split_last() else { return false };
    let Some((_, first)) = others.first() else { return false };
    let address = first.3.wrapping_add(at).wrapping_sub(first.2);
    for inside in [16, 24] {
        bytes[header + inside..][..8].copy_from_slice(&address.to_le_bytes());
    }
    others.iter().all(|(_, other)| other.3 + other.5 <= address)
}

fn is_found_from_the_first_segment(bytes: &[u8]) -> bool {
    let (at, loads) = loads(bytes);
    let (first, last) = (&loads[0].1, &loads[loads.len() - 1].1);
    last.3 + (at - last.2) == first.3.wrapping_add(at).wrapping_sub(first.2)
}

/// Compares bytes of both files, in which only changed numbers may differ.
fn same(old: &[u8], new: &[u8], from: u64, to: u64, length: u64, fields: &[Field]) -> Result<(), String> {
    let get = |bytes: &[u8], at: u64| bytes.get(at as usize).copied().unwrap_or(0);
    if old
        .get(from as usize..(from + length) as usize)
        .is_some_and(|part| new.get(to as usize..(to + length) as usize) == Some(part))
    {
        return Ok(());
    }
    for at in 0..length {
        let (was, is) = (get(old, from + at), get(new, to + at));
        let is_field = |field: &Field| {
            (field.from..field.from + 8).contains(&(from + at))
                && is == field.new.to_le_bytes()[(from + at - field.from) as usize]
        };
        if was != is && !fields.iter().any(is_field) {
            return Err(format!("byte {:#x} is {was:#x}, and {is:#x} at {:#x}", from + at, to + at));
        }
    }
    Ok(())
}

/// Checks one file: whatever is mapped or found in it is the same, and it can be restored.
fn check(old: &[u8], huge: u64) -> Result<Relayout, RelayoutError> {
    let relayout = plan(old, huge)?;
    let fields = &relayout.fields;
    let new = applied(old, relayout.length, &relayout.pieces, fields);
    let (before, after) = (view(old), view(&new));
    assert_eq!((before.programs.len(), before.sections.len()), (after.programs.len(), after.sections.len()));
    for (number, (was, is)) in before.programs.iter().zip(&after.programs).enumerate() {
        let (kind, flags, offset, address, length, memory, align) = *was;
        assert_eq!((kind, flags, address, length, memory), (is.0, is.1, is.3, is.4, is.5), "program header {number}");
        let (from, to) =
            if kind == elf::PT_LOAD.0 { (offset - offset % PAGE, is.2 - is.2 % PAGE) } else { (offset, is.2) };
        let end = match kind {
            kind if kind == elf::PT_LOAD.0 => (offset + length).next_multiple_of(PAGE),
            kind if kind == elf::PT_GNU_RELRO.0 => (offset + length).min(end_of_bytes(&before, address)),
            _ => offset + length,
        };
        same(old, &new, from, to, end - from, fields).unwrap_or_else(|e| panic!("program header {number}: {e}"));
        if kind == elf::PT_LOAD.0 {
            assert!(is.6 == align || is.6 == huge && align < huge);
            assert_eq!((address ^ is.2) & (is.6.max(PAGE) - 1), 0, "segment {number} disagrees with its alignment");
        }
    }
    for (number, (was, is)) in before.sections.iter().zip(&after.sections).enumerate() {
        assert_eq!((was.0, was.1, was.2, was.4), (is.0, is.1, is.2, is.4), "section {number}");
        if was.0 != elf::SHT_NOBITS.0 {
            same(old, &new, was.3, is.3, was.4, fields).unwrap_or_else(|e| panic!("section {number}: {e}"));
            assert_eq!(was.3 % 64, is.3 % 64, "the alignment of section {number}");
        }
    }
    let text = relayout.record();
    let former = Former::parse(&text, &new[..]).unwrap();
    assert!(applied(&new, former.length, &former.pieces, &former.fields) == old, "other bytes when undone");
    assert_eq!(Former::parse(&text, old), Err(RelayoutError::NoRecord));
    only_numbers_of_headers_are_restored(&text, &relayout, &new);
    Ok(relayout)
}

/// The owner of a file can write its record, which must not write other bytes than a new layout does.
fn only_numbers_of_headers_are_restored(text: &str, relayout: &Relayout, new: &[u8]) {
    let value = |at: u64| u64::from_le_bytes(new[at as usize..][..8].try_into().unwrap());
    let refused = |from: u64, to: u64, with: u64| {
        let text = format!("{text} {from:x}:{to:x}:{:x}:{with:x}", value(from));
        assert_eq!(Former::parse(&text, new), Err(RelayoutError::NoRecord), "{from:#x} to {to:#x}");
    };
    let contents = relayout.pieces.iter().filter(|piece| piece.length > 4 * PAGE);
    for piece in contents {
        let (new_at, old_at) = (piece.to + 2 * PAGE, piece.from + 2 * PAGE);
        let is_header = |at: u64| loads_and_sections(new).iter().any(|table| table.contains(&at));
        if !is_header(new_at) {
            refused(new_at, old_at, 0x4141_4141_4141_4141);
            // The number that is compared and the place that is written must be the same field.
            refused(32, old_at, 0x4141_4141_4141_4141);
        }
    }
    // `e_entry`, the number of headers, and program headers in other places.
    refused(24, 24, 0x4141);
    refused(56, 56, 0x4141);
    refused(32, 32, value(32) + 8);
}

/// The places of the program headers and the section headers.
fn loads_and_sections(bytes: &[u8]) -> [std::ops::Range<u64>; 2] {
    let (number, view) = (|at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()), view(bytes));
    let (programs, sections) = (number(32), number(40));
    [programs..programs + 56 * view.programs.len() as u64, sections..sections + 64 * view.sections.len() as u64]
}

/// A page of memory: flags, the present contents, the distance of address and offset.
type Page<'a> = (u32, &'a [u8], u64);

/// The pages that a start maps from the file, by address.
fn mapped(bytes: &[u8]) -> BTreeMap<u64, Page<'_>> {
    let mut pages = BTreeMap::new();
    for (_, flags, offset, address, length, _, _) in view(bytes).programs.into_iter().filter(|p| p.0 == elf::PT_LOAD.0)
    {
        for at in (address - address % PAGE..address + length).step_by(PAGE as usize) {
            let from = (offset - offset % PAGE + (at - (address - address % PAGE))) as usize;
            let contents = &bytes[from.min(bytes.len())..(from + PAGE as usize).min(bytes.len())];
            pages.insert(at, (flags, contents, at.wrapping_sub(from as u64)));
        }
    }
    pages
}

/// Checks one file with [`Edges::MergeReadOnly`]: only the protection of read-only data differs, and only in huge pages
/// that are entirely code, in memory and in the file. Returns the number of these pages of data.
fn check_edges(old: &[u8], huge: u64) -> Result<u64, RelayoutError> {
    let relayout = plan_with(old, huge, Edges::MergeReadOnly)?;
    let new = applied(old, relayout.length, &relayout.pieces, &relayout.fields);
    let (before, after) = (mapped(old), mapped(&new));
    assert!(before.keys().eq(after.keys()), "other pages are mapped");
    let mut widened = 0;
    for (at, (was, is)) in before.iter().map(|(at, was)| (*at, (was, &after[at]))) {
        let zeros = |page: &[u8]| page.iter().rev().take_while(|byte| **byte == 0).count();
        let is_header = relayout.fields.iter().any(|field| is.2.wrapping_add(field.to) / PAGE == at / PAGE);
        let trimmed = |page: &'_ [u8]| page[..page.len() - zeros(page)].to_vec();
        assert!(is_header || was.0 & elf::PF_W.0 != 0 || trimmed(was.1) == trimmed(is.1), "page {at:#x}");
        if was.0 != is.0 {
            assert_eq!((was.0, is.0), (elf::PF_R.0, elf::PF_R.0 | elf::PF_X.0), "page {at:#x}");
            widened += 1;
            // If a segment of data is shorter than the huge page, the rest of the page is code, too.
            let block = at - at % huge;
            let pages = || (block..block + huge).step_by(PAGE as usize);
            assert!(pages().all(|page| after.get(&page).is_some_and(|page| page.0 == is.0 && page.2 == is.2)));
            assert!(pages().any(|page| before[&page].0 == is.0), "a huge page without code became executable");
            assert_eq!(is.2 % huge, 0, "an address that disagrees with its offset");
        }
    }
    assert_eq!(widened > 0, relayout.widened > 0);
    let former = Former::parse(&relayout.record(), &new[..]).unwrap();
    assert!(applied(&new, former.length, &former.pieces, &former.fields) == old, "other bytes when undone");
    let exact = plan(old, huge).map_or((0, 0), |exact| exact.after.covered(PageSize::new(huge).unwrap()));
    assert!(relayout.after.covered(PageSize::new(huge).unwrap()).0 >= exact.0, "less code on huge pages");
    let again = plan_with(&new, huge, Edges::MergeReadOnly);
    assert!(matches!(again, Err(RelayoutError::Done(_) | RelayoutError::TooSmall(_))), "{again:?}");
    Ok(widened)
}

/// Offset at which the bytes end of the segment that holds an address.
fn end_of_bytes(file: &View, address: u64) -> u64 {
    let mut loads = file.programs.iter().filter(|p| p.0 == elf::PT_LOAD.0);
    loads.find(|p| (p.3..p.3 + p.5).contains(&address)).map_or(u64::MAX, |p| p.2 + p.4)
}

/// Bytes of some read-only segments in whole huge pages.
fn whole_pages(old: &[u8], huge: u64, which: impl Fn(&Load) -> bool) -> u64 {
    let loads = view(old).programs.into_iter().filter(|p| p.0 == elf::PT_LOAD.0 && p.1 & elf::PF_W.0 == 0);
    loads.filter(which).map(|p| ((p.3 + p.4) / huge).saturating_sub(p.3.div_ceil(huge)) * huge).sum()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_byte_stays_at_its_address(wishes in wishes()) {
        let old = build(&wishes);
        match check(&old, HUGE) {
            Ok(relayout) => {
                let huge = PageSize::new(HUGE).unwrap();
                let (code, other) = relayout.after.covered(huge);
                // The segment that begins with the file header does not move.
                let stays = |p: &Load| p.2 == 0 && (p.3 ^ p.2) & (HUGE - 1) != 0;
                let pinned = whole_pages(&old, HUGE, stays);
                prop_assert_eq!(code + other + pinned, whole_pages(&old, HUGE, |_| true));
                let moved = applied(&old, relayout.length, &relayout.pieces, &relayout.fields);
                let trailing = wishes.trailing as usize;
                prop_assert_eq!(&old[old.len() - trailing..], &moved[moved.len() - trailing..]);
                let again = plan(&moved, HUGE);
                prop_assert!(matches!(again, Err(RelayoutError::Done(_))), "{again:?}");
            }
            Err(error) => prop_assert!(
                matches!(
                    error,
                    RelayoutError::TooSmall(_)
                        | RelayoutError::Done(_)
                        | RelayoutError::LowestAddress { .. }
                ) || wishes.programs_at_the_end && matches!(error, RelayoutError::Unsound(_)),
                "{error}"
            ),
        }
    }

    #[test]
    fn only_shared_huge_pages_become_executable(wishes in adjacent_wishes()) {
        let _ = check_edges(&build(&wishes), HUGE);
    }

    #[test]
    fn data_are_not_merged_with_code_that_cannot_be_read(wishes in adjacent_wishes()) {
        let mut wishes = wishes;
        wishes.make_code_unreadable();
        if let Ok(relayout) = plan_with(&build(&wishes), HUGE, Edges::MergeReadOnly) {
            prop_assert_eq!(relayout.widened, 0);
        }
    }

    #[test]
    fn program_headers_stay_as_far_from_the_first_segment_as_their_offset_says(wishes in wishes()) {
        let mut wishes = wishes;
        wishes.programs_at_the_end = true;
        let mut old = build(&wishes);
        if !place_as_bolt_does(&mut old) {
            return Ok(());
        }
        prop_assert!(is_found_from_the_first_segment(&old));
        if let Ok(relayout) = plan(&old, HUGE) {
            let new = applied(&old, relayout.length, &relayout.pieces, &relayout.fields);
            prop_assert!(is_found_from_the_first_segment(&new));
        }
    }

    #[test]
    fn damaged_files_are_refused_or_keep_every_byte(
        wishes in wishes(),
        damages in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), any::<bool>()), 1..4),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut bytes = build(&wishes);
        for (at, value, in_beginning) in damages {
            let range = if in_beginning { bytes.len().min(600) } else { bytes.len() };
            bytes[at.index(range)] = value;
        }
        let short = &bytes[..cut.index(bytes.len())];
        for bytes in [&bytes[..], short] {
            if let Ok(relayout) = plan(bytes, HUGE) {
                let new = applied(bytes, relayout.length, &relayout.pieces, &relayout.fields);
                let former = Former::parse(&relayout.record(), &new[..]).unwrap();
                prop_assert!(applied(&new, former.length, &former.pieces, &former.fields) == bytes);
            }
        }
    }

    #[test]
    fn damaged_records_are_refused_or_stay_inside_of_the_file(
        wishes in wishes(),
        at in any::<prop::sample::Index>(),
        with in "[0-9a-f:| ]{0,3}",
    ) {
        let old = build(&wishes);
        let Ok(relayout) = plan(&old, HUGE) else { return Ok(()) };
        let new = applied(&old, relayout.length, &relayout.pieces, &relayout.fields);
        let mut text = relayout.record();
        let at = at.index(text.len());
        text.replace_range(at..at + 1, &with);
        if let Ok(former) = Former::parse(&text, &new[..]) {
            applied(&new, former.length, &former.pieces, &former.fields);
        }
    }
}

/// Real files, of this machine's linkers and of others.
#[test]
fn real_files_keep_every_byte() {
    let mut folders = vec!["/usr/bin".to_owned(), "/usr/sbin".to_owned(), "/usr/lib".to_owned()];
    folders.push(format!("/usr/lib/{}-linux-gnu", std::env::consts::ARCH));
    let rustc = std::process::Command::new("rustc").args(["--print", "sysroot"]).output();
    folders.extend(rustc.ok().map(|output| format!("{}/lib", String::from_utf8_lossy(&output.stdout).trim())));
    let (mut files, mut moved, mut widened, mut reasons) = (0, 0, 0, BTreeMap::new());
    for path in folders.iter().filter_map(|folder| Path::new(folder).read_dir().ok()).flatten().flatten() {
        let is_fit = path.metadata().is_ok_and(|m| m.is_file() && (2 * MIB..256 * MIB).contains(&m.len()));
        let Some(bytes) = is_fit.then(|| std::fs::read(path.path()).ok()).flatten() else { continue };
        files += 1;
        widened += check_edges(&bytes, 2 * MIB).map_or(0, |pages| usize::from(pages > 0));
        match check(&bytes, 2 * MIB) {
            Ok(_) => moved += 1,
            Err(error) => drop(reasons.insert(error.to_string(), path.path())),
        }
    }
    eprintln!(
        "{moved} of {files} files got another layout, {widened} share huge pages; others, for example: {reasons:#?}"
    );
    let contradicts = |reason: &&String| reason.contains("sound headers") || reason.contains("single part");
    assert_eq!(reasons.keys().find(contradicts), None, "a linker's headers are sound");
}

#[test]
fn reasons_are_named() {
    let small = std::fs::read(std::env::current_exe().unwrap()).unwrap();
    let mut bytes = small.clone();
    bytes[8..10].copy_from_slice(b"AI");
    assert_eq!(plan(&bytes, 2 * MIB).unwrap_err(), RelayoutError::ReadsItself("an AppImage"));
    for (kind, reason) in [(1, "an object file or kernel module"), (4, "a core file")] {
        let mut bytes = small.clone();
        bytes[16] = kind;
        assert_eq!(plan(&bytes, 2 * MIB).unwrap_err(), RelayoutError::Kind(reason));
    }
    let mut bytes = small.clone();
    bytes[2000..2004].copy_from_slice(b"UPX!");
    assert_eq!(plan(&bytes, 2 * MIB).unwrap_err(), RelayoutError::ReadsItself("a program that UPX has packed"));
    let ends: [(&[u8], _); 2] = [
        (b"~Module signature appended~\n", "an appended signature"),
        (b"d3n0l4nd and two offsets", "a program that `deno compile` made"),
    ];
    for (end, reason) in ends {
        let bytes = [&small, end].concat();
        assert_eq!(plan(&bytes, 2 * MIB).unwrap_err(), RelayoutError::ReadsItself(reason));
    }
    let mut bytes = small.clone();
    bytes[40..48].fill(0);
    bytes[60..64].fill(0);
    assert_eq!(plan(&bytes, 2 * MIB).unwrap_err(), RelayoutError::NoSections);
    // `e_phnum`: the layout of 36,000 program headers and 31,000 sections took 4.8 s.
    let mut bytes = small;
    bytes[56..58].copy_from_slice(&513_u16.to_le_bytes());
    let unsound = RelayoutError::Unsound("program headers beyond any that linkers write");
    assert_eq!(plan(&bytes, 2 * MIB).unwrap_err(), unsound);
}
