//! The page tables that a lift of shared memory frees.
//!
//! The kernel frees the page table of a block that it collapses in each process that has mapped the whole block, at addresses
//! that agree with the offsets. The huge page then needs an entry of the table above only.

use super::sharers::{Segments, page_tables_of};
use address_space::{AddressRange, PageSize};
use linux::pagemap::Pagemap;
use linux::pages::base_page;
use process_view::{ProcessFiles, each_of};
use shared_memory::{Plan, Segment, SegmentKey};
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time for looking at the page tables of all processes.
const MOST_TIME: Duration = Duration::from_secs(5);
/// Most bytes of addresses that one call reads.
const AT_ONCE: u64 = 64 << 20;

/// The blocks of each segment that are to be lifted, as offsets.
struct Planned {
    segments: Segments,
    offsets: Vec<Vec<Range<u64>>>,
    huge: PageSize,
    until: Instant,
}

/// Bytes of page tables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tables {
    /// Before the lift.
    pub before: u64,
    /// After it, as predicted.
    pub after: u64,
}

/// Predicts the page tables of all these processes. `None` if one could not be read in time.
pub(super) fn predicted(segments: &[Segment], plan: &Plan, pids: &BTreeSet<i32>, huge: PageSize) -> Option<Tables> {
    let keys: Vec<&SegmentKey> = segments.iter().map(|segment| &segment.key).collect();
    let offsets = plan.segments.iter().map(|planned| runs(planned.work.iter().map(|work| work.block), huge)).collect();
    let planned = Planned { segments: Segments::new(keys), offsets, huge, until: Instant::now() + MOST_TIME };
    let planned = Arc::new(planned);
    let mut sum = Some(Tables::default());
    // The tables of a program under load grow all the time: a sum from before the count of hundreds of processes would be too small.
    let look =
        move |process: &ProcessFiles| planned.tables_of(process).map(|freed| (freed, page_tables_of(process.pid())));
    each_of(pids.iter().copied(), look, |_, looked| {
        sum = sum.zip(looked.ok().flatten()).map(|(sum, (freed, all))| {
            let all = all.unwrap_or(0);
            let after = all.saturating_sub(freed * base_page().bytes());
            Tables { before: sum.before + all, after: sum.after + after }
        });
    });
    sum
}

/// Joins adjacent blocks.
fn runs(blocks: impl Iterator<Item = u64>, huge: PageSize) -> Vec<Range<u64>> {
    let mut runs: Vec<Range<u64>> = Vec::new();
    for start in blocks.map(|block| block.saturating_mul(huge.bytes())) {
        let end = start.saturating_add(huge.bytes());
        match runs.last_mut().filter(|last| last.end == start && last.end - last.start < AT_ONCE) {
            Some(last) => last.end = end,
            None => runs.push(start..end),
        }
    }
    runs
}

impl Planned {
    /// The number of page tables of a process that the lift frees. One that has ended has none.
    fn tables_of(&self, process: &ProcessFiles) -> Option<u64> {
        let (Ok(space), Ok(pagemap)) = (process.maps(), Pagemap::open(process.pid(), base_page())) else {
            return (!process.path("maps").exists()).then_some(0);
        };
        let mut tables = 0;
        for mapping in space.mappings().iter().filter(|mapping| mapping.shared) {
            let ahead = mapping.range.start().0.wrapping_sub(mapping.offset);
            if ahead % self.huge.bytes() != 0 {
                continue;
            }
            for index in self.segments.shown_by(mapping) {
                for offsets in &self.offsets[index] {
                    let shown = mapping.offset..mapping.offset.saturating_add(mapping.range.len());
                    let (start, end) = (offsets.start.max(shown.start), offsets.end.min(shown.end));
                    if start >= end {
                        continue;
                    }
                    if Instant::now() >= self.until {
                        return None;
                    }
                    let part = AddressRange::sized(mapping.range.start() + (start - mapping.offset), end - start);
                    tables += self.tables_in(&pagemap, part.whole_pages(self.huge))?;
                }
            }
        }
        Some(tables)
    }

    /// The number of blocks in a range that have a page table.
    fn tables_in(&self, pagemap: &Pagemap, range: AddressRange) -> Option<u64> {
        let touched = pagemap.touched(range).ok()?;
        // Before Linux 6.7 the kernel does not report them, and a second lift predicts too much.
        let huge = pagemap.huge(range).unwrap_or_default();
        let has_table = |block: &AddressRange| touched.overlaps(*block) && !huge.overlaps(*block);
        Some(range.pages(self.huge).filter(has_table).count() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_side_by_side_are_looked_at_by_one_call() {
        let huge = PageSize::new(2 << 20).unwrap();
        let mib = |start: u64, end: u64| start << 20..end << 20;
        assert_eq!(runs([0, 1, 2, 5].into_iter(), huge), [mib(0, 6), mib(10, 12)]);
        assert_eq!(runs(0..40, huge), [mib(0, 64), mib(64, 80)]);
        assert!(runs(std::iter::empty(), huge).is_empty());
    }
}
