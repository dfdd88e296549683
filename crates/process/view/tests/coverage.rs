//! Coverage of address spaces written down here, and of this test itself.

use address_space::{
    Address, AddressRange, ElfImage, ElfKind, LoadSegment, LoadedObject, ObjectRole, PageSize, Protection, parse_smaps,
};
use process_view::coverage::{Coverage, HugeBytes, HugeKind, MemoryKind, Part, ProcessMemory, Usage};
use process_view::{LoadedObjects, ProcessFiles};

const MIB: u64 = 1 << 20;

fn segment(start: u64, memory: u64, file: u64, protection: Protection) -> LoadSegment {
    let memory = AddressRange::sized(Address(start), memory);
    LoadSegment { memory, file_size: file, offset: start, protection, align: 4096 }
}

/// 1 MiB of read-only data, 6 MiB of code, 4 MiB of data of which the first page is RELRO, 4 MiB of bss.
fn server() -> LoadedObject {
    LoadedObject {
        path: "/usr/bin/server".into(),
        link: None,
        role: ObjectRole::Executable,
        bias: 0x5500_0000_0000,
        image: ElfImage {
            machine: 62,
            kind: ElfKind::PositionIndependent,
            entry: Address(0x10_0000),
            headers: Some(Address(0x40)),
            segments: vec![
                segment(0, MIB, MIB, Protection::READ),
                segment(MIB, 6 * MIB, 6 * MIB, Protection::READ_EXECUTE),
                segment(7 * MIB, 8 * MIB, 4 * MIB, Protection::READ_WRITE),
            ],
            relro: Some(AddressRange::sized(Address(7 * MIB), 4096)),
            interpreter: None,
            dynamic: true,
            text_relocations: false,
            soname: None,
            build_id: None,
        },
    }
}

fn size(bytes: u64) -> PageSize {
    PageSize::new(bytes).unwrap()
}

/// A mapping of `kib` KiB from `start` on (in KiB from the object's base), with the fields given.
fn mapping(start: u64, kib: u64, rest: &str, fields: &str) -> String {
    let start = 0x5500_0000_0000 + start * 1024;
    format!("{start:x}-{:x} {rest}\n{fields}", start + kib * 1024)
}

fn coverage(text: &str) -> Coverage {
    let objects = LoadedObjects { objects: vec![server()], not_understood: Vec::new() };
    let memory = ProcessMemory {
        pid: 7,
        name: "server".into(),
        usages: parse_smaps(text).unwrap(),
        objects,
        base_page: size(4096),
        thp: Some(size(2 * MIB)),
    };
    memory.coverage()
}

fn lifted_server() -> String {
    const FILE: &str = "00000000 fe:00 9 /usr/bin/server";
    [
        mapping(0, 1024, &format!("r--p {FILE}"), "Rss: 512 kB\n"),
        mapping(1024, 1024, &format!("r-xp {FILE}"), "Rss: 1024 kB\n"),
        mapping(
            2048,
            4096,
            "r-xp 00000000 00:0f 12 /anon_hugepage (deleted)",
            "KernelPageSize: 2048 kB\nRss: 0 kB\nPrivate_Hugetlb: 4096 kB\n",
        ),
        mapping(6144, 1024, &format!("r-xp {FILE}"), "Rss: 100 kB\n"),
        mapping(7168, 4, &format!("r--p {FILE}"), "Rss: 4 kB\n"),
        mapping(7172, 1020, &format!("rw-p {FILE}"), "Rss: 1020 kB\n"),
        mapping(8192, 6144, "rw-p 00000000 00:00 0", "Rss: 6144 kB\nAnonHugePages: 4096 kB\n"),
        mapping(14336, 1028, "rw-p 00000000 00:00 0 [heap]", "Rss: 400 kB\n"),
        mapping(20480, 8192, "rw-p 00000000 00:00 0", "Rss: 8192 kB\nAnonHugePages: 8192 kB\n"),
        mapping(40960, 100, "r--s 00000000 fe:00 10 /etc/data", "Rss: 4 kB\n"),
    ]
    .concat()
}

#[test]
fn a_lifted_range_still_belongs_to_its_object() {
    let coverage = coverage(&lifted_server());
    let server = &coverage.objects[0];
    let text = server.parts.iter().find(|p| p.parts == [Part::Text]).unwrap();
    assert_eq!((text.usage.mapped, text.usage.resident), (6 * MIB, (1124 + 4096) * 1024));
    let pool = HugeBytes { kind: HugeKind::Hugetlb, page_size: Some(size(2 * MIB)), bytes: 4 * MIB };
    assert_eq!(text.usage.huge, [pool]);
    assert_eq!(text.ranges.iter().count(), 1);
    let relro = server.parts.iter().find(|p| p.parts == [Part::Relro]).unwrap();
    assert_eq!((relro.protection, relro.usage.mapped), (Protection::READ, 4096));
}

#[test]
fn parts_in_one_mapping_are_reported_together() {
    let coverage = coverage(&lifted_server());
    let server = &coverage.objects[0];
    let joined = server.parts.iter().find(|p| p.parts == [Part::Data, Part::Bss]).unwrap();
    let thp = HugeBytes { kind: HugeKind::Thp, page_size: Some(size(2 * MIB)), bytes: 4 * MIB };
    assert_eq!((joined.usage.mapped, joined.usage.huge.as_slice()), (6 * MIB, [thp].as_slice()));
    // The heap is glued to the end of bss, and the kernel keeps both in one mapping.
    let glued = server.parts.iter().find(|p| p.parts.contains(&Part::Heap)).unwrap();
    assert_eq!(glued.parts, [Part::Bss, Part::Heap]);
}

#[test]
fn other_memory_is_told_apart_and_nothing_is_lost() {
    let coverage = coverage(&lifted_server());
    let kinds: Vec<_> = coverage.memory.iter().map(|m| (m.kind, m.usage.mapped)).collect();
    assert_eq!(kinds, [(MemoryKind::Anonymous, 8 * MIB), (MemoryKind::File, 100 * 1024)]);
    assert_eq!(sum(&coverage), coverage.total);
    assert_eq!(coverage.total.huge_bytes(), 16 * MIB);
}

#[test]
fn a_large_mapping_that_begins_in_bss_is_no_part_of_the_object() {
    let text = [
        mapping(0, 7168, "r-xp 00000000 fe:00 9 /usr/bin/server", "Rss: 4 kB\n"),
        mapping(14336, 1 << 20, "rw-p 00000000 00:00 0", "Rss: 4 kB\n"),
    ]
    .concat();
    let coverage = coverage(&text);
    assert_eq!(coverage.memory[0].kind, MemoryKind::Anonymous);
    assert_eq!(coverage.objects[0].total.mapped, 7 * MIB);
}

fn sum(coverage: &Coverage) -> Usage {
    let mut sum = Usage::default();
    coverage.objects.iter().flat_map(|o| &o.parts).for_each(|part| sum += &part.usage);
    coverage.memory.iter().for_each(|memory| sum += &memory.usage);
    sum
}

#[test]
fn this_test_has_every_part_of_a_program() {
    let pid = std::process::id() as i32;
    let memory = ProcessMemory::read(pid).unwrap();
    let coverage = memory.coverage();
    assert_eq!(sum(&coverage), coverage.total);
    assert_eq!(coverage.name, ProcessFiles::of(pid).name().unwrap());
    let executable = &coverage.objects[0];
    assert_eq!(executable.role, ObjectRole::Executable);
    for part in [Part::Text, Part::Rodata, Part::Relro, Part::Data] {
        assert!(executable.parts.iter().any(|p| p.parts.contains(&part)), "{part} in {executable:?}");
    }
    for kind in [MemoryKind::Heap, MemoryKind::Stack, MemoryKind::Kernel] {
        assert!(coverage.memory.iter().any(|m| m.kind == kind), "{kind:?} in {:?}", coverage.memory);
    }
    let executable_parts: Vec<_> = executable.parts.iter().filter(|p| p.protection.execute).collect();
    assert_eq!(executable_parts.len(), 1);
    assert_eq!(executable_parts[0].parts, [Part::Text]);
}

#[test]
fn the_written_form_has_a_version_and_exact_addresses() {
    let written = serde_json::to_value(coverage(&lifted_server())).unwrap();
    assert_eq!(written["version"], 1);
    let text = written["objects"][0]["parts"].as_array().unwrap().iter().find(|p| p["parts"][0] == "text").unwrap();
    assert_eq!(text["ranges"][0]["start"], "0x550000100000");
    assert_eq!(text["usage"]["huge"][0]["kind"], "hugetlb");
    assert_eq!(text["usage"]["huge"][0]["page_size"], 2 * MIB);
}
