//! Whole screens of the command line: help, messages about mistakes, and messages about files with fixed contents. The
//! screens in `screens/80` are for a terminal of 80 columns, in `screens/120` of 120, all others for the widest help.
//! `TRYCMD=overwrite` updates them.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use test_support::{pagelift_binary, scratch_folder, tests_folder};

/// Folders of screens and the columns of their terminals.
const WIDTHS: [(&str, usize); 3] = [("", 100), ("80", 80), ("120", 120)];
const BASE_PAGE: u64 = 4 << 10;
/// Bytes of the code of `placed`.
const CODE: u64 = 4 << 20;
const FIXED_ADDRESS: u16 = 2;
const SHARED: u16 = 3;
const READ: u32 = 4;
const EXECUTE: u32 = READ | 1;
const WRITE: u32 = READ | 2;

#[test]
fn screens_are_as_they_were_reviewed() {
    let pagelift = std::path::absolute(pagelift_binary().expect("a pagelift to test")).unwrap();
    let folder = scratch_folder().join("screens");
    std::fs::create_dir_all(&folder).unwrap();
    let page = |flags, index| Segment { flags, offset: index * BASE_PAGE, bytes: BASE_PAGE };
    write_program(&folder.join("fixed"), FIXED_ADDRESS, 0x40_0000, &[page(EXECUTE, 0), page(READ, 1), page(WRITE, 2)]);
    let code = Segment { flags: EXECUTE, offset: 0, bytes: CODE };
    let data = Segment { flags: WRITE, offset: CODE, bytes: BASE_PAGE };
    write_program(&folder.join("placed"), SHARED, 0, &[code, data]);
    // The commands run in this folder.
    std::env::set_current_dir(&folder).unwrap();
    for (folder, width) in WIDTHS {
        trycmd::TestCases::new()
            .register_bin("pagelift", pagelift.as_path())
            .env("COLUMNS", width.to_string())
            .case(tests_folder().join("cli/screens").join(folder).join("*.trycmd"));
    }
}

#[test]
fn no_screen_is_wider_than_its_terminal() {
    for (folder, width) in WIDTHS {
        let mut lines = 0;
        for file in std::fs::read_dir(tests_folder().join("cli/screens").join(folder)).unwrap() {
            let Ok(text) = std::fs::read_to_string(file.unwrap().path()) else { continue };
            // Only output is checked, without lines in which `[..]` matches any text.
            let blocks = text.split("```").skip(1).step_by(2);
            let output =
                blocks.flat_map(str::lines).filter(|line| !line.starts_with(['$', '?']) && !line.contains("[..]"));
            for line in output {
                assert!(line.chars().count() <= width, "wider than {width} columns: {line}");
                lines += 1;
            }
        }
        assert!(lines > 50, "{folder}: {lines}");
    }
}

/// A segment of a program, whose address is its offset above the base.
struct Segment {
    flags: u32,
    offset: u64,
    bytes: u64,
}

/// Writes an ELF file for this machine (elf(5)) that contains only headers and zeros.
fn write_program(path: &Path, kind: u16, base: u64, segments: &[Segment]) {
    const HEADER_BYTES: u16 = 64;
    const SEGMENT_BYTES: u16 = 56;
    const LOAD: u32 = 1;
    let machine: u16 = if cfg!(target_arch = "aarch64") { 183 } else { 62 };
    let mut bytes = [b"\x7fELF\x02\x01\x01".as_slice(), &[0; 9]].concat();
    bytes.extend([kind, machine].iter().flat_map(|half| half.to_le_bytes()));
    bytes.extend(1u32.to_le_bytes());
    bytes.extend([base + 0x100, HEADER_BYTES.into(), 0].iter().flat_map(|word: &u64| word.to_le_bytes()));
    bytes.extend(0u32.to_le_bytes());
    let counts = [HEADER_BYTES, SEGMENT_BYTES, segments.len() as u16, 0, 0, 0];
    bytes.extend(counts.iter().flat_map(|half| half.to_le_bytes()));
    for Segment { flags, offset, bytes: length } in segments {
        let address = base + offset;
        bytes.extend([LOAD, *flags].iter().flat_map(|half| half.to_le_bytes()));
        let words = [*offset, address, address, *length, *length, BASE_PAGE];
        bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
    }
    let mut file = File::create(path).unwrap();
    file.write_all(&bytes).unwrap();
    file.set_len(segments.iter().map(|segment| segment.offset + segment.bytes).max().unwrap_or(0)).unwrap();
}
