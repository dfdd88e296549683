use super::*;
use address_space::{ElfKind, LoadSegment, Protection};

const PAGE: u64 = 4096;

fn segment(start: u64, end: u64, file_size: u64, rwx: &[u8; 3]) -> LoadSegment {
    let protection = Protection { read: rwx[0] == b'r', write: rwx[1] == b'w', execute: rwx[2] == b'x' };
    LoadSegment {
        memory: AddressRange::new(Address(start), Address(end)),
        file_size,
        offset: start,
        protection,
        align: PAGE,
    }
}

/// Headers, code, constants and data with bss, as linkers lay them out.
fn image() -> ElfImage {
    let segments = vec![
        segment(0, 0x1800, 0x1800, b"r--"),
        segment(0x2000, 0x5000, 0x3000, b"r-x"),
        segment(0x5000, 0x6100, 0x1100, b"r--"),
        segment(0x7f00, 0xa000, 0x0200, b"rw-"),
    ];
    ElfImage {
        machine: 62,
        kind: ElfKind::PositionIndependent,
        entry: Address(0x2000),
        headers: None,
        segments,
        relro: None,
        interpreter: None,
        dynamic: true,
        text_relocations: false,
        soname: None,
        build_id: None,
    }
}

/// QEMU shows a program's code as readable only, and merges mappings of one file.
const MAPS: &str = "\
4000000000-4000007000 r--p 00000000 fe:00 77 /usr/bin/x
4000007000-4000009000 rw-p 00007000 fe:00 77 /usr/bin/x
4000009000-4000800000 rw-p 00000000 00:00 0
4002000000-4002800000 rw-p 00000000 00:00 0
4003000000-4003400000 rw-p 00000000 00:00 0
4003400000-4003500000 r--p 00000000 fe:00 78 /usr/share/data
4003600000-4003700000 rw-s 00000000 00:01 79 /dev/zero (deleted)
";

fn places() -> Places {
    let image_of = |path: &str| (path == "/usr/bin/x").then(image);
    let base = PageSize::new(PAGE).unwrap();
    Places::new(AddressSpace::parse(MAPS).unwrap(), "/usr/bin/x", Address(0x40_027f_f000), base, image_of)
}

#[test]
fn an_object_has_kinds_by_its_segments() {
    let places = places();
    let at = |into: u64| {
        let place = places.at(Address(0x40_0000_0000 + into));
        (place.kind, place.object)
    };
    let object = |into| Some(("/usr/bin/x", into));
    assert_eq!(at(0x1000), (Kind::Rodata, object(0x1000)));
    assert_eq!(at(0x2000), (Kind::Text, object(0x2000)));
    assert_eq!(at(0x5008), (Kind::Rodata, object(0x5008)));
    assert_eq!(at(0x8000), (Kind::Data, object(0x8000)));
    // The segment's last pages have no file behind them.
    assert_eq!(at(0x9000), (Kind::Bss, object(0x9000)));
}

#[test]
fn what_is_no_object_goes_by_its_mapping() {
    let places = places();
    let at = |address: u64| places.at(Address(address));
    let heap = at(0x40_0000_a000);
    assert_eq!(heap.kind, Kind::Heap);
    // The heap begins at the end of bss.
    assert_eq!(heap.anonymous, Some(AddressRange::new(Address(0x40_0000_a000), Address(0x40_0080_0000))));
    assert_eq!(at(0x40_0200_0000).kind, Kind::Stack);
    assert_eq!(at(0x40_0300_0000).kind, Kind::Anonymous);
    assert_eq!(at(0x40_0340_0000).kind, Kind::File);
    assert_eq!(at(0x40_0360_0000).kind, Kind::File);
    assert_eq!(at(0x50_0000_0000).kind, Kind::Unknown);
    assert!(!places.has(Address(0x50_0000_0000)));
}
