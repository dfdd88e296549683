//! Counts of private memory in simulated page tables, with little time.

use address_space::{Address, AddressRange, PageSize, RangeSet};
use proptest::prelude::*;
use shared_memory::{Counted, Held, PageTables, Reason, View, count};
use std::collections::BTreeMap;

const HUGE: u64 = 1 << 21;
const PAGE: u64 = 4096;

/// Page tables with data in some pages, read until the time is up.
#[derive(Default)]
struct Simulated {
    /// Addresses of pages with data.
    pages: Vec<u64>,
    /// Number of blocks that can still be counted.
    time: usize,
    scanned: RangeSet,
    counted: Vec<u64>,
    fails: bool,
}

impl PageTables for Simulated {
    fn with_data(&mut self, range: AddressRange) -> Result<RangeSet, String> {
        self.scanned.insert(range);
        let pages = self.pages.iter().map(|page| AddressRange::sized(Address(*page), PAGE));
        if self.fails { Err("no".to_owned()) } else { Ok(pages.filter(|page| range.overlaps(*page)).collect()) }
    }

    fn held(&mut self, range: AddressRange) -> Result<Held, String> {
        self.time = self.time.saturating_sub(1);
        self.counted.push(range.start().0 / HUGE);
        let pages = self.pages.iter().filter(|page| range.contains(Address(**page)));
        Ok(Held { present: pages.count() as u64 * PAGE, ..Held::default() })
    }

    fn has_time(&mut self) -> bool {
        self.time > 0
    }
}

fn huge() -> PageSize {
    PageSize::new(HUGE).unwrap()
}

/// A mapping of pages, of which some blocks are huge.
fn view(pages: core::ops::Range<u64>, huge: &[u64]) -> View {
    let range = AddressRange::new(Address(pages.start * PAGE), Address(pages.end * PAGE));
    let huge_parts: RangeSet = huge.iter().map(|block| AddressRange::sized(Address(block * HUGE), HUGE)).collect();
    let (offset, huge) = (range.start().0, huge_parts.bytes());
    View { pid: 1, range, offset, huge, huge_parts, resident: 0, refused: None, watched: false }
}

/// A mapping of whole blocks.
fn blocks(blocks: core::ops::Range<u64>, huge: &[u64]) -> View {
    const PER_BLOCK: u64 = HUGE / PAGE;
    view(blocks.start * PER_BLOCK..blocks.end * PER_BLOCK, huge)
}

/// Blocks that hold one page of data each.
fn touched(blocks: core::ops::Range<u64>, time: usize) -> Simulated {
    Simulated { pages: blocks.map(|block| block * HUGE).collect(), time, ..Simulated::default() }
}

fn numbers(counted: &Counted) -> Vec<u64> {
    counted.blocks.iter().map(|(number, _)| *number).collect()
}

#[test]
fn the_next_count_continues_where_the_last_one_ended() {
    let (views, mut from, mut seen) = ([blocks(10..20, &[])], 0, Vec::new());
    for _ in 0..3 {
        let counted = count(&views, huge(), from, &mut touched(10..20, 4));
        seen.push(numbers(&counted));
        assert_eq!(counted.unseen, Some(Reason::TooScattered));
        from = counted.next.unwrap();
    }
    assert_eq!((seen, from), (vec![vec![10, 11, 12, 13], vec![14, 15, 16, 17], vec![10, 11, 18, 19]], 12));
    let counted = count(&views, huge(), from, &mut touched(10..20, 11));
    assert_eq!((numbers(&counted), counted.next, counted.unseen), ((10..20).collect(), None, None));
}

#[test]
fn what_is_huge_is_not_read() {
    let views = [blocks(0..8, &[1, 2, 5])];
    let mut tables = touched(0..8, 9);
    let counted = count(&views, huge(), 0, &mut tables);
    assert_eq!((numbers(&counted), counted.already, counted.next), (vec![0, 3, 4, 6, 7], 3 * HUGE, None));
    let small = [0..1, 3..5, 6..8].map(|part| AddressRange::new(Address(part.start * HUGE), Address(part.end * HUGE)));
    assert_eq!(tables.scanned, small.into_iter().collect());
    assert_eq!(tables.counted, [0, 3, 4, 6, 7]);
    // A heap that is huge takes no time, so that the rest is reached.
    let views = [blocks(0..1000, &(0..998).collect::<Vec<_>>())];
    let counted = count(&views, huge(), 0, &mut touched(0..1000, 3));
    assert_eq!((numbers(&counted), counted.already, counted.next), (vec![998, 999], 998 * HUGE, None));
}

#[test]
fn two_mappings_that_share_a_block_are_counted_together() {
    let views = [view(0..700, &[]), view(700..1536, &[])];
    let pages = || (0..1536).map(|page| page * PAGE).collect();
    let mut tables = Simulated { pages: pages(), time: 9, ..Simulated::default() };
    let counted = count(&views, huge(), 0, &mut tables);
    let all = (0..3).map(|number| (number, Held { present: HUGE, ..Held::default() })).collect::<Vec<_>>();
    assert_eq!(counted.blocks, all);
    // A block is counted whole, or not at all.
    let mut tables = Simulated { pages: pages(), time: 2, ..Simulated::default() };
    let counted = count(&views, huge(), 0, &mut tables);
    assert_eq!((counted.blocks, counted.next), (all[..1].to_vec(), Some(1)));
}

#[test]
fn page_tables_that_cannot_be_read_are_named() {
    let mut tables = Simulated { fails: true, ..touched(0..2, 9) };
    let counted = count(&[blocks(0..2, &[])], huge(), 1, &mut tables);
    let unseen = Some(Reason::Unreadable { why: "no".to_owned() });
    assert_eq!(counted, Counted { unseen, ..Counted::default() });
}

proptest! {
    /// Repeated counts reach each block that is not huge, with its whole contents, wherever each one ends.
    #[test]
    fn repeated_counts_reach_all_blocks(
        pages in prop::collection::btree_set(0u64..40 * 512, 0..60),
        huge_blocks in prop::collection::btree_set(0u64..40, 0..10),
        cut in 1u64..40 * 512,
        time in 1usize..8,
    ) {
        let is_huge = |page: u64| huge_blocks.contains(&(page / 512));
        let huge_blocks: Vec<u64> = huge_blocks.iter().copied().filter(|block| *block != cut / 512).collect();
        let views = [view(0..cut, &huge_blocks), view(cut..40 * 512, &huge_blocks)].map(|mut view| {
            view.huge_parts = view.huge_parts.within(view.range).collect();
            view
        });
        let small: Vec<u64> = pages.iter().copied().filter(|page| !is_huge(*page) || page / 512 == cut / 512).collect();
        let mut expected = BTreeMap::new();
        for page in &small {
            *expected.entry(page / 512).or_insert(0) += PAGE;
        }
        let (mut seen, mut from) = (BTreeMap::new(), 0);
        for _ in 0..=expected.len() * 2 {
            let pages = small.iter().map(|page| page * PAGE).collect();
            // The block that two mappings share takes two steps.
            let counted = count(&views, huge(), from, &mut Simulated { pages, time: time + 1, ..Simulated::default() });
            prop_assert!(counted.blocks.is_sorted_by_key(|(number, _)| *number));
            seen.extend(counted.blocks.iter().map(|(number, held)| (*number, held.present)));
            from = counted.next.unwrap_or(0);
        }
        prop_assert_eq!(seen, expected);
    }
}
