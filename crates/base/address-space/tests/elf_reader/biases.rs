//! The bias of an image, found from any remaining mappings of its file.

use address_space::{
    Address, AddressRange, AddressSpace, ElfImage, ElfKind, LoadSegment, PageSize, Protection, bias_of,
};

const BIAS: u64 = 0x5555_5555_4000;

/// An image as GNU ld lays it out: offsets in the file fall behind addresses, and data begins inside of a page.
fn image() -> ElfImage {
    let segment = |start: u64, length: u64, file_size: u64, offset: u64, protection| LoadSegment {
        memory: AddressRange::sized(Address(start), length),
        file_size,
        offset,
        protection,
        align: 0x1000,
    };
    ElfImage {
        machine: 62,
        kind: ElfKind::PositionIndependent,
        entry: Address(0x7040),
        headers: Some(Address(64)),
        segments: vec![
            segment(0, 0x5320, 0x5320, 0, Protection::READ),
            segment(0x7000, 0x3010, 0x3010, 0x6000, Protection::READ_EXECUTE),
            segment(0xb000, 0x2000, 0x2000, 0xa000, Protection::READ),
            segment(0xed10, 0x4000, 0x2300, 0xcd10, Protection::READ_WRITE),
        ],
        relro: Some(AddressRange::new(Address(0xed10), Address(0xf000))),
        interpreter: None,
        dynamic: true,
        text_relocations: false,
        soname: None,
        build_id: None,
    }
}

/// Its mappings: start, end, protection, offset.
const MAPPINGS: [(u64, u64, &str, u64); 5] = [
    (0, 0x6000, "r--", 0),
    (0x7000, 0xb000, "r-x", 0x6000),
    (0xb000, 0xd000, "r--", 0xa000),
    (0xe000, 0xf000, "r--", 0xc000),
    (0xf000, 0x12000, "rw-", 0xd000),
];

type Line = (u64, u64, &'static str, u64);

fn at(bias: u64, (start, end, protection, offset): Line) -> Line {
    (start + bias, end + bias, protection, offset)
}

fn biases(mappings: &[Line]) -> Vec<u64> {
    let line =
        |(start, end, protection, offset): &Line| format!("{start:x}-{end:x} {protection}p {offset:x} fe:00 9 /file\n");
    let space = AddressSpace::parse(&mappings.iter().map(line).collect::<String>()).unwrap();
    let all: Vec<usize> = (0..mappings.len()).collect();
    bias_of(&image(), &space, &all, PageSize::new(0x1000).unwrap())
}

#[test]
fn any_mapping_that_is_left_tells_the_bias() {
    assert_eq!(biases(&MAPPINGS.map(|line| at(BIAS, line))), [BIAS]);
    for line in MAPPINGS {
        assert_eq!(biases(&[at(BIAS, line)]), [BIAS], "{line:x?}");
        // The part that is left if other pages have been mapped over its beginning and its end.
        let rest = (line.0 + 0x1000, line.1, line.2, line.3 + 0x1000);
        if rest.0 < rest.1 {
            assert_eq!(biases(&[at(BIAS, rest)]), [BIAS], "{rest:x?}");
        }
        let beginning = (line.0, line.0 + 0x1000, line.2, line.3);
        assert_eq!(biases(&[at(BIAS, beginning)]), [BIAS], "{beginning:x?}");
    }
}

#[test]
fn a_mapping_that_no_segment_has_tells_nothing() {
    for line in [
        (0x7000, 0xc000, "r-x", 0x6000),
        (0x8000, 0xc000, "r-x", 0x7000),
        (0x7000, 0xb000, "r--", 0x6000),
        (0, 0x6000, "rw-", 0),
        (0, 0x6000, "r-x", 0),
        (0xf000, 0x12000, "rwx", 0xd000),
        (0x20000, 0x21000, "r--", 0x20000),
    ] {
        assert_eq!(biases(&[at(BIAS, line)]), [], "{line:x?}");
    }
    // An image would have to begin below address 0.
    assert_eq!(biases(&[(0x1000, 0x2000, "r-x", 0x9000)]), []);
}

/// A program may map a part of its own file as plain data, for example directly below the address at which the file was
/// loaded.
#[test]
fn of_two_places_that_overlap_the_one_that_explains_more_is_right() {
    let mut mappings = vec![(BIAS - 0x1000, BIAS, "r--", 0)];
    mappings.extend(MAPPINGS.map(|line| at(BIAS, line)));
    assert_eq!(biases(&mappings), [BIAS]);
    // Other parts of the file that fill its gaps explain nothing.
    let gaps = [(0x6000, 0x7000, "r--", 0x30_0000), (0xd000, 0xe000, "r--", 0x30_1000)];
    mappings.extend(gaps.map(|line| at(BIAS, line)));
    mappings.sort_unstable();
    assert_eq!(biases(&mappings), [BIAS]);
}

/// A file of which only the code is left at the load address.
#[test]
fn other_bytes_at_the_places_of_segments_explain_nothing() {
    let below = (BIAS - 0x1000, BIAS, "r--", 0);
    let around = [(0x6000, 0x7000, "r--", 0x30_0000), MAPPINGS[1], (0xd000, 0xe000, "r--", 0x30_1000)];
    let mappings: Vec<Line> = std::iter::once(below).chain(around.map(|line| at(BIAS, line))).collect();
    assert_eq!(biases(&mappings), [BIAS]);
}

#[test]
fn an_object_that_is_loaded_twice_has_two_biases_lowest_first() {
    let mut mappings = vec![at(BIAS, MAPPINGS[1])];
    mappings.extend(MAPPINGS.map(|line| at(BIAS + 0x10_0000, line)));
    assert_eq!(biases(&mappings), [BIAS, BIAS + 0x10_0000]);
}

/// A program can map a file at more places than the reader examines.
#[test]
fn of_too_many_biases_those_that_most_bytes_speak_for_are_kept() {
    const MOST: u64 = 64;
    let bias = |number: u64| BIAS + number * 0x10_0000;
    let one_page = (0x7000, 0x8000, "r-x", 0x6000);
    let mut mappings: Vec<Line> = (0..MOST).map(|number| at(bias(number), one_page)).collect();
    mappings.extend(MAPPINGS.map(|line| at(bias(MOST), line)));
    let expected: Vec<u64> = (0..MOST - 1).chain([MOST]).map(bias).collect();
    assert_eq!(biases(&mappings), expected);
}
