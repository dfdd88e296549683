//! Random programs, machines and policies.

use super::{MACHINE, PAGE, Program, RWX, Segment, Shape, base_page, page_size, range};
use address_space::{AddressRange, ElfKind, Mapping, MappingName, ObjectRole, Protection};
use lift_plan::{
    Edges, HugePool, Kind, Kinds, MachineFacts, ObjectChoice, Pages, Policy, ThpFacts, ThpMode, WritablePages,
};
use proptest::collection::vec;
use proptest::prelude::*;
use std::ops::Range;

/// The sizes of huge pages there are; bytes. The last is to the first as 1 GiB pages are to ordinary huge ones.
pub const HUGE_SIZES: [u64; 3] = [4 * PAGE, 16 * PAGE, 128 * PAGE];

const PATHS: [&str; 3] = ["/bin/exe", "/lib/liba.so", "/lib/libb.so.1"];

/// A change at a place inside or beside an object.
#[derive(Clone, Copy, Debug)]
enum Overlay {
    Unmapped,
    Anonymous(Protection),
    ForeignFile(Protection),
    SharedFile,
    SameFile,
    ReplacedFile,
    Protected(Protection),
    Special,
}

fn overlay() -> impl Strategy<Value = Overlay> {
    let (r, rx, rw) = (Protection::READ, Protection::READ_EXECUTE, Protection::READ_WRITE);
    prop_oneof![
        Just(Overlay::Unmapped),
        prop_oneof![Just(rw), Just(Protection::NONE), Just(RWX), Just(r)].prop_map(Overlay::Anonymous),
        prop_oneof![Just(r), Just(rx), Just(rw)].prop_map(Overlay::ForeignFile),
        Just(Overlay::SharedFile),
        Just(Overlay::SameFile),
        Just(Overlay::ReplacedFile),
        prop_oneof![Just(r), Just(rw), Just(RWX), Just(Protection::NONE)].prop_map(Overlay::Protected),
        Just(Overlay::Special),
    ]
}

fn segment() -> impl Strategy<Value = Segment> {
    let protection = prop_oneof![
        4 => Just(Protection::READ),
        6 => Just(Protection::READ_EXECUTE),
        6 => Just(Protection::READ_WRITE),
        1 => Just(RWX),
        1 => Just(Protection { execute: true, ..Protection::NONE }),
    ];
    let bytes = || prop_oneof![2 => 0..40 * PAGE, 1 => (0..40u64).prop_map(|pages| pages * PAGE)];
    let skew = prop_oneof![Just(0), 0..PAGE];
    let file = prop_oneof![1 => Just(0), 9 => bytes()];
    let shares_page = prop_oneof![7 => Just(false), 1 => Just(true)];
    (protection, file, bytes(), skew, prop_oneof![3 => Just(0), 1 => 0..4u64], shares_page).prop_map(
        |(protection, file, zeros, skew, gap, shares_page)| {
            let zeros = if protection.write { zeros } else { 0 };
            // Only a segment of zeros has nothing in its file.
            let file = if zeros > 0 { file } else { file.max(1) };
            Segment { protection, file, zeros, skew, gap, shares_page }
        },
    )
}

/// A random ELF file at a random place.
pub fn shape() -> impl Strategy<Value = Shape> {
    let align = prop_oneof![3 => Just(PAGE), 1 => Just(4 * PAGE), 1 => Just(16 * PAGE)];
    let text_relocations = prop_oneof![4 => Just(false), 1 => Just(true)];
    (vec(segment(), 1..6), 0..60 * PAGE, align, 0..300u64, any::<bool>(), text_relocations).prop_map(
        |(segments, relro, align, at, fixed, text_relocations)| {
            let kind = if fixed { ElfKind::FixedAddress } else { ElfKind::PositionIndependent };
            let at = 0x10_0000 + at * align;
            let relro = if segments.iter().any(|s| s.protection == Protection::READ_WRITE) { relro } else { 0 };
            let shape = Shape::new(PATHS[0], ObjectRole::Executable, at, segments).aligned(align);
            let writable = shape.segments.iter().find(|s| s.protection.write).map_or(0, |s| s.file + s.zeros);
            Shape { kind, text_relocations, ..shape.relro(relro.min(writable)) }
        },
    )
}

/// When a program is lifted.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Moment {
    Entry,
    EntryOfStatic,
    EntryWithThreads,
    Runs,
}

/// A random program: objects that may touch each other, a heap, and foreign mappings among them.
pub fn program() -> impl Strategy<Value = Program> {
    let overlays = vec((overlay(), 0..400u64, 1..8u64), 0..5);
    let touched = vec((0..500u64, 1..20u64), 0..6);
    let probed = (vec((0..400u64, 1..3u64), 0..3), vec(0..400 * PAGE, 0..3));
    let heap = proptest::option::of((0..5u64, 1..60u64));
    let moment = prop_oneof![
        2 => Just(Moment::Entry),
        1 => Just(Moment::EntryOfStatic),
        1 => Just(Moment::EntryWithThreads),
        1 => Just(Moment::Runs),
    ];
    let images = vec((any::<bool>(), 0..6u64, 0..6u64, any::<bool>(), 0..HUGE_SIZES.len()), 0..8);
    let all_or_some = || prop_oneof![Just(u64::MAX), any::<u64>()];
    let cached = (vec((any::<bool>(), all_or_some(), any::<bool>()), 0..=3), vec((0..400u64, 1..3u64), 0..3));
    (vec((shape(), 0..6u64), 1..=3), heap, overlays, touched, probed, moment, (images, cached)).prop_map(
        |(shapes, heap, mut overlays, touched, probed, moment, (images, cached))| {
            let mut program = Program::new("random");
            let mut end = 0;
            for (index, (shape, gap)) in shapes.into_iter().enumerate() {
                let role = if index == 0 { ObjectRole::Executable } else { ObjectRole::SharedObject };
                let (at, kind) = match index {
                    0 => (shape.at, shape.kind),
                    _ => ((end + gap * PAGE).next_multiple_of(shape.align), ElfKind::PositionIndependent),
                };
                let object = program
                    .load(&Shape { path: PATHS[index], role, at, kind, ..shape }, moment != Moment::EntryOfStatic);
                end = object.extent().end().0.next_multiple_of(PAGE);
            }
            program.facts.relocates_itself = moment == Moment::EntryOfStatic;
            program.facts.running = moment == Moment::Runs;
            program.facts.other_threads = moment == Moment::EntryWithThreads;
            let start = program.mappings[0].range.start().0;
            if let Some((gap, pages)) = heap {
                program.heap(range(end + gap * PAGE, end + (gap + pages) * PAGE));
                program.facts.touched.remove(range(end, end + (gap + pages / 2) * PAGE));
            }
            // A mapping that is replaced or removed takes its properties with it.
            overlays.sort_by_key(|(what, ..)| matches!(what, Overlay::Special));
            for (what, at, pages) in overlays {
                lay(&mut program, what, range(start + at * PAGE, start + (at + pages) * PAGE));
            }
            for (at, pages) in touched {
                program.touch(range(start + at * PAGE, start + (at + pages) * PAGE));
            }
            let (probed, semaphores) = probed;
            for (at, pages) in probed {
                program.facts.probed.insert(range(start + at * PAGE, start + (at + pages) * PAGE));
            }
            for at in semaphores {
                program.facts.semaphores.insert(range(start + at, start + at + 2));
            }
            // Images show read-only files, perhaps not from their first page to their last, perhaps out of step.
            let files: Vec<_> = program.mappings.iter().filter(|m| of_object(m)).map(|m| m.range).collect();
            for (file, (there, below, above, in_step, size)) in files.into_iter().zip(images) {
                let shown = range(file.start().0 + below * PAGE, file.end().0.saturating_sub(above * PAGE));
                if there && !shown.is_empty() {
                    program.image(shown, HUGE_SIZES[size], if in_step { 0 } else { PAGE });
                }
            }
            let (cached, changed) = cached;
            for (path, (_, blocks, own_path)) in PATHS.iter().zip(cached).filter(|(_, (there, ..))| *there) {
                program.cached(path, huge_parts(blocks), own_path);
            }
            for (at, pages) in changed {
                program.facts.changed.insert(range(start + at * PAGE, start + (at + pages) * PAGE));
            }
            program.finish()
        },
    )
}

/// The parts of a file in huge folios: those whose bits are set.
pub fn huge_parts(blocks: u64) -> Vec<Range<u64>> {
    let size = HUGE_SIZES[0];
    let mut parts: Vec<Range<u64>> = Vec::new();
    for block in (0..64).filter(|block| blocks >> block & 1 == 1) {
        match parts.last_mut() {
            Some(last) if last.end == block * size => last.end += size,
            _ => parts.push(block * size..(block + 1) * size),
        }
    }
    parts
}

fn of_object(mapping: &Mapping) -> bool {
    !mapping.shared && !mapping.protection.write && mapping.path().is_some_and(|path| PATHS.contains(&path))
}

fn lay(program: &mut Program, what: Overlay, place: AddressRange) {
    match what {
        Overlay::Unmapped => program.unmap(place),
        Overlay::Anonymous(protection) => program.anonymous(place, protection, MappingName::Anonymous),
        Overlay::ForeignFile(protection) => program.file(place, protection, "/var/data", 0, 7),
        Overlay::SharedFile => {
            program.file(place, Protection::READ_WRITE, "/dev/shm/x", 0, 8);
            program.mappings.last_mut().expect("just mapped").shared = true;
        }
        Overlay::SameFile => program.file(place, Protection::READ, PATHS[0], 0x7000, 101),
        Overlay::ReplacedFile => program.file(place, Protection::READ, PATHS[0], 0x7000, 9),
        Overlay::Protected(protection) => program.protect(place, protection),
        Overlay::Special => program.special(place, "locked in memory (mlock)"),
    }
}

/// A random machine.
pub fn machine() -> impl Strategy<Value = MachineFacts> {
    let pages = || prop_oneof![1 => Just(0), 3 => 0..12u64, 2 => Just(1000u64)];
    let thp = prop_oneof![
        1 => Just(None),
        1 => Just(Some(ThpMode::Never)),
        6 => Just(Some(ThpMode::Madvise)),
        2 => Just(Some(ThpMode::Always)),
        1 => Just(Some(ThpMode::OffInProcess)),
    ];
    let memory = prop_oneof![1 => 0..200 * PAGE, 2 => Just(1 << 40)];
    let mappings = prop_oneof![1 => 0..80u64, 3 => Just(65_530)];
    (vec(pages(), 0..=3), thp, memory, mappings, any::<bool>(), any::<bool>(), any::<bool>()).prop_map(
        |(pools, thp, memory_available, max_mappings, movable_hugetlb, collapse, refaults_huge)| {
            let pool =
                |(pages, size): (u64, u64)| HugePool { size: page_size(size), total: pages + 3, available: pages };
            let pools: Vec<_> = pools.into_iter().zip(HUGE_SIZES).map(pool).collect();
            MachineFacts {
                elf_machine: MACHINE,
                base_page: base_page(),
                default_hugetlb: pools.first().map(|pool| pool.size),
                pools,
                thp: thp.map(|mode| ThpFacts { size: page_size(HUGE_SIZES[0]), mode }),
                movable_hugetlb,
                collapse,
                refaults_huge,
                memory_available,
                memory_bound: "the machine".to_owned(),
                max_mappings,
                numa: None,
                pool_limits: Vec::new(),
            }
        },
    )
}

/// A random policy.
pub fn policy() -> impl Strategy<Value = Policy> {
    let pages = prop_oneof![4 => Just(Pages::Auto), 2 => Just(Pages::File), 2 => Just(Pages::FileThenImage), 1 => Just(Pages::Image), 1 => Just(Pages::Hugetlb), 1 => Just(Pages::Thp)];
    let writable = prop_oneof![Just(WritablePages::Thp), Just(WritablePages::Hugetlb)];
    let edges = prop_oneof![Just(Edges::Exact), Just(Edges::MergeReadOnly)];
    let size = proptest::option::of(proptest::sample::select(vec![PAGE, HUGE_SIZES[0], HUGE_SIZES[1], HUGE_SIZES[2]]));
    let all = [Kind::Text, Kind::Rodata, Kind::Data, Kind::Bss, Kind::Heap];
    let kinds = prop_oneof![
        3 => Just(Kinds::USUAL),
        1 => proptest::sample::subsequence(all.to_vec(), 1..=4).prop_map(|kinds| Kinds::of(&kinds)),
    ];
    let objects = prop_oneof![
        Just(ObjectChoice::WorthIt),
        Just(ObjectChoice::All),
        Just(ObjectChoice::Executable),
        Just(ObjectChoice::Matching(vec!["lib*".to_owned()])),
    ];
    let memory = prop_oneof![2 => Just(None), 1 => (0..200 * PAGE).prop_map(Some)];
    (pages, writable, edges, size, kinds, objects, memory).prop_map(
        |(pages, writable_pages, edges, page_size, kinds, objects, max_memory)| Policy {
            pages,
            page_size: page_size.map(super::page_size),
            kinds,
            objects,
            writable_pages,
            edges,
            max_memory,
            numa: Default::default(),
            seal: false,
        },
    )
}
