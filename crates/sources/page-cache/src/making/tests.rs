//! Preparations of a simulated page cache, in which reclaim, other processes and failures come when they do most harm.

use super::*;
use crate::refusal::Refusal;
use linux::file_cache::CachedPages;
use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::time::Duration;

const PAGES: u64 = 512;
const HUGE: u64 = 2 << 20;
const PID: i32 = 77;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lies {
    Huge,
    Small,
    /// Only the pages that another process maps are there.
    InPart,
    Nowhere,
}

#[derive(Clone, Copy)]
struct Block {
    lies: Lies,
    /// Another process maps one of its pages.
    is_held: bool,
    /// Number of searches after which that process, which only reads the state of the file, no longer maps it.
    looks: u32,
    /// Number of evictions that fail because the kernel uses the pages.
    in_hand: u32,
    /// Reclaim has dropped it since its last eviction.
    dropped: bool,
    evictions: u32,
}

/// Which blocks this process maps.
type Mapped = Rc<RefCell<Vec<u64>>>;

/// A mapping, until it is dropped.
struct SimulatedMapping {
    mapped: Mapped,
    blocks: RefCell<Vec<u64>>,
}

impl SimulatedMapping {
    fn take(&self, block: u64) {
        self.mapped.borrow_mut().push(block);
        self.blocks.borrow_mut().push(block);
    }
}

impl Drop for SimulatedMapping {
    fn drop(&mut self) {
        for block in self.blocks.borrow().iter() {
            let mut mapped = self.mapped.borrow_mut();
            let at = mapped.iter().position(|other| other == block).unwrap();
            mapped.swap_remove(at);
        }
    }
}

/// Other than the default, it holds blocks.
#[derive(Default)]
struct SimulatedHold(#[expect(dead_code, reason = "held until it is dropped")] Option<SimulatedMapping>);

#[derive(Default)]
struct Simulated {
    blocks: RefCell<Vec<Block>>,
    mapped: Mapped,
    /// Number of times that reclaim drops all huge blocks that nobody maps: before each call, as long as there are any.
    reclaims: Cell<u32>,
    /// Reclaim takes pages that this process maps, too.
    takes_mapped: bool,
    collapses: bool,
    /// Number of attempts to collapse a block that fail since its pages are in use.
    in_use: Cell<u32>,
    fragmented: bool,
    /// Blocks that are mostly holes.
    sparse: RefCell<Vec<u64>>,
    /// A block of which another process makes a hole as soon as it was seen to be full.
    punched: Cell<Option<u64>>,
    /// Its pages are the only copy.
    on_tmpfs: bool,
    unseen: u64,
    elapsed: Cell<Duration>,
    looks_for_holders: Cell<u32>,
    /// Number of calls that can fail, and the one that fails.
    calls: Cell<u32>,
    fails: Option<u32>,
}

impl Simulated {
    fn of(lies: &[Lies]) -> Self {
        let block =
            |lies: &Lies| Block { lies: *lies, is_held: false, looks: 0, in_hand: 0, dropped: false, evictions: 0 };
        Self { blocks: RefCell::new(lies.iter().map(block).collect()), ..Self::default() }
    }

    fn change(&self, number: u64, change: impl FnOnce(&mut Block)) {
        change(&mut self.blocks.borrow_mut()[number as usize]);
    }

    fn held(self, numbers: &[u64]) -> Self {
        numbers.iter().for_each(|number| self.change(*number, |block| block.is_held = true));
        self
    }

    fn lies(&self) -> Vec<Lies> {
        self.blocks.borrow().iter().map(|block| block.lies).collect()
    }

    fn evictions(&self) -> u32 {
        self.blocks.borrow().iter().map(|block| block.evictions).sum()
    }

    fn is_mapped(&self, number: u64) -> bool {
        self.mapped.borrow().contains(&number)
    }

    /// Counts the call, lets reclaim drop blocks, and fails if this is the call that fails.
    fn call(&self, what: &'static str) -> Result<(), Error> {
        self.calls.set(self.calls.get() + 1);
        let mut dropped = false;
        for (number, block) in self.blocks.borrow_mut().iter_mut().enumerate() {
            let is_mapped = (self.is_mapped(number as u64) && !self.takes_mapped) || block.is_held;
            if self.reclaims.get() > 0 && block.lies == Lies::Huge && !is_mapped {
                (block.lies, block.dropped, dropped) = (Lies::Nowhere, true, true);
            }
        }
        self.reclaims.set(self.reclaims.get() - u32::from(dropped));
        match self.fails == Some(self.calls.get()) {
            true => Err(Error::new(what, io::ErrorKind::OutOfMemory)),
            false => Ok(()),
        }
    }

    fn mapping(&self) -> SimulatedMapping {
        SimulatedMapping { mapped: self.mapped.clone(), blocks: RefCell::default() }
    }
}

impl PageCache for &Simulated {
    type Hold = SimulatedHold;
    type Mapping = SimulatedMapping;

    fn look(&self, blocks: &Range<u64>) -> Result<Looked<SimulatedHold>, Error> {
        self.call("look")?;
        let lies = self.lies();
        let huge: Vec<u64> = blocks.clone().filter(|block| lies[*block as usize] == Lies::Huge).collect();
        let hold = self.mapping();
        huge.iter().for_each(|block| hold.take(*block));
        Ok(Looked { blocks: huge, hold: SimulatedHold(Some(hold)) })
    }

    fn may_be_filled(&self, block: u64) -> Result<bool, Error> {
        self.call("lseek")?;
        let is_full = !self.sparse.borrow().contains(&block);
        if self.punched.get() == Some(block) {
            self.sparse.borrow_mut().push(block);
        }
        Ok(is_full)
    }

    fn map_to_collapse(&self, _: &Range<u64>) -> Result<SimulatedMapping, Error> {
        self.call("map").map(|()| self.mapping())
    }

    fn collapse(&self, mapping: &SimulatedMapping, block: u64) -> Result<(), Errno> {
        self.call("collapse").map_err(|_| Errno::EAGAIN)?;
        if !self.collapses {
            return Err(Errno::EINVAL);
        }
        if self.fragmented {
            return Err(Errno::ENOMEM);
        }
        if self.in_use.get() > 0 {
            self.in_use.set(self.in_use.get() - 1);
            return Err(Errno::EAGAIN);
        }
        self.change(block, |block| block.lies = Lies::Huge);
        mapping.take(block);
        Ok(())
    }

    fn map_to_create(&self, _: &Range<u64>) -> Result<SimulatedMapping, Error> {
        self.call("map").map(|()| self.mapping())
    }

    fn touch(&self, mapping: &SimulatedMapping, number: u64) -> Result<(), Error> {
        self.call("touch")?;
        let small = self.fragmented;
        self.change(number, |block| {
            if block.lies == Lies::Nowhere {
                block.lies = if small { Lies::Small } else { Lies::Huge };
            }
        });
        mapping.take(number);
        Ok(())
    }

    fn evict(&self, number: u64) -> Result<(), Error> {
        self.call("evict")?;
        let is_mapped = self.is_mapped(number);
        self.change(number, |block| {
            block.evictions += 1;
            block.dropped = false;
            match block {
                Block { is_held: true, lies: Lies::Small, .. } => block.lies = Lies::InPart,
                Block { in_hand: 1.., .. } => block.in_hand -= 1,
                Block { is_held: false, .. } if !is_mapped => block.lies = Lies::Nowhere,
                _ => {}
            }
        });
        Ok(())
    }

    fn read_ahead(&self, number: u64) {
        self.change(number, |block| {
            if block.lies == Lies::InPart {
                block.lies = Lies::Small;
            }
        });
    }

    fn cached(&self, blocks: &Range<u64>) -> Option<CachedPages> {
        let mut pages = CachedPages::default();
        for block in &self.blocks.borrow()[blocks.start as usize..blocks.end as usize] {
            pages.cached += match block.lies {
                Lies::Huge | Lies::Small => PAGES,
                Lies::InPart => 1,
                Lies::Nowhere => 0,
            };
            pages.evicted += if block.dropped { PAGES } else { 0 };
        }
        Some(pages)
    }

    fn write_back(&self) {}

    fn can_be_evicted(&self) -> Result<bool, Error> {
        self.call("fstatfs").map(|()| !self.on_tmpfs)
    }

    fn refuse(&self) -> Result<Option<Refusal>, Error> {
        self.call("fstatfs").map(|()| None)
    }

    fn file_system(&self) -> Result<String, Error> {
        self.call("fstatfs").map(|()| "simulated".to_owned())
    }

    fn holders(&self, blocks: &Range<u64>) -> Result<Holders, Error> {
        self.looks_for_holders.set(self.looks_for_holders.get() + 1);
        self.call("/proc")?;
        let held = |number: &u64| self.blocks.borrow()[*number as usize].is_held && self.unseen == 0;
        let by_block = blocks.clone().filter(held).map(|number| (number, vec![(PID, "other".to_owned())])).collect();
        let looks = self.blocks.borrow().iter().any(|block| block.looks > 0);
        for block in self.blocks.borrow_mut().iter_mut().filter(|block| block.looks > 0) {
            block.looks -= 1;
            block.is_held &= block.looks > 0;
        }
        Ok(Holders { by_block, sharers: looks.then_some(PID).into_iter().collect(), unseen: self.unseen })
    }

    fn has_free_huge_pages(&self) -> bool {
        !self.fragmented
    }

    fn pause(&self, time: Duration) {
        self.elapsed.set(self.elapsed.get() + time);
    }

    fn elapsed(&self) -> Duration {
        self.elapsed.get()
    }
}

fn making<'a>(cache: &'a Simulated, budget: Budget<'a>) -> Result<Making<'a, &'a Simulated>, Error> {
    let (blocks, huge) = (0..cache.blocks.borrow().len() as u64, PageSize::new(HUGE).unwrap());
    Making::new(cache, Path::new("/file"), huge, Effort::Once, budget, blocks)
}

const LATE: Budget<'static> = Budget { users: Users::OncePagesStay, ..Budget::UNLIMITED };
const MIXED: [Lies; 6] = [Lies::Small, Lies::Huge, Lies::Nowhere, Lies::Small, Lies::Huge, Lies::Small];

/// Reclaim takes unmapped pages before every call: new huge blocks are mapped from the touch on.
#[test]
fn reclaim_takes_nothing_that_was_made() {
    let cache = Simulated::of(&MIXED);
    cache.reclaims.set(u32::MAX);
    let mut work = making(&cache, Budget::UNLIMITED).unwrap();
    assert!(work.make().unwrap().is_none());
    assert_eq!(work.now.blocks, [0, 1, 2, 3, 4, 5]);
    assert_eq!(cache.lies(), [Lies::Huge; 6]);
    // Until nobody holds them.
    drop(work);
    assert!(cache.mapped.borrow().is_empty());
    cache.call("").unwrap();
    assert_eq!(cache.lies(), [Lies::Nowhere; 6]);
}

/// Without a hold that reclaim respects, a block is tried again [`PASSES`] times, and the reason is reported.
#[test]
fn blocks_that_are_dropped_again_are_named() {
    let cache = Simulated { takes_mapped: true, ..Simulated::of(&MIXED) };
    cache.reclaims.set(u32::MAX);
    let mut work = making(&cache, Budget::UNLIMITED).unwrap();
    match work.make().unwrap() {
        Some(Refusal::Dropped { blocks: 6, .. }) => {}
        other => panic!("{other:?}"),
    }
    assert_eq!(cache.evictions(), 6 * PASSES as u32);
}

/// A block that was huge when the work began and is lost on the way is made again.
#[test]
fn what_was_huge_and_is_lost_is_made_again() {
    let cache = Simulated { takes_mapped: true, ..Simulated::of(&MIXED) };
    let mut work = making(&cache, Budget::UNLIMITED).unwrap();
    assert_eq!(work.now.blocks, [1, 4]);
    cache.reclaims.set(1);
    assert!(work.make().unwrap().is_none());
    assert_eq!(work.now.blocks, [0, 1, 2, 3, 4, 5]);
    assert_eq!(work.created, (0..6).collect());
}

#[test]
fn who_maps_a_block_keeps_its_pages() {
    for (budget, most) in [(Budget::UNLIMITED, 0), (LATE, 1)] {
        let cache = Simulated::of(&[Lies::Small; 8]).held(&[1, 2, 3, 5, 6]);
        let mut work = making(&cache, budget).unwrap();
        match work.make().unwrap() {
            Some(Refusal::Mapped { processes, blocks: 5, unseen: 0, .. }) => assert_eq!(processes[0].0, PID),
            other => panic!("{other:?}"),
        }
        assert_eq!(work.now.blocks, [0, 4, 7]);
        let blocks = cache.blocks.borrow();
        assert!(blocks.iter().filter(|block| block.is_held).all(|block| block.lies == Lies::Small));
        let evictions: u32 = blocks.iter().filter(|block| block.is_held).map(|block| block.evictions).sum();
        assert_eq!((evictions, cache.looks_for_holders.get()), (most, 2));
    }
}

/// A process that only reads the state of the file maps small blocks for a moment. If it waits for a CPU then, several
/// searches find it.
#[test]
fn a_look_by_another_process_is_waited_for() {
    for budget in [Budget::UNLIMITED, LATE] {
        for looks in 1..=4 {
            let cache = Simulated::of(&[Lies::Small; 5]).held(&[0, 2, 4]);
            [0, 2, 4].into_iter().for_each(|number| cache.change(number, |block| block.looks = looks));
            let mut work = making(&cache, budget).unwrap();
            let refusal = work.make().unwrap();
            assert!(refusal.is_none(), "after {looks} searches: {refusal:?}");
            assert_eq!((cache.lies(), cache.looks_for_holders.get()), (vec![Lies::Huge; 5], looks + 1));
        }
    }
}

/// A search that never ends is given up, and another attempt is not forbidden as long as that process lives.
#[test]
fn a_look_without_end_is_given_up() {
    let cache = Simulated::of(&[Lies::Small; 2]).held(&[1]);
    cache.change(1, |block| block.looks = u32::MAX);
    let mut work = making(&cache, LATE).unwrap();
    match work.make().unwrap() {
        Some(Refusal::Mapped { blocks: 1, .. }) => assert!(work.may_pass()),
        other => panic!("{other:?}"),
    }
    assert_eq!(cache.looks_for_holders.get() as usize, 2 + PAUSES_FOR_LOOKS.len());
}

/// The pauses end with the time of the budget, and the time that they took forbids no attempts for long.
#[test]
fn looks_are_waited_for_within_the_budget() {
    let cache = Simulated::of(&[Lies::Small; 2]).held(&[0, 1]);
    [0, 1].into_iter().for_each(|number| cache.change(number, |block| block.looks = u32::MAX));
    let mut work = making(&cache, Budget { time: Duration::from_millis(50), ..LATE }).unwrap();
    match work.make().unwrap() {
        Some(Refusal::Mapped { blocks: 2, .. }) => assert!(work.may_pass()),
        other => panic!("{other:?}"),
    }
    assert_eq!(cache.elapsed.get(), Duration::from_millis(21));
}

/// Blocks that nobody holds are not made again when the others are.
#[test]
fn only_blocks_of_a_look_are_tried_again() {
    let cache = Simulated { fragmented: true, ..Simulated::of(&[Lies::Small; 4]) }.held(&[3]);
    cache.change(3, |block| block.looks = 3);
    let mut work = making(&cache, Budget::UNLIMITED).unwrap();
    work.make().unwrap();
    let evictions: Vec<u32> = cache.blocks.borrow().iter().map(|block| block.evictions).collect();
    assert_eq!(evictions, [PASSES as u32, PASSES as u32, PASSES as u32, 1]);
}

/// A process that maps blocks after the search and ends before the next one leaves no mark, but the pages have stayed.
#[test]
fn pages_that_stay_do_not_count_as_small_for_good() {
    let cache = Simulated::of(&[Lies::Small; 2]);
    cache.change(1, |block| block.in_hand = u32::MAX);
    let mut work = making(&cache, LATE).unwrap();
    match work.make().unwrap() {
        Some(Refusal::InUse { blocks: 1, .. }) => {}
        other => panic!("{other:?}"),
    }
}

/// Processes that cannot be seen may map every block: after a few the rest is left alone.
#[test]
fn users_that_cannot_be_seen_lose_little() {
    let cache = Simulated { unseen: 4, ..Simulated::of(&[Lies::Small; 20]) }.held(&(0..20).collect::<Vec<_>>());
    let mut work = making(&cache, LATE).unwrap();
    match work.make().unwrap() {
        Some(Refusal::Mapped { processes, blocks: 20, unseen: 4, .. }) => assert!(processes.is_empty()),
        other => panic!("{other:?}"),
    }
    assert_eq!(cache.evictions(), MOST_IN_VAIN as u32);
    assert_eq!(cache.lies(), [Lies::Small; 20]);
}

#[test]
fn pages_that_the_kernel_has_in_hand_are_tried_again() {
    let cache = Simulated::of(&[Lies::Small; 3]);
    cache.change(1, |block| block.in_hand = 2);
    let mut work = making(&cache, LATE).unwrap();
    assert!(work.make().unwrap().is_none());
    assert_eq!(cache.lies(), [Lies::Huge; 3]);
    assert_eq!(cache.evictions(), 5);
}

#[test]
fn fragmented_memory_is_named() {
    for collapses in [false, true] {
        let cache = Simulated { fragmented: true, collapses, ..Simulated::of(&[Lies::Small; 3]) };
        let found = making(&cache, Budget::UNLIMITED).unwrap().make().unwrap();
        assert!(matches!(found, Some(Refusal::Fragmented { blocks: 3, of: 3, .. })), "{found:?}");
    }
}

#[test]
fn what_collapses_is_never_evicted() {
    let cache = Simulated { collapses: true, ..Simulated::of(&MIXED) }.held(&[0, 5]);
    cache.reclaims.set(u32::MAX);
    let mut work = making(&cache, Budget::UNLIMITED).unwrap();
    work.effort = Effort::InPlace;
    assert!(work.make().unwrap().is_none());
    assert_eq!((cache.evictions(), work.now.blocks.len()), (0, 6));
    // If the kernel does not collapse, nothing else is done in place.
    let cache = Simulated::of(&MIXED);
    let mut work = making(&cache, Budget::UNLIMITED).unwrap();
    work.effort = Effort::InPlace;
    assert!(matches!(work.make().unwrap(), Some(Refusal::NotAsked { huge, .. }) if huge == 2 * HUGE));
    assert_eq!((cache.evictions(), cache.lies()), (0, MIXED.to_vec()));
}

/// A running program maps them, so that they could not be evicted.
#[test]
fn blocks_with_pages_in_use_are_collapsed_later() {
    for (times, huge) in [(1, 6), (3, 6), (8, 6), (u32::MAX, 2)] {
        let in_use = Cell::new(times);
        let cache = Simulated { collapses: true, in_use, ..Simulated::of(&MIXED) }.held(&[0, 1, 2, 3, 4, 5]);
        let mut work = making(&cache, Budget::UNLIMITED).unwrap();
        let refusal = work.make().unwrap();
        let is_as_due = match &refusal {
            None => huge == 6,
            Some(refusal) => huge < 6 && matches!(refusal, Refusal::Mapped { blocks: 4, .. }),
        };
        assert!(work.now.blocks.len() == huge && is_as_due, "{times} times: {refusal:?}");
        assert_eq!(work.in_use.len(), 6 - huge);
    }
}

/// The forecast equals the later result, with the same reason for the rest, and until then nothing is changed.
#[test]
fn what_is_foreseen_is_what_is_made() {
    let kind = |refusal: &Option<Refusal>| refusal.as_ref().map(std::mem::discriminant);
    for (collapses, held, sparse) in [
        (false, &[][..], vec![]),
        (false, &[0, 3], vec![]),
        (false, &[0], vec![3]),
        (true, &[0, 3], vec![]),
        (true, &[], vec![3]),
    ] {
        let cache = Simulated { collapses, sparse: sparse.into(), ..Simulated::of(&MIXED) }.held(held);
        let mut work = making(&cache, Budget::UNLIMITED).unwrap();
        work.effort = Effort::Foresee;
        let foreseen = work.foresee(collapses).unwrap();
        assert_eq!((cache.evictions(), cache.lies()), (0, MIXED.to_vec()));
        let mut made = making(&cache, Budget::UNLIMITED).unwrap();
        let refusal = made.make().unwrap();
        assert_eq!((&work.now.blocks, kind(&foreseen)), (&made.now.blocks, kind(&refusal)), "{foreseen:?} {refusal:?}");
    }
    let cache = Simulated::of(&[Lies::Small; 5]);
    let mut work = making(&cache, Budget { bytes: &|| 2 * HUGE, ..LATE }).unwrap();
    assert!(matches!(work.foresee(false).unwrap(), Some(Refusal::OutOfBudget { limit: Limit::Bytes(_), .. })));
    assert_eq!(work.now.blocks, [0, 1]);
}

#[test]
fn no_process_is_looked_for_when_time_is_used_up() {
    let cache = Simulated::of(&[Lies::Small; 3]).held(&[0, 1, 2]);
    let mut work = making(&cache, Budget { time: Duration::ZERO, ..LATE }).unwrap();
    assert!(matches!(work.explain().unwrap(), Refusal::OutOfBudget { limit: Limit::Time(_), .. }));
    assert!(matches!(work.make().unwrap(), Some(Refusal::OutOfBudget { limit: Limit::Time(_), .. })));
    assert_eq!((cache.looks_for_holders.get(), cache.evictions()), (0, 0));
}

#[test]
fn a_budget_of_bytes_counts_evictions() {
    let cache = Simulated::of(&[Lies::Small; 5]);
    let mut work = making(&cache, Budget { bytes: &|| 2 * HUGE, ..LATE }).unwrap();
    match work.make().unwrap() {
        Some(Refusal::OutOfBudget { limit: Limit::Bytes(_), left, .. }) => assert_eq!(left, 3 * HUGE),
        other => panic!("{other:?}"),
    }
    assert_eq!((cache.evictions(), work.now.blocks.as_slice()), (2, &[0, 1][..]));
}

/// After any failing call, the failure is reported or repaired, nothing stays mapped, and other processes keep the
/// blocks that they map.
#[test]
fn each_call_may_fail() {
    let run = |fails| {
        let cache = Simulated { fails, ..Simulated::of(&MIXED) }.held(&[3]);
        cache.reclaims.set(3);
        let made = making(&cache, LATE).and_then(|mut work| work.make());
        assert!(cache.mapped.borrow().is_empty());
        (cache.calls.get(), cache.blocks.borrow()[3].lies, made)
    };
    let (calls, _, made) = run(None);
    assert!(calls > 10 && matches!(made, Ok(Some(Refusal::Mapped { blocks: 1, .. }))), "{calls} calls, {made:?}");
    for fails in 1..=calls {
        let (_, held, made) = run(Some(fails));
        assert_eq!(held, Lies::Small, "call {fails}");
        // A block that could not be collapsed is evicted as the others are.
        assert!(matches!(made, Err(_) | Ok(Some(Refusal::Mapped { blocks: 1, .. }))), "call {fails}: {made:?}");
    }
}

/// A block that is mostly holes is neither collapsed nor read: that would fill the holes.
#[test]
fn sparse_blocks_are_left_alone() {
    for collapses in [false, true] {
        let cache = Simulated { collapses, sparse: vec![0, 3].into(), ..Simulated::of(&MIXED) };
        let mut work = making(&cache, Budget::UNLIMITED).unwrap();
        let refusal = work.make().unwrap().expect("two blocks are left");
        assert!(matches!(refusal, Refusal::Sparse { blocks: 2, .. }), "{refusal}");
        assert_eq!(cache.lies()[0], Lies::Small);
        assert_eq!((work.now.blocks.as_slice(), cache.blocks.borrow()[3].evictions), (&[1, 2, 4, 5][..], 0));
    }
}

/// Its owner may make holes between the first look and the collapse.
#[test]
fn a_block_that_has_become_sparse_is_left_alone() {
    let cache = Simulated { collapses: true, on_tmpfs: true, punched: Some(3).into(), ..Simulated::of(&MIXED) };
    let mut work = making(&cache, Budget::UNLIMITED).unwrap();
    let refusal = work.make().unwrap();
    assert!(matches!(refusal, Some(Refusal::Sparse { blocks: 1, .. })), "{refusal:?}");
    assert_eq!(work.now.blocks, [0, 1, 2, 4, 5]);
}

/// Pages that are collapsed on tmpfs are charged to the caller from then on.
#[test]
fn on_tmpfs_no_more_is_collapsed_than_the_budget_allows() {
    let cache = Simulated { collapses: true, on_tmpfs: true, ..Simulated::of(&[Lies::Small; 5]) };
    let budget = Budget { bytes: &|| 2 * HUGE, ..Budget::UNLIMITED };
    let mut work = making(&cache, budget).unwrap();
    let refusal = work.make().unwrap();
    assert!(matches!(refusal, Some(Refusal::OutOfBudget { limit: Limit::Bytes(_), .. })), "{refusal:?}");
    assert_eq!(work.now.blocks, [0, 1]);
}
