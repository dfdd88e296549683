//! Private anonymous memory of a process: its mappings, and the data in each block.

use super::InPlace;
use super::asking::{Asking, Deadline};
use crate::SessionError;
use address_space::{Address, AddressRange, MappingUsage, PageSize, RangeSet};
use linux::pagemap::Pagemap;
use linux::pages::base_page;
use process_view::coverage::{MemoryKind, ProcessMemory};
use process_view::{ObjectReader, ProcessFiles};
use shared_memory::{
    Contents, Counted, Fill, Held, Machine, PageTables, Reason, SegmentKey, SegmentKind, View, count, refused_contents,
};
use std::collections::BTreeMap;
use std::io;
use std::time::Instant;

/// A kind of which less than this part is left, after a lift for example, has nothing to add.
pub(super) const LEAST_PART: u64 = 8;

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

/// The counts that had no time to reach the end, and the blocks with which the next look continues: 0 for shared memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Unfinished {
    /// The block with which the next count begins.
    next: BTreeMap<SegmentKey, u64>,
    /// The segment that was counted when the time ended.
    last: Option<SegmentKey>,
}

impl Unfinished {
    /// Brings segments into the order in which they are counted: one that takes all the time is followed by the others at the
    /// next look.
    pub fn order<T>(&mut self, segments: BTreeMap<SegmentKey, T>) -> Vec<(SegmentKey, T)> {
        self.next.retain(|key, _| segments.contains_key(key));
        let first = self.last.take().map_or(0, |last| segments.range(..=last).count());
        let mut all: Vec<_> = segments.into_iter().collect();
        all.rotate_left(first);
        all
    }

    fn begin(&self, key: &SegmentKey) -> u64 {
        self.next.get(key).copied().unwrap_or(0)
    }

    /// Notes the block with which the next count of a segment begins; `None` if this one has reached the end.
    pub fn end(&mut self, key: SegmentKey, next: Option<u64>) {
        match next {
            Some(next) => {
                self.next.insert(key, next);
                // Those after it had no time at all.
                self.last.get_or_insert(key);
            }
            None => {
                self.next.remove(&key);
            }
        }
    }
}

/// Counts what each block of a process's mappings holds; `None` if the process does not answer. Returns the mappings, too.
pub(super) fn contents(
    key: SegmentKey,
    views: Vec<View>,
    huge: PageSize,
    deadline: Deadline,
    unfinished: &mut Unfinished,
    asking: &mut Asking,
) -> Option<(Vec<View>, Contents)> {
    let (pid, until, from) = (key.scope as i32, asking.end_of(deadline), unfinished.begin(&key));
    let (views, counted) = asking.with(pid, move || {
        let counted = counted(pid, &views, huge, from, until);
        (views, counted)
    })?;
    unfinished.end(key, counted.next);
    let Counted { blocks, already, unseen, .. } = counted;
    let length = views.last().map_or(0, |view| view.range.end().0);
    let mut contents = Contents { length, blocks, already, room: None, unseen };
    let has_whole_block = |view: &View| !view.range.whole_pages(huge).is_empty();
    if key.kind == SegmentKind::Jit && !views.iter().any(has_whole_block) {
        let longest = views.iter().map(|view| view.range.len()).max().unwrap_or(0);
        contents.unseen = Some(Reason::Scattered { pieces: views.len(), longest });
    }
    Some((views, contents))
}

fn counted(pid: i32, views: &[View], huge: PageSize, from: u64, until: Instant) -> Counted {
    match Pagemap::open(pid, base_page()) {
        Ok(pagemap) => count(views, huge, from, &mut Tables { pagemap, until }),
        Err(error) => {
            let unseen = Some(Reason::Unreadable { why: error.to_string() });
            Counted { unseen, ..Counted::default() }
        }
    }
}

/// Bytes of the blocks on base pages that a lift of the heap collapses: those that are at least half full. Mappings are in
/// ascending order. Blocks that are not counted in time are left out, and 0 is returned if they are few beside the huge ones.
pub(super) fn half_full(pid: i32, views: &[View], machine: &Machine, until: Instant) -> u64 {
    half_full_of(&counted(pid, views, machine.huge, 0, until), views, machine)
}

fn half_full_of(counted: &Counted, views: &[View], machine: &Machine) -> u64 {
    let is_whole = |number: u64| {
        let block = block(machine.huge, number);
        let first = views.partition_point(|view| view.range.end() <= block.start());
        views.get(first).is_some_and(|view| view.range.covers(block))
    };
    let is_lifted =
        |(number, held): &&(u64, Held)| refused_contents(*held, machine, Fill::Half).is_ok() && is_whole(*number);
    let bytes = counted.blocks.iter().filter(is_lifted).count() as u64 * machine.huge.bytes();
    if bytes >= counted.already / LEAST_PART { bytes } else { 0 }
}

/// The page tables of a process, which are read until the time is up.
struct Tables {
    pagemap: Pagemap,
    until: Instant,
}

impl PageTables for Tables {
    fn with_data(&mut self, range: AddressRange) -> Result<RangeSet, String> {
        self.pagemap.with_contents(range).map_err(|error| error.to_string())
    }

    fn held(&mut self, range: AddressRange) -> Result<Held, String> {
        held(&self.pagemap, range).map_err(|error| error.to_string())
    }

    fn has_time(&mut self) -> bool {
        Instant::now() < self.until
    }
}

/// The huge parts of a mapping if the kernel reports only their sum (before Linux 6.7): all or none.
pub(super) fn huge_by_sum(view: &View, huge: PageSize) -> RangeSet {
    let whole = view.range.whole_pages(huge);
    Some(whole).filter(|whole| view.huge >= whole.len()).into_iter().collect()
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

#[cfg(test)]
mod tests {
    use super::*;

    fn key(pid: u64) -> SegmentKey {
        SegmentKey { device: (0, 0), inode: 0, kind: SegmentKind::Private, scope: pid }
    }

    #[test]
    fn a_look_continues_where_the_last_one_had_no_more_time() {
        let mut unfinished = Unfinished::default();
        let order = |unfinished: &mut Unfinished, pids: &[u64]| -> Vec<u64> {
            let segments = pids.iter().map(|pid| (key(*pid), ())).collect();
            unfinished.order(segments).into_iter().map(|(key, ())| key.scope).collect()
        };
        assert_eq!(order(&mut unfinished, &[1, 2, 3]), [1, 2, 3]);
        unfinished.end(key(1), None);
        unfinished.end(key(2), Some(70));
        unfinished.end(key(3), Some(0));
        assert_eq!([1, 2, 3].map(|pid| unfinished.begin(&key(pid))), [0, 70, 0]);
        assert_eq!(order(&mut unfinished, &[1, 2, 3]), [3, 1, 2], "others have time before it");
        for pid in [3, 1, 2] {
            unfinished.end(key(pid), None);
        }
        assert_eq!(unfinished, Unfinished::default());
        // Processes that have ended are forgotten.
        unfinished.end(key(2), Some(70));
        assert_eq!(order(&mut unfinished, &[1, 3]), [3, 1]);
        assert_eq!(unfinished, Unfinished::default());
    }

    /// The blocks of a small heap are seldom full.
    #[test]
    fn blocks_that_are_half_full_in_one_mapping_count_for_the_heap() {
        let (huge, refused) = (PageSize::new(2 << 20).unwrap(), None);
        let machine = Machine { huge, refused, never: false, no_fill: None };
        let view = |start: u64, end: u64| {
            let range = AddressRange::new(Address(start << 20), Address(end << 20));
            let (offset, huge_parts, refused) = (range.start().0, RangeSet::new(), None);
            View { pid: 1, range, offset, huge: 0, huge_parts, resident: 0, refused, watched: false }
        };
        // Block 4 is in two mappings.
        let views = [view(0, 9), view(9, 16)];
        let held = |present: u64| Held { present: present << 10, ..Held::default() };
        let of = |already: u64, blocks: Vec<(u64, Held)>| {
            let counted = Counted { blocks, already: already << 20, ..Counted::default() };
            half_full_of(&counted, &views, &machine) >> 20
        };
        assert_eq!(of(0, vec![(0, held(1100)), (1, held(1000)), (4, held(2000)), (6, held(2048))]), 4);
        assert_eq!(of(0, vec![(0, Held { common: 4096, ..held(1100) })]), 0, "shared since a fork");
        assert_eq!((of(16, vec![(0, held(1100))]), of(32, vec![(0, held(1100))])), (2, 0));
    }

    #[test]
    fn a_mapping_that_is_huge_as_a_whole_is_known_by_its_sum() {
        let (size, start) = (PageSize::new(2 << 20).unwrap(), Address(1 << 40));
        let view = |length, huge| View {
            pid: 1,
            range: AddressRange::sized(start, length),
            offset: start.0,
            huge,
            huge_parts: RangeSet::new(),
            resident: 0,
            refused: None,
            watched: false,
        };
        let found = |length: u64, huge: u64| huge_by_sum(&view(length << 20, huge << 20), size);
        assert_eq!(found(5, 4), RangeSet::from_iter([AddressRange::sized(start, 4 << 20)]));
        assert!(found(5, 2).is_empty() && found(1, 0).is_empty());
    }
}
