//! The targets: each one a reader, or a chain of readers, for one kind of input.

use crate::samples;
use address_space::{
    Address, AddressRange, AddressSpace, ElfImage, PageSize, RangeSet, bias_of, file_groups, parse_flags, parse_smaps,
    semaphores,
};
use bench_report::{MOST_BYTES, Source, html, markdown};
use heap_abi::Order;
use heap_choice::Environment;
use lift_plan::{Edges, Kinds, choose_base, coverable, special_mappings};
use linux::interrupts::InterruptCounts;
use measure::record::Record;
use options::HeapWords;
use page_cache::alignment::{Former, Piece, Relayout};
use process_view::AuxiliaryVector;
use process_view::coverage::Usage;
use shootdowns::format::Format;
use shootdowns::kernel_symbols::KernelSymbols;
use shootdowns::reason::FlushFormat;

/// One reader and inputs that it understands.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name, which is the name of the binary in `fuzz/fuzz_targets` too.
    pub name: &'static str,
    /// Reads an input.
    pub run: fn(&[u8]),
    /// Sound inputs; damaged ones are made from them.
    pub samples: fn() -> Vec<Vec<u8>>,
}

/// All targets.
pub const TARGETS: [Target; 12] = [
    Target { name: "elf", run: elf, samples: samples::elf_files },
    Target { name: "maps", run: maps, samples: samples::maps },
    Target { name: "smaps", run: smaps, samples: samples::smaps },
    Target { name: "objects", run: objects, samples: samples::objects },
    Target { name: "symbols", run: symbols, samples: samples::elf_files },
    Target { name: "allocator", run: allocator, samples: samples::elf_files },
    Target {
        name: "heap_records",
        run: heap_choice::fuzzing::read_records,
        samples: heap_choice::fuzzing::sound_records,
    },
    Target { name: "orders", run: orders, samples: samples::orders },
    Target { name: "bench_records", run: bench_records, samples: samples::bench_records },
    Target { name: "trace_formats", run: trace_formats, samples: samples::trace_formats },
    Target { name: "image_recipe", run: image_recipe, samples: samples::elf_files },
    Target { name: "relayout", run: relayout, samples: samples::elf_files },
];

/// The target of this name.
pub fn target(name: &str) -> Option<Target> {
    TARGETS.into_iter().find(|target| target.name == name)
}

/// Base and huge pages of the machines that Pagelift runs on, in bytes: x86-64, and AArch64 with 4, 16 and 64 KiB.
const PAGES: [(u64, u64); 3] = [(4 << 10, 2 << 20), (16 << 10, 32 << 20), (64 << 10, 512 << 20)];

fn pages() -> impl Iterator<Item = (PageSize, PageSize)> {
    PAGES.iter().filter_map(|&(base, huge)| Some((PageSize::new(base).ok()?, PageSize::new(huge).ok()?)))
}

fn elf(bytes: &[u8]) {
    let Ok(image) = ElfImage::parse(bytes) else { return };
    for (base, huge) in pages() {
        image.largest_alignment(base);
        for edges in [Edges::Exact, Edges::MergeReadOnly] {
            let best = choose_base(&image, huge, base, Kinds::USUAL, edges);
            coverable(&image, best.offset, huge, base, Kinds::USUAL, edges);
        }
    }
    let read = |offset: u64, length: u64| {
        let start = usize::try_from(offset).ok()?;
        Some(bytes.get(start..start.checked_add(usize::try_from(length).ok()?)?)?.to_vec())
    };
    for semaphore in semaphores(&image, read).iter().flat_map(RangeSet::iter) {
        let mut writable = image.segments.iter().filter(|segment| segment.protection.write);
        assert!(
            writable.any(|segment| segment.file_memory().covers(semaphore)),
            "a semaphore outside of the file's data"
        );
    }
    for segment in &image.segments {
        image.offset_of_address(segment.memory.start());
        image.offset_of_address(segment.memory.end());
    }
}

/// A page of a record is bounded and whole, whatever the record holds.
fn bench_records(bytes: &[u8]) {
    let Ok(record) = Record::parse(&String::from_utf8_lossy(bytes)) else { return };
    let sources = [Source { name: "record".to_owned(), record }];
    let page = html(&sources);
    assert!(page.len() <= MOST_BYTES && page.ends_with("</html>"), "a page of {} bytes", page.len());
    assert_eq!(page.matches("<script").count(), 1, "a script of the record's");
    markdown(&sources);
}

fn maps(bytes: &[u8]) {
    let Ok(space) = AddressSpace::parse(&String::from_utf8_lossy(bytes)) else { return };
    let mappings = space.mappings();
    assert!(mappings.windows(2).all(|pair| pair[0].range.end() <= pair[1].range.start()), "mappings overlap");
    space.heap();
    for group in file_groups(&space).into_values() {
        assert!(group.iter().all(|&index| mappings[index].path().is_some()), "a group of what is no file");
    }
    for mapping in mappings {
        assert!(!space.overlapping(mapping.range).is_empty(), "a mapping is not found");
    }
}

fn smaps(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    if let Ok(usages) = parse_smaps(&text) {
        for (_, huge) in pages() {
            for usage in &usages {
                Usage::of(usage, Some(huge)).huge_bytes();
                usage.huge_parts(huge, |range| Some([range].into_iter().collect::<RangeSet>()));
            }
        }
    }
    if let Ok(flags) = parse_flags(&text) {
        special_mappings(&flags);
    }
}

/// The text of maps, a NUL, and an ELF file that the process maps.
fn objects(bytes: &[u8]) {
    let Some(end) = bytes.iter().position(|&byte| byte == 0) else { return };
    let (text, file) = (&bytes[..end], &bytes[end + 1..]);
    AuxiliaryVector::parse(file);
    let (Ok(space), Ok(image)) = (AddressSpace::parse(&String::from_utf8_lossy(text)), ElfImage::parse(file)) else {
        return;
    };
    for (base, _) in pages() {
        for mappings in file_groups(&space).into_values() {
            for bias in bias_of(&image, &space, &mappings, base) {
                process_view::fuzzing::place(&image, bias, &space, base);
            }
        }
    }
}

fn symbols(bytes: &[u8]) {
    let everything = AddressRange::new(Address(0), Address(u64::MAX));
    process_view::fuzzing::read_symbols(bytes, everything);
}

fn allocator(bytes: &[u8]) {
    heap_choice::fuzzing::read_allocator(bytes);
}

fn image_recipe(bytes: &[u8]) {
    image_store::fuzzing::make_recipe(bytes);
}

/// The text up to a NUL is read as a record for the file behind it; a file gets another layout.
fn relayout(bytes: &[u8]) {
    for (base, huge) in pages() {
        // A short huge page, so that short files have some.
        for (huge, edges) in [(huge, Edges::Exact), (base, Edges::Exact), (base, Edges::MergeReadOnly)] {
            let Ok(plan) = Relayout::plan(bytes, huge, base, true, edges) else { continue };
            let inside = |piece: &Piece| {
                piece.from + piece.length <= bytes.len() as u64 && piece.to + piece.length <= plan.length
            };
            assert!(plan.pieces.iter().all(inside), "a piece outside of a file");
            assert!(plan.fields.iter().all(|field| field.to + 8 <= plan.length), "a number outside of the file");
        }
    }
    let Some(end) = bytes.iter().position(|&byte| byte == 0) else { return };
    let text = String::from_utf8_lossy(&bytes[..end]);
    if let Ok(former) = Former::parse(&text, &bytes[end + 1..]) {
        assert!(
            former.pieces.iter().all(|piece| piece.to + piece.length <= former.length),
            "a piece outside of the file"
        );
    }
}

/// The kernel's texts that `pagelift shootdowns` reads: the format of a tracepoint, `/proc/interrupts`, `/proc/kallsyms`; and
/// the environment of another process.
fn trace_formats(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    if let Ok(format) = Format::parse(&text) {
        format.fields.iter().filter_map(|field| field.number(bytes)).for_each(|_| ());
        if let Some(flush) = FlushFormat::of(&format) {
            flush.flushed(bytes);
        }
    }
    let counts = InterruptCounts::parse(&text);
    counts.shootdowns_since(&counts);
    let symbols = KernelSymbols::parse(&text);
    symbols.name(bytes.len() as u64);
    Environment::parse(bytes).get("MALLOC_CONF");
}

fn orders(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    if let Some(order) = Order::parse(&text) {
        assert_eq!(Order::parse(&order.to_string()), Some(order), "an order is not read as it was written");
        order.pool_bytes();
        order.names(&text);
    }
    if let Err(error) = HeapWords::parse(&text) {
        assert!(!error.to_string().is_empty());
    }
    HeapWords::name_this(&text, &["program"], 1);
}
