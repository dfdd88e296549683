//! Lifts of shared memory on a simulated kernel, in which every call can fail at every block.

use address_space::{Address, AddressRange, PageSize, RangeSet};
use core::time::Duration;
use proptest::prelude::*;
use shared_memory::{
    Budget, Collapse, Contents, Fill, Held, InPlaceOutcome, Kernel, Machine, Margins, Policy, Reason, Refusal, Segment,
    SegmentKey, SegmentKind, Shown, View, lift, plan, plan_within,
};
use std::collections::{BTreeMap, BTreeSet};

const HUGE: u64 = 1 << 21;
const START: u64 = 0x7f00_0000_0000;
const APART: u64 = 1 << 36;

/// A kernel with one segment. Process `n` maps it at `START + n * APART`.
#[derive(Default)]
struct Simulated {
    data: BTreeMap<u64, u64>,
    huge: BTreeSet<u64>,
    /// Answers to the next attempts at a block, the first one last.
    answers: BTreeMap<u64, Vec<Refusal>>,
    /// Number of looks after which a process shows something else, by process.
    shows: BTreeMap<i32, (u32, Shown)>,
    looks: u32,
    per_look: Duration,
    /// The answer to checks of memory.
    memory: Option<Reason>,
    checks: Vec<u64>,
    added: u64,
    swapped: BTreeMap<u64, u64>,
    /// Room of the tmpfs.
    room: Option<u64>,
    margins: Margins<()>,
    unreadable: bool,
    calls: Vec<u64>,
    /// Answers to the beginning and to the end of a segment.
    begin: Option<Reason>,
    end: Option<Reason>,
    /// Number of segments that were begun and not ended.
    open: i32,
    now: Duration,
    per_block: Duration,
    /// Time that the lifter waits for a CPU before each call.
    queue: Duration,
    /// Blocks that take a second longer.
    slow: BTreeSet<u64>,
    pauses: u32,
    /// Number of compactions that succeed. Each gives every block a huge page.
    compactions: u32,
    /// Time of a compaction.
    per_compaction: Duration,
}

impl Kernel for Simulated {
    fn begin(&mut self, _: usize) -> Result<(), Reason> {
        self.open += i32::from(self.begin.is_none());
        self.begin.clone().map_or(Ok(()), Err)
    }

    fn end(&mut self, _: usize) -> Result<(), Reason> {
        self.open -= 1;
        self.end.clone().map_or(Ok(()), Err)
    }

    fn shows(&mut self, _: usize, view: &View, _: AddressRange) -> Shown {
        self.looks += 1;
        self.now += self.per_look;
        self.shows.get(&view.pid).filter(|(after, _)| self.looks > *after).map_or(Shown::Segment, |(_, shown)| *shown)
    }

    fn has_memory(&mut self, _: i32, bytes: u64) -> Result<(), Reason> {
        self.checks.push(bytes / HUGE);
        self.memory.clone().map_or(Ok(()), Err)
    }

    fn added(&mut self, bytes: u64) {
        self.added += bytes;
    }

    fn has_room(&mut self, _: usize, holes: u64) -> Result<(), Reason> {
        let Some(left) = self.room else { return Ok(()) };
        self.margins.check((), left, holes).map_err(|kept| Reason::Quota { left, kept })
    }

    fn held(&mut self, _: usize, block: u64) -> Result<Held, String> {
        let of = |bytes: &BTreeMap<u64, u64>| bytes.get(&block).copied().unwrap_or(0);
        match self.unreadable {
            true => Err("no".to_owned()),
            false => Ok(Held { present: of(&self.data), swapped: of(&self.swapped), ..Held::default() }),
        }
    }

    fn collapse(&mut self, pid: i32, addresses: AddressRange) -> Collapse {
        assert_eq!(addresses.len(), HUGE);
        let block = (addresses.start().0 - START - pid as u64 * APART) / HUGE;
        self.calls.push(block);
        let took = self.per_block + Duration::from_secs(self.slow.contains(&block).into());
        self.now += self.queue + took;
        let result = match self.answers.get_mut(&block).and_then(Vec::pop) {
            Some(refusal) => Err(refusal),
            None => {
                let (present, swapped) = (self.data[&block], self.swapped.remove(&block).unwrap_or(0));
                assert!(present + swapped > 0, "an empty block was filled");
                self.room = self.room.map(|room| room - (HUGE - present - swapped));
                self.data.insert(block, HUGE);
                self.huge.insert(block);
                Ok(())
            }
        };
        Collapse { result, took }
    }

    fn compact(&mut self) -> bool {
        let compacts = self.compactions > 0;
        if compacts {
            self.compactions -= 1;
            self.now += self.per_compaction;
            self.answers.values_mut().for_each(|answers| answers.retain(|answer| *answer != Refusal::NoPage));
        }
        compacts
    }

    fn elapsed(&mut self) -> Duration {
        self.now
    }

    fn pause(&mut self, time: Duration) {
        self.pauses += 1;
        self.now += time;
    }
}

fn machine() -> Machine {
    Machine { huge: PageSize::new(HUGE).unwrap(), refused: None, never: false, no_fill: None }
}

const BUDGET: Budget = Budget {
    all: Duration::from_secs(60),
    block: Duration::from_millis(200),
    without_page: Duration::from_secs(10),
    in_use: Duration::from_secs(20),
    tries: 3,
    fill: Fill::Few,
    most: None,
};

fn segment(processes: i32, blocks: u64) -> Segment {
    let key = SegmentKey { device: (0, 1), inode: 7, kind: SegmentKind::Anonymous, scope: 0 };
    let view = |pid: i32| {
        let range = AddressRange::sized(Address(START + pid as u64 * APART), blocks * HUGE);
        View { pid, range, offset: 0, huge: 0, huge_parts: RangeSet::new(), resident: 0, refused: None, watched: false }
    };
    let all = (0..blocks).map(|block| (block, Held { present: HUGE, ..Held::default() })).collect();
    let contents = Contents { length: blocks * HUGE, blocks: all, already: 0, room: None, unseen: None };
    Segment { key, name: String::new(), views: (0..processes).map(view).collect(), contents: Ok(contents) }
}

fn full(blocks: u64) -> Simulated {
    Simulated { data: (0..blocks).map(|block| (block, HUGE)).collect(), ..Simulated::default() }
}

fn lifted(
    processes: i32,
    blocks: u64,
    budget: &Budget,
    kernel: &mut Simulated,
) -> (u64, Vec<(Reason, u64)>, InPlaceOutcome) {
    let segments = [segment(processes, blocks)];
    let plan = plan(&segments, &machine(), Policy::default());
    let outcome = lift(&segments, &plan, &machine(), budget, kernel);
    let refused = outcome.segments[0].refused.iter().map(|refused| (refused.reason.clone(), refused.blocks)).collect();
    (kernel.huge.len() as u64, refused, outcome)
}

#[test]
fn every_block_is_done_once_and_the_worst_is_told() {
    let mut kernel = Simulated { per_block: Duration::from_millis(3), ..full(40) };
    let (blocks, refused, outcome) = lifted(5, 40, &BUDGET, &mut kernel);
    assert_eq!((blocks, refused.len(), outcome.worst), (40, 0, Duration::from_millis(3)));
    assert_eq!(kernel.calls, (0..40).collect::<Vec<_>>());
    assert_eq!((kernel.looks, kernel.checks), (40, vec![16, 16, 8]), "memory is checked for each 16 blocks");
}

#[test]
fn what_is_in_use_is_tried_again_later() {
    let mut kernel = full(4);
    kernel.answers.insert(1, vec![Refusal::Busy]);
    kernel.answers.insert(2, vec![Refusal::Busy; 9]);
    let (blocks, refused, _) = lifted(1, 4, &BUDGET, &mut kernel);
    let busy = |tries| Reason::Busy { tries, seconds: None };
    assert_eq!((blocks, refused, kernel.pauses), (3, vec![(busy(5), 1)], 4));
    assert_eq!(kernel.calls, [0, 1, 2, 3, 1, 2, 2, 2, 2], "three rounds in a row that lift nothing are the last");
    let mut kernel = full(4);
    kernel.answers.extend((0..4).map(|block| (block, vec![Refusal::Busy; 9])));
    let (blocks, refused, _) = lifted(1, 4, &BUDGET, &mut kernel);
    assert_eq!((blocks, refused, kernel.calls.len()), (0, vec![(busy(3), 4)], 12));
}

/// Blocks of a loaded server are in use at many moments, but seldom at all.
#[test]
fn blocks_in_use_are_tried_as_long_as_some_are_lifted() {
    let in_use = |kernel: &mut Simulated, least: usize| {
        let busy = |block: u64| (block, vec![Refusal::Busy; least + block as usize / 4]);
        kernel.answers.extend((0..100).map(busy));
    };
    let mut kernel = full(100);
    in_use(&mut kernel, 0);
    let (blocks, refused, _) = lifted(1, 100, &BUDGET, &mut kernel);
    assert_eq!((blocks, refused, kernel.pauses), (100, vec![], 24));
    assert!(kernel.now < Duration::from_secs(20), "{:?}", kernel.now);
    // All blocks have had several tries before the first one is lifted.
    let mut kernel = full(100);
    in_use(&mut kernel, 2);
    assert_eq!(lifted(1, 100, &BUDGET, &mut kernel).0, 100);
    // Within the time, which begins after the first round.
    let mut kernel = Simulated { per_block: Duration::from_millis(10), ..full(100) };
    in_use(&mut kernel, 0);
    let budget = Budget { in_use: Duration::from_secs(4), ..BUDGET };
    let (blocks, refused, _) = lifted(1, 100, &budget, &mut kernel);
    let tries = kernel.calls.iter().filter(|block| **block == 99).count() as u32;
    assert!((12..100).contains(&blocks) && kernel.now < Duration::from_secs(8), "{blocks} in {:?}", kernel.now);
    assert_eq!(refused, [(Reason::Busy { tries, seconds: Some(4) }, 100 - blocks)]);
}

#[test]
fn a_segment_in_use_takes_no_time_from_the_next() {
    let segments = [segment(1, 8), segment(1, 8)];
    let plan = plan(&segments, &machine(), Policy::default());
    let mut kernel = full(8);
    kernel.answers.insert(0, vec![Refusal::Busy; 7]);
    let budget = Budget { in_use: Duration::ZERO, ..BUDGET };
    let outcome = lift(&segments, &plan, &machine(), &budget, &mut kernel);
    let refused = |index: usize| &outcome.segments[index].refused;
    assert_eq!(refused(0)[0].reason, Reason::Busy { tries: 3, seconds: Some(0) });
    assert_eq!(refused(1)[0].reason, Reason::Busy { tries: 3, seconds: Some(0) });
    assert_eq!(kernel.calls.iter().filter(|block| **block == 0).count(), 6, "each segment has its rounds");
}

#[test]
fn the_next_process_takes_over_where_one_has_ended() {
    let mut kernel = full(40);
    kernel.shows.insert(0, (16, Shown::Other));
    kernel.answers.insert(30, vec![Refusal::Ended]);
    let (blocks, refused, _) = lifted(3, 40, &BUDGET, &mut kernel);
    assert_eq!((blocks, refused.len()), (40, 0));
    let mut kernel = full(40);
    kernel.shows.insert(0, (16, Shown::Ended));
    let (blocks, refused, _) = lifted(1, 40, &BUDGET, &mut kernel);
    assert_eq!((blocks, refused), (16, vec![(Reason::Gone, 24)]));
}

#[test]
fn mappings_that_are_gone_cost_no_more_than_the_time_allowed() {
    let others = |pids: core::ops::Range<i32>, shown| pids.map(move |pid| (pid, (0, shown)));
    let mut kernel = Simulated { per_look: Duration::from_millis(1), ..full(40) };
    kernel.shows.extend(others(0..500, Shown::Other));
    let budget = Budget { all: Duration::from_millis(100), ..BUDGET };
    let (blocks, refused, _) = lifted(500, 40, &budget, &mut kernel);
    assert_eq!((blocks, kernel.looks, refused), (0, 100, vec![(Reason::TimeIsUp { seconds: 0 }, 40)]));
    let mut kernel = full(40);
    kernel.shows.extend(others(0..499, Shown::Other));
    let (blocks, refused, _) = lifted(500, 40, &BUDGET, &mut kernel);
    assert_eq!((blocks, refused.len(), kernel.looks), (40, 0, 499 + 40), "each mapping that is gone is seen once");
}

#[test]
fn all_mappings_of_a_process_that_has_ended_are_gone_at_once() {
    let (mut one, mut kernel) = (segment(2, 40), full(40));
    let last = one.views.pop().unwrap();
    one.views = vec![one.views[0].clone(); 100];
    one.views.push(last);
    kernel.shows.insert(0, (0, Shown::Ended));
    let segments = [one];
    let plan = plan(&segments, &machine(), Policy::default());
    let outcome = lift(&segments, &plan, &machine(), &BUDGET, &mut kernel);
    assert_eq!((kernel.huge.len(), outcome.segments[0].refused.len(), kernel.looks), (40, 0, 41));
}

#[test]
fn data_that_was_swapped_out_meanwhile_is_not_read_back() {
    let with_swapped = || {
        let mut kernel = full(3);
        kernel.data.insert(1, HUGE - 8192);
        kernel.swapped.insert(1, 8192);
        kernel
    };
    let mut kernel = with_swapped();
    let (blocks, refused, _) = lifted(1, 3, &BUDGET, &mut kernel);
    assert_eq!((blocks, refused), (2, vec![(Reason::SwappedOut { swapped: 8192 }, 1)]));
    let mut kernel = with_swapped();
    let (blocks, _, outcome) = lifted(1, 3, &Budget { fill: Fill::All, ..BUDGET }, &mut kernel);
    let first = &outcome.segments[0];
    assert_eq!((blocks, first.filled, first.read_back), (3, 0, 8192));
    let budget = Budget { fill: Fill::All, most: Some(4096), ..BUDGET };
    let (blocks, refused, _) = lifted(1, 3, &budget, &mut with_swapped());
    assert_eq!((blocks, refused), (2, vec![(Reason::MostMemory { most: 4096 }, 1)]));
}

#[test]
fn half_of_the_room_of_a_tmpfs_stays_free() {
    let mut kernel = Simulated { room: Some(8192), ..full(4) };
    kernel.data.values_mut().for_each(|data| *data -= 4096);
    let (blocks, refused, _) = lifted(1, 4, &BUDGET, &mut kernel);
    assert_eq!((blocks, kernel.room), (1, Some(4096)));
    assert_eq!(refused, [(Reason::Quota { left: 4096, kept: 4096 }, 3)]);
}

#[test]
fn half_of_the_room_of_a_tmpfs_stays_free_over_several_lifts() {
    let mut margins = Margins::default();
    let mut blocks = |room: u64, holes: u64| {
        let mut segment = segment(1, 8);
        let held = Held { present: HUGE - 4096, ..Held::default() };
        let blocks = (0..holes).map(|block| (block, held)).collect();
        segment.contents = Ok(Contents { room: Some(room), length: 8 * HUGE, blocks, ..Contents::default() });
        let fill = Policy { fill: Fill::All, ..Policy::default() };
        plan_within(&[segment], &machine(), fill, &mut margins).segments[0].work.len()
    };
    let page = 4096;
    assert_eq!(blocks(8 * page, 8), 4);
    assert_eq!(blocks(4 * page, 4), 0, "half of the first room is left");
    assert_eq!(blocks(6 * page, 4), 2, "others have given some back");
    assert_eq!(blocks(16 * page, 8), 8, "the limit was raised");
    assert_eq!(blocks(10 * page, 8), 2);
}

#[test]
fn half_of_the_room_at_the_first_look_stays_free_over_a_whole_lift() {
    let (mut margins, mut left) = (Margins::default(), 100);
    while margins.check("/cgroup", left, 8).is_ok() {
        left -= 8;
    }
    assert_eq!((left, margins.check("/cgroup", left, 8), margins.check("/other", 16, 8)), (52, Err(50), Ok(())));
    assert_eq!((margins.check("/full", 0, 0), margins.check("/full", 0, 1)), (Ok(()), Err(0)));
}

/// A program that fills a control group by itself has left less room for others, and full blocks need none.
#[test]
fn half_of_the_room_beside_the_program_stays_free() {
    let mut margins = Margins::default();
    let mut check = |left, bytes, added| margins.check_beside("/cgroup", left, bytes, added);
    assert_eq!([check(100, 8, 0), check(30, 8, 0), check(16, 8, 0)], [Ok(()); 3]);
    assert_eq!((check(14, 8, 0), check(8, 8, 0)), (Err(7), Err(4)));
    assert_eq!((check(60, 8, 20), check(40, 8, 40), check(90, 40, 50)), (Ok(()), Err(40), Ok(())));
    let (mut left, mut added) = (100, 0);
    while check(left, 8, added).is_ok() {
        (left, added) = (left - 8, added + 8);
    }
    assert_eq!((left, added), (52, 48));
}

#[test]
fn what_blocks_add_is_told_to_the_kernel() {
    let mut kernel = full(4);
    kernel.data.insert(1, HUGE - 4096);
    let (blocks, ..) = lifted(1, 4, &BUDGET, &mut kernel);
    assert_eq!((blocks, kernel.added), (4, 4096));
}

#[test]
fn holes_are_not_filled_where_the_kernel_does_not_check_userfaultfd() {
    let reason = Reason::FillsUnasked { found: "6.1".to_owned() };
    let machine = Machine { no_fill: Some(reason.clone()), ..machine() };
    let segments = [segment(1, 2)];
    let plan = plan(&segments, &machine, Policy::default());
    let mut kernel = full(2);
    kernel.data.insert(1, HUGE - 4096);
    let outcome = lift(&segments, &plan, &machine, &Budget { fill: Fill::All, ..BUDGET }, &mut kernel);
    assert_eq!((kernel.calls, &outcome.segments[0].refused[0].reason), (vec![0], &reason));
}

#[test]
fn contents_that_cannot_be_counted_were_not_emptied() {
    let mut kernel = Simulated { unreadable: true, ..full(2) };
    let (blocks, refused, _) = lifted(1, 2, &BUDGET, &mut kernel);
    assert_eq!((blocks, refused), (0, vec![(Reason::Unreadable { why: "no".to_owned() }, 2)]));
}

#[test]
fn blocks_without_a_free_huge_page_are_tried_again() {
    let mut kernel = full(4);
    kernel.answers.extend([(1, vec![Refusal::NoPage]), (2, vec![Refusal::NoPage; 9])]);
    let (blocks, refused, _) = lifted(1, 4, &BUDGET, &mut kernel);
    assert_eq!((blocks, refused, kernel.pauses), (3, vec![(Reason::Fragmented, 1)], 2), "a page may come free");
    // Nine in a row fail once: the others are tried first, and then they succeed.
    let mut kernel = full(40);
    kernel.answers.extend((10..19).map(|block| (block, vec![Refusal::NoPage])));
    let (blocks, refused, _) = lifted(1, 40, &BUDGET, &mut kernel);
    assert_eq!((blocks, refused.len(), kernel.calls.len(), kernel.pauses), (40, 0, 49, 2));
    assert_eq!(kernel.calls[18..20], [18, 19]);
    // A pass that lifts something is followed by another.
    let mut kernel = full(40);
    kernel.answers.extend((0..40).filter(|block| block % 10 != 0).map(|block| (block, vec![Refusal::NoPage])));
    let (blocks, refused, _) = lifted(1, 40, &BUDGET, &mut kernel);
    assert_eq!((blocks, refused.len()), (40, 0));
}

#[test]
fn fragmented_memory_is_given_up_early() {
    let mut kernel = full(40);
    kernel.answers.extend((10..40).map(|block| (block, vec![Refusal::NoPage; 99])));
    let (blocks, refused, _) = lifted(1, 40, &BUDGET, &mut kernel);
    assert_eq!((blocks, refused, kernel.calls.len()), (10, vec![(Reason::Fragmented, 30)], 10 + 4 * 8));
    let mut kernel = Simulated { per_block: Duration::from_secs(4), ..full(40) };
    kernel.answers.extend((0..40).map(|block| (block, vec![Refusal::NoPage; 99])));
    let (blocks, refused, outcome) = lifted(1, 40, &BUDGET, &mut kernel);
    assert_eq!((blocks, refused, kernel.calls.len()), (0, vec![(Reason::Fragmented, 40)], 3), "within its time");
    assert_eq!(outcome.worst, Duration::ZERO, "no block was locked");
}

#[test]
fn blocks_in_use_are_no_lack_of_huge_pages() {
    let mut kernel = full(12);
    kernel.answers.extend((1..12).map(|block| (block, vec![Refusal::NoPage; 99])));
    kernel.answers.insert(0, vec![Refusal::Busy; 99]);
    let (blocks, mut refused, _) = lifted(1, 12, &BUDGET, &mut kernel);
    refused.sort_by_key(|(_, blocks)| *blocks);
    assert_eq!((blocks, refused), (0, vec![(Reason::Busy { tries: 3, seconds: None }, 1), (Reason::Fragmented, 11)]));
}

#[test]
fn fragmented_memory_is_compacted() {
    let mut kernel = Simulated { compactions: 1, ..full(40) };
    kernel.answers.extend((10..40).map(|block| (block, vec![Refusal::NoPage; 99])));
    let (blocks, refused, _) = lifted(1, 40, &BUDGET, &mut kernel);
    assert_eq!((blocks, refused.len(), kernel.calls.len(), kernel.pauses), (40, 0, 48, 0));
    let mut kernel = Simulated { compactions: 1, ..full(40) };
    lifted(1, 40, &BUDGET, &mut kernel);
    assert_eq!(kernel.compactions, 1, "not without need");
    // The time of the compaction counts.
    let mut kernel = Simulated { compactions: 1, per_compaction: Duration::from_secs(11), ..full(40) };
    kernel.answers.extend((10..40).map(|block| (block, vec![Refusal::NoPage; 99])));
    kernel.answers.insert(20, vec![Refusal::NoPage, Refusal::Busy]);
    let (blocks, refused, _) = lifted(1, 40, &BUDGET, &mut kernel);
    assert_eq!((blocks, refused.len(), kernel.compactions), (40, 0, 0));
}

#[test]
fn slow_blocks_and_the_end_of_the_time_end_all() {
    let mut kernel = Simulated { per_block: Duration::from_millis(300), ..full(40) };
    let (blocks, refused, _) = lifted(1, 40, &BUDGET, &mut kernel);
    assert_eq!((blocks, refused), (3, vec![(Reason::Slow { milliseconds: 300 }, 37)]));
    let mut kernel = Simulated { per_block: Duration::from_millis(100), ..full(40) };
    let budget = Budget { all: Duration::from_secs(1), ..BUDGET };
    let (blocks, refused, _) = lifted(1, 40, &budget, &mut kernel);
    assert_eq!((blocks, refused), (10, vec![(Reason::TimeIsUp { seconds: 1 }, 30)]));
}

#[test]
fn a_lifter_that_waits_for_a_cpu_is_not_slow() {
    let mut kernel = Simulated { queue: BUDGET.block * 2, ..full(100) };
    let (blocks, refused, outcome) = lifted(1, 100, &BUDGET, &mut kernel);
    assert_eq!((blocks, refused), (100, vec![]));
    assert_eq!(outcome.worst, Duration::ZERO);
}

#[test]
fn single_slow_blocks_among_many_do_not_end_a_lift() {
    let slow_each = |blocks| Simulated { slow: (0..100).step_by(blocks).collect(), ..full(100) };
    let (blocks, refused, outcome) = lifted(1, 100, &BUDGET, &mut slow_each(20));
    assert_eq!((blocks, refused.len(), outcome.worst), (100, 0, Duration::from_secs(1)));
    let (blocks, refused, _) = lifted(1, 100, &BUDGET, &mut slow_each(10));
    assert_eq!((blocks, refused), (21, vec![(Reason::Slow { milliseconds: 1000 }, 79)]));
}

#[test]
fn memory_that_runs_low_ends_all_and_a_cgroup_only_its_segment() {
    let low = Reason::MachineLow { available: 1, floor: 2 };
    let limit = Reason::CgroupLimit { directory: "/c".to_owned(), left: 1, kept: 1 };
    for (reason, checks) in [(low, 1), (limit, 2)] {
        let segments = [segment(1, 16), segment(1, 16)];
        let plan = plan(&segments, &machine(), Policy::default());
        let mut kernel = full(16);
        kernel.memory = Some(reason.clone());
        let first = lift(&segments, &plan, &machine(), &BUDGET, &mut kernel);
        assert_eq!((kernel.calls.len(), kernel.checks.len()), (0, checks));
        assert_eq!((&first.segments[1].refused[0].reason, first.segments[1].refused[0].blocks), (&reason, 16));
    }
}

#[test]
fn a_block_that_was_emptied_meanwhile_is_left() {
    let mut kernel = full(3);
    kernel.data.remove(&0);
    kernel.data.insert(1, 4096);
    let (blocks, refused, _) = lifted(1, 3, &BUDGET, &mut kernel);
    assert_eq!((blocks, refused), (1, vec![(Reason::Changed, 1), (Reason::Holes { would_add: HUGE - 4096 }, 1)]));
    let mut kernel = full(2);
    kernel.data.insert(1, HUGE - 4096);
    let (blocks, refused, outcome) = lifted(1, 2, &Budget { most: Some(0), ..BUDGET }, &mut kernel);
    assert_eq!((blocks, refused, outcome.segments[0].filled), (1, vec![(Reason::MostMemory { most: 0 }, 1)], 0));
}

#[test]
fn a_segment_that_cannot_be_prepared_is_left_and_what_was_prepared_is_taken_back() {
    let reason = || Reason::NotSuspended { why: "no".to_owned() };
    let mut kernel = Simulated { begin: Some(reason()), ..full(4) };
    let (blocks, refused, _) = lifted(1, 4, &BUDGET, &mut kernel);
    assert_eq!((blocks, refused, kernel.looks, kernel.open), (0, vec![(reason(), 4)], 0, 0));
    let mut kernel = Simulated { end: Some(reason()), ..full(4) };
    let (blocks, refused, _) = lifted(1, 4, &BUDGET, &mut kernel);
    assert_eq!((blocks, refused, kernel.open), (4, vec![(reason(), 0)], 0));
    let mut kernel = full(4);
    kernel.answers.insert(0, vec![Refusal::NotPermitted]);
    let (_, refused, _) = lifted(1, 4, &BUDGET, &mut kernel);
    assert_eq!((refused, kernel.open), (vec![(Reason::NotPermitted, 4)], 0));
}

proptest! {
    /// Each block is lifted or refused, once, and nothing is tried for ever, whatever the kernel answers to any call.
    #[test]
    fn every_failure_leaves_each_block_lifted_or_named(
        processes in 1..4i32,
        answers in prop::collection::btree_map(0u64..40, prop::collection::vec(0..6u8, 1..6), 0..40),
        gone in prop::collection::btree_map(0..4i32, (0..50u32, any::<bool>()), 0..4),
    ) {
        let refusal = |number| match number {
            0 => Refusal::Busy,
            1 => Refusal::NoPage,
            2 => Refusal::NotCharged,
            3 => Refusal::Ended,
            4 => Refusal::NotPermitted,
            _ => Refusal::Other("invalid argument".to_owned()),
        };
        let mut kernel = full(40);
        kernel.answers = answers.into_iter().map(|(block, all)| (block, all.into_iter().map(refusal).collect())).collect();
        let shown = |ended| if ended { Shown::Ended } else { Shown::Other };
        kernel.shows = gone.into_iter().map(|(pid, (after, ended))| (pid, (after, shown(ended)))).collect();
        let (blocks, refused, _) = lifted(processes, 40, &BUDGET, &mut kernel);
        prop_assert_eq!((blocks, kernel.open), (kernel.huge.len() as u64, 0));
        prop_assert_eq!(blocks + refused.iter().map(|(_, blocks)| blocks).sum::<u64>(), 40);
        prop_assert!(kernel.calls.len() <= 40 * (6 + processes as usize));
    }
}
