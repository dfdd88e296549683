//! Private anonymous memory of a process: its mappings, and the data in each block.

use super::InPlace;
use crate::SessionError;
use address_space::{Address, AddressRange, MappingUsage, PageSize};
use linux::pagemap::Pagemap;
use linux::pages::base_page;
use process_view::coverage::{MemoryKind, ProcessMemory};
use process_view::{ObjectReader, ProcessFiles};
use shared_memory::{Contents, Held, Reason, SegmentKind, View};
use std::io;
use std::time::Instant;

/// Most blocks with data that are stored for one process: 2 TiB of data if a block has 2 MiB.
const MOST_BLOCKS: usize = 1 << 20;
/// Bytes of addresses between two checks of the time.
const AT_ONCE: u64 = 1 << 30;

/// Reads the mappings of one kind. Mappings of generated code are counted at any length, other mappings only if they are as long
/// as a huge page.
///
/// # Errors
/// The process cannot be read.
pub(super) fn mappings(
    pid: i32,
    memory: InPlace,
    with_break: bool,
    huge: PageSize,
    reader: &mut ObjectReader,
) -> Result<Vec<MappingUsage>, SessionError> {
    let process = ProcessMemory::read_by(reader, pid)?;
    Ok(mappings_in(&process, memory, with_break, huge).cloned().collect())
}

/// The mappings of one kind in a process's memory; `with_break`: brk(2)'s count as anonymous memory.
pub(super) fn mappings_in(
    process: &ProcessMemory,
    memory: InPlace,
    with_break: bool,
    huge: PageSize,
) -> impl Iterator<Item = &MappingUsage> {
    let is_chosen = move |kind, usage: &MappingUsage| match (memory, kind) {
        (InPlace::Anonymous, MemoryKind::Anonymous | MemoryKind::Heap) => {
            let is_wanted = with_break || kind == MemoryKind::Anonymous;
            is_wanted && usage.mapping.protection.read && usage.mapping.range.len() >= huge.bytes()
        }
        (InPlace::Jit, MemoryKind::Jit) => true,
        _ => false,
    };
    // `ss`: a shadow stack, which only the CPU writes.
    let is_plain = |usage: &MappingUsage| usage.mapping.is_plain_anonymous() && !usage.has_flag("ss");
    let all = process.besides_objects().filter(move |(kind, usage)| is_chosen(*kind, usage) && is_plain(usage));
    all.map(|(_, usage)| usage)
}

/// Returns the reason why a mapping is left alone, if there is one.
pub(super) fn refusal(usage: &MappingUsage) -> Option<Reason> {
    let has = |flag: &str| usage.has_flag(flag);
    match () {
        () if has("nh") => Some(Reason::AdvisedAgainst),
        () if ["um", "uw", "ui"].into_iter().any(has) => Some(Reason::Watched),
        () if has("mg") => Some(Reason::Mergeable),
        () if has("lo") => Some(Reason::Locked),
        () => None,
    }
}

/// Counts what each block of some mappings of a process holds.
pub(super) fn contents(pid: i32, kind: SegmentKind, views: &[View], huge: PageSize, until: Instant) -> Contents {
    let length = views.last().map_or(0, |view| view.range.end().0);
    let mut contents = Contents { length, blocks: Vec::new(), room: None, unseen: None };
    if let Err(reason) = count(pid, views, huge, until, &mut contents.blocks) {
        contents.unseen = Some(reason);
    }
    let has_whole_block = |view: &View| !view.range.whole_pages(huge).is_empty();
    if kind == SegmentKind::Jit && !views.iter().any(has_whole_block) {
        let longest = views.iter().map(|view| view.range.len()).max().unwrap_or(0);
        contents.unseen = Some(Reason::Scattered { pieces: views.len(), longest });
    }
    contents
}

fn count(
    pid: i32,
    views: &[View],
    huge: PageSize,
    until: Instant,
    blocks: &mut Vec<(u64, Held)>,
) -> Result<(), Reason> {
    let unreadable = |error: io::Error| Reason::Unreadable { why: error.to_string() };
    let pagemap = Pagemap::open(pid, base_page()).map_err(unreadable)?;
    for view in views {
        let mut counted = None;
        let mut start = view.range.start();
        while start < view.range.end() {
            let part = AddressRange::sized(start, AT_ONCE.min(view.range.end() - start));
            for touched in pagemap.with_contents(part).map_err(unreadable)?.iter() {
                for number in touched.start().0 / huge.bytes()..=(touched.end().0 - 1) / huge.bytes() {
                    if Instant::now() >= until || blocks.len() >= MOST_BLOCKS {
                        return Err(Reason::TooScattered);
                    }
                    // A block is counted as a whole at its first touched part.
                    if counted.is_none_or(|last| last < number) {
                        let inside = block(huge, number).intersect(view.range);
                        add(blocks, number, held(&pagemap, inside).map_err(unreadable)?);
                        counted = Some(number);
                    }
                }
            }
            start = part.end();
        }
    }
    blocks.retain(|(_, held)| held.data() > 0);
    Ok(())
}

/// Adds what a mapping holds of a block; two mappings can share one.
fn add(blocks: &mut Vec<(u64, Held)>, number: u64, more: Held) {
    match blocks.last_mut().filter(|(last, _)| *last == number) {
        Some((_, held)) => {
            held.present += more.present;
            held.swapped += more.swapped;
            held.common += more.common;
            held.guards += more.guards;
        }
        None => blocks.push((number, more)),
    }
}

fn block(huge: PageSize, number: u64) -> AddressRange {
    AddressRange::sized(Address(number * huge.bytes()), huge.bytes())
}

/// The data of one block of a process.
///
/// # Errors
/// The kernel's.
pub(super) fn held_by(pid: i32, huge: PageSize, number: u64) -> io::Result<Held> {
    held(&Pagemap::open(pid, base_page())?, block(huge, number))
}

fn held(pagemap: &Pagemap, range: AddressRange) -> io::Result<Held> {
    let pages = pagemap.private_pages(range)?;
    Ok(Held { present: pages.present, swapped: pages.swapped, common: pages.common, guards: pages.guards })
}

/// True if the process still has private memory of this kind in one mapping at these addresses.
pub(super) fn shows(pid: i32, kind: SegmentKind, addresses: AddressRange) -> bool {
    let Ok(space) = ProcessFiles::of(pid).maps() else { return false };
    space.mappings().iter().any(|mapping| {
        mapping.is_plain_anonymous()
            && mapping.protection.execute == (kind == SegmentKind::Jit)
            && mapping.range.covers(addresses)
    })
}

/// Bytes that mappings like these map by huge pages now.
pub(super) fn huge_now(usages: &[MappingUsage], views: &[View]) -> u64 {
    let overlaps = |usage: &MappingUsage| {
        let first = views.partition_point(|view| view.range.end() <= usage.mapping.range.start());
        views.get(first).is_some_and(|view| view.range.overlaps(usage.mapping.range))
    };
    let shown = usages.iter().filter(|usage| usage.mapping.is_plain_anonymous() && overlaps(usage));
    shown.map(|usage| usage.anonymous_huge).sum()
}
