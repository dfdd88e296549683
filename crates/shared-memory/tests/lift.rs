//! Lifts of shared memory on a simulated kernel, in which every call can fail at every block.

use address_space::{Address, AddressRange, PageSize, RangeSet};
use core::time::Duration;
use proptest::prelude::*;
use shared_memory::{
    Budget, Contents, Kernel, Machine, Outcome, Policy, Reason, Refusal, Segment, SegmentKey, SegmentKind, View, lift,
    plan,
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
    /// Number of calls of `ready` after which it refuses, and why, by process.
    refuses: BTreeMap<i32, (u32, Reason)>,
    looks: u32,
    calls: Vec<u64>,
    now: Duration,
    per_block: Duration,
    pauses: u32,
}

impl Kernel for Simulated {
    fn ready(&mut self, _: usize, view: &View, _: AddressRange, _: u64) -> Result<(), Reason> {
        self.looks += 1;
        match self.refuses.get(&view.pid) {
            Some((after, reason)) if self.looks > *after => Err(reason.clone()),
            _ => Ok(()),
        }
    }

    fn data(&mut self, _: usize, block: u64) -> u64 {
        self.data.get(&block).copied().unwrap_or(0)
    }

    fn collapse(&mut self, pid: i32, addresses: AddressRange) -> Result<(), Refusal> {
        assert_eq!(addresses.len(), HUGE);
        let block = (addresses.start().0 - START - pid as u64 * APART) / HUGE;
        self.calls.push(block);
        self.now += self.per_block;
        match self.answers.get_mut(&block).and_then(Vec::pop) {
            Some(refusal) => Err(refusal),
            None => {
                assert!(self.data[&block] > 0, "an empty block was filled");
                self.data.insert(block, HUGE);
                self.huge.insert(block);
                Ok(())
            }
        }
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
    Machine { huge: PageSize::new(HUGE).unwrap(), refused: None, never: false }
}

const BUDGET: Budget =
    Budget { all: Duration::from_secs(60), block: Duration::from_millis(200), tries: 3, fill: false, most: None };

fn segment(processes: i32, blocks: u64) -> Segment {
    let key = SegmentKey { device: (0, 1), inode: 7, kind: SegmentKind::Anonymous, namespace: 0 };
    let view = |pid: i32| {
        let range = AddressRange::sized(Address(START + pid as u64 * APART), blocks * HUGE);
        View { pid, range, offset: 0, huge: 0, huge_parts: RangeSet::new(), resident: 0, refused: None }
    };
    let all = (0..blocks).map(|block| (block, HUGE)).collect();
    let contents = Contents { length: blocks * HUGE, blocks: all, room: None, unseen: None };
    Segment { key, name: String::new(), views: (0..processes).map(view).collect(), contents: Ok(contents) }
}

fn full(blocks: u64) -> Simulated {
    Simulated { data: (0..blocks).map(|block| (block, HUGE)).collect(), ..Simulated::default() }
}

fn lifted(processes: i32, blocks: u64, budget: &Budget, kernel: &mut Simulated) -> (u64, Vec<(Reason, u64)>, Outcome) {
    let segments = [segment(processes, blocks)];
    let plan = plan(&segments, &machine(), Policy::default());
    let outcome = lift(&segments, &plan, &machine(), budget, kernel);
    let refused = outcome.segments[0].refused.iter().map(|refused| (refused.reason.clone(), refused.blocks)).collect();
    (outcome.segments[0].blocks, refused, outcome)
}

#[test]
fn every_block_is_done_once_and_the_worst_is_told() {
    let mut kernel = Simulated { per_block: Duration::from_millis(3), ..full(40) };
    let (blocks, refused, outcome) = lifted(5, 40, &BUDGET, &mut kernel);
    assert_eq!((blocks, refused.len(), outcome.worst), (40, 0, Duration::from_millis(3)));
    assert_eq!(kernel.calls, (0..40).collect::<Vec<_>>());
    assert_eq!(kernel.looks, 3, "a look for each 16 blocks");
}

#[test]
fn what_is_in_use_is_tried_again_later() {
    let mut kernel = full(4);
    kernel.answers.insert(1, vec![Refusal::Busy]);
    kernel.answers.insert(2, vec![Refusal::Busy; 9]);
    let (blocks, refused, _) = lifted(1, 4, &BUDGET, &mut kernel);
    assert_eq!((blocks, refused, kernel.pauses), (3, vec![(Reason::Busy { tries: 3 }, 1)], 2));
    assert_eq!(kernel.calls, [0, 1, 2, 3, 1, 2, 2]);
}

#[test]
fn the_next_process_takes_over_where_one_has_ended() {
    let mut kernel = full(40);
    kernel.refuses.insert(0, (1, Reason::Gone));
    kernel.answers.insert(30, vec![Refusal::Ended]);
    let (blocks, refused, _) = lifted(3, 40, &BUDGET, &mut kernel);
    assert_eq!((blocks, refused.len()), (40, 0));
    let mut kernel = full(40);
    kernel.refuses.insert(0, (1, Reason::Gone));
    let (blocks, refused, _) = lifted(1, 40, &BUDGET, &mut kernel);
    assert_eq!((blocks, refused), (16, vec![(Reason::Gone, 24)]));
}

#[test]
fn fragmented_memory_is_given_up_early() {
    let mut kernel = full(4);
    kernel.answers.extend([(1, vec![Refusal::NoPage]), (2, vec![Refusal::NoPage; 9])]);
    let (blocks, refused, _) = lifted(1, 4, &BUDGET, &mut kernel);
    assert_eq!((blocks, refused, kernel.pauses), (3, vec![(Reason::Fragmented, 1)], 2), "a page may come free");
    let mut kernel = full(40);
    kernel.answers.extend((10..40).map(|block| (block, vec![Refusal::NoPage])));
    let (blocks, refused, _) = lifted(1, 40, &BUDGET, &mut kernel);
    assert_eq!((blocks, refused, kernel.calls.len()), (10, vec![(Reason::Fragmented, 30)], 18));
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
fn memory_that_runs_low_ends_all_and_a_cgroup_only_its_segment() {
    let low = Reason::MachineLow { available: 1, floor: 2 };
    let limit = Reason::CgroupLimit { directory: "/c".to_owned(), left: 1 };
    for (reason, looks) in [(low, 1), (limit, 2)] {
        let segments = [segment(1, 16), segment(1, 16)];
        let plan = plan(&segments, &machine(), Policy::default());
        let mut kernel = full(16);
        kernel.refuses.insert(0, (0, reason.clone()));
        let first = lift(&segments, &plan, &machine(), &BUDGET, &mut kernel);
        assert_eq!(first.segments.iter().map(|lifted| lifted.blocks).sum::<u64>(), 0);
        assert_eq!(first.segments[1].refused[0].reason, reason);
        assert_eq!(kernel.looks, looks);
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

proptest! {
    /// Each block is lifted or refused, once, and nothing is tried for ever, whatever the kernel answers to any call.
    #[test]
    fn every_failure_leaves_each_block_lifted_or_named(
        processes in 1..4i32,
        answers in prop::collection::btree_map(0u64..40, prop::collection::vec(0..6u8, 1..6), 0..40),
        gone in prop::collection::btree_map(0..4i32, 0..8u32, 0..4),
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
        kernel.refuses = gone.into_iter().map(|(pid, after)| (pid, (after, Reason::Gone))).collect();
        let (blocks, refused, _) = lifted(processes, 40, &BUDGET, &mut kernel);
        prop_assert_eq!(blocks, kernel.huge.len() as u64);
        prop_assert_eq!(blocks + refused.iter().map(|(_, blocks)| blocks).sum::<u64>(), 40);
        prop_assert!(kernel.calls.len() <= 40 * (3 + processes as usize));
    }
}
