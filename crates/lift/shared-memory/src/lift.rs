//! The lift: block by block, within a budget, until too many blocks are slow.

use crate::plan::{Machine, Plan, Refused, Work, next_view, offsets, refuse, refused_contents};
use crate::rounds::{Left, Round, Rounds};
use crate::segment::{Held, Segment, View};
use crate::{Fill, Reason};
use address_space::{AddressRange, PageSize};
use core::time::Duration;
use std::collections::VecDeque;

/// Bytes of blocks between two checks of free memory; at least one block.
const AT_ONCE: u64 = 32 << 20;
/// Blocks without a free huge page, one after the other, after which a pass over a segment ends: each may take the
/// kernel long.
const MOST_FRAGMENTED: usize = 8;
/// Slow blocks after which all is left.
const MOST_SLOW: u32 = 3;
/// Number of other blocks that outweigh a slow one: a loaded machine delays single blocks.
const FAST_FOR_ONE_SLOW: u32 = 16;

/// A call that collapses a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Collapse {
    /// The kernel's answer.
    pub result: Result<(), Refusal>,
    /// Time in the kernel: the program waits no longer if it needs the block.
    pub took: Duration,
}

/// The kernel's operations that a lift needs.
pub trait Kernel {
    /// Prepares a segment before its first block.
    ///
    /// # Errors
    /// The reason why nothing is done in it.
    fn begin(&mut self, _segment: usize) -> Result<(), Reason> {
        Ok(())
    }
    /// Reverts the changes of [`Kernel::begin`].
    ///
    /// # Errors
    /// The reason for the failure.
    fn end(&mut self, _segment: usize) -> Result<(), Reason> {
        Ok(())
    }
    /// Checks that these addresses still show the segment at this offset, in the process that was chosen.
    fn shows(&mut self, segment: usize, view: &View, addresses: AddressRange) -> Shown;
    /// Checks that memory of machine and cgroup suffices for `bytes` of huge pages in a process.
    ///
    /// # Errors
    /// The reason why nothing more is done in this segment.
    fn has_memory(&mut self, pid: i32, bytes: u64) -> Result<(), Reason>;
    /// Counts bytes that a block has added to the memory of the process that was checked last.
    fn added(&mut self, _bytes: u64) {}
    /// Checks that the tmpfs of a segment has room for `holes`.
    ///
    /// # Errors
    /// The reason why the block is left alone.
    fn has_room(&mut self, segment: usize, holes: u64) -> Result<(), Reason>;
    /// The data that a block holds now.
    ///
    /// # Errors
    /// Why it cannot be counted, in words.
    fn held(&mut self, segment: usize, block: u64) -> Result<Held, String>;
    /// Collapses one block.
    fn collapse(&mut self, pid: i32, addresses: AddressRange) -> Collapse;
    /// Compacts the machine's memory, so that free pages form huge ones. True if that was done.
    fn compact(&mut self) -> bool {
        false
    }
    /// Time since the beginning.
    fn elapsed(&mut self) -> Duration;
    /// Lets time pass.
    fn pause(&mut self, time: Duration);
}

/// The present contents of a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shown {
    /// The segment.
    Segment,
    /// Something else, or nothing.
    Other,
    /// The process has ended, or does not answer.
    Ended,
}

/// The kernel's reason to refuse one block (madvise(2)).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// `EAGAIN`: pages are in use at the moment.
    Busy,
    /// `ENOMEM`: no free huge page.
    NoPage,
    /// `EBUSY`: the cgroup is not charged.
    NotCharged,
    /// `ESRCH`: the process has ended. Or it does not answer.
    Ended,
    /// `EPERM` or `EACCES`.
    NotPermitted,
    /// Another one, in words: `EINVAL` if the block cannot be collapsed.
    Other(String),
}

/// Limits of a lift.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// Time after which no further block is begun.
    pub all: Duration,
    /// Time that a block may take; a few slower ones end the lift.
    pub block: Duration,
    /// Time that blocks without a free huge page may take, all together, with compaction and pauses.
    pub without_page: Duration,
    /// Time that tries after the first one may take for blocks that are in use, in all segments together, with pauses. Each
    /// segment has `tries` rounds in any case.
    pub in_use: Duration,
    /// Number of tries of a block for which no huge page is free. Also the number of rounds over a segment, one after the other,
    /// that may lift next to nothing: for lack of huge pages, or because blocks are in use.
    pub tries: u32,
    /// The blocks with holes that are filled.
    pub fill: Fill,
    /// Most bytes that are added: holes that are filled, and swapped data that is read back.
    pub most: Option<u64>,
}

/// The outcome of one segment.
#[derive(Clone, Debug, Default)]
pub struct Lifted {
    /// Bytes of holes that were filled.
    pub filled: u64,
    /// Bytes of swapped data that were read back.
    pub read_back: u64,
    /// Planned blocks that are left alone, by reason.
    pub refused: Vec<Refused>,
}

/// The outcome of a lift.
#[derive(Clone, Debug, Default)]
pub struct InPlaceOutcome {
    /// One for each segment.
    pub segments: Vec<Lifted>,
    /// Time of the slowest block.
    pub worst: Duration,
}

/// Lifts the planned blocks.
pub fn lift(
    segments: &[Segment],
    plan: &Plan,
    machine: &Machine,
    budget: &Budget,
    kernel: &mut impl Kernel,
) -> InPlaceOutcome {
    let mut lifter = Lifter {
        machine,
        budget,
        kernel,
        worst: Duration::ZERO,
        slow: 0,
        fast: 0,
        added: 0,
        without_page: Duration::ZERO,
        in_use: Duration::ZERO,
        checked: (0, 0),
        remaining: 0,
        stopped: None,
    };
    let mut outcome = InPlaceOutcome::default();
    for (index, (segment, planned)) in segments.iter().zip(&plan.segments).enumerate() {
        outcome.segments.push(lifter.segment(index, segment, &planned.work));
    }
    outcome.worst = lifter.worst;
    outcome
}

struct Lifter<'a, K> {
    machine: &'a Machine,
    budget: &'a Budget,
    kernel: &'a mut K,
    worst: Duration,
    /// Slow blocks, less those that other blocks outweigh.
    slow: u32,
    /// Blocks that were not slow since the last change of `slow`.
    fast: u32,
    /// Bytes that were added, in all segments.
    added: u64,
    /// Time that was spent on blocks without a free huge page.
    without_page: Duration,
    /// Time that was spent on trying blocks again that were in use.
    in_use: Duration,
    /// The process whose memory was checked last, and the number of blocks for which it suffices.
    checked: (i32, u64),
    /// Number of blocks of this try that are not done.
    remaining: u64,
    /// Why nothing more is done at all.
    stopped: Option<Reason>,
}

/// A planned block that is not done.
struct Waiting {
    work: Work,
    /// Number of tries at which it was in use.
    in_use: u32,
    /// Number of tries at which no huge page was free.
    without_page: u32,
    /// Why the last one failed.
    failed: Option<Failed>,
}

/// Why a try failed, if a later one may succeed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Failed {
    InUse,
    NoPage,
}

impl Waiting {
    const fn new(work: Work) -> Self {
        Self { work, in_use: 0, without_page: 0, failed: None }
    }

    /// Counts a try that failed.
    fn fails(&mut self, why: Failed) {
        self.failed = Some(why);
        match why {
            Failed::InUse => self.in_use += 1,
            Failed::NoPage => self.without_page += 1,
        }
    }

    fn is_in_use(&self) -> bool {
        self.failed == Some(Failed::InUse)
    }
}

/// The result of one block.
enum Done {
    Lifted {
        /// Its earlier contents.
        held: Held,
    },
    /// It may succeed later.
    Later(Failed),
    Refused(Reason),
    /// Nothing more is done in the segment.
    Ends(Reason),
    /// The block may still be lifted through another mapping.
    Gone {
        /// The whole process has ended.
        ended: bool,
    },
}

/// Blocks between two checks of free memory.
fn at_once(huge: PageSize) -> u64 {
    (AT_ONCE / huge.bytes()).max(1)
}

impl<K: Kernel> Lifter<'_, K> {
    fn segment(&mut self, index: usize, segment: &Segment, work: &[Work]) -> Lifted {
        let mut lifted = Lifted::default();
        if work.is_empty() {
            return lifted;
        }
        match self.stopped.clone().map_or_else(|| self.kernel.begin(index), Err) {
            Ok(()) => {
                self.blocks(index, segment, work, &mut lifted);
                if let Err(reason) = self.kernel.end(index) {
                    refuse(&mut lifted.refused, reason, 0, 0);
                }
            }
            Err(reason) => self.leave(&mut lifted, &reason, work),
        }
        lifted
    }

    fn blocks(&mut self, index: usize, segment: &Segment, work: &[Work], lifted: &mut Lifted) {
        let mut waiting: VecDeque<_> = work.iter().map(|work| Waiting::new(*work)).collect();
        let (mut gone, mut rounds) =
            (vec![false; segment.views.len()], Rounds::new(self.budget.tries, self.budget.in_use));
        self.checked = (0, 0);
        loop {
            let (round, ends) = self.round(index, segment, &mut waiting, &mut gone, &rounds, lifted);
            rounds.add(round);
            let ends = ends.or(rounds.lack_pages().then_some(Reason::Fragmented));
            if let Some(reason) = ends {
                // A lack of huge pages is no reason for blocks that were in use.
                if reason == Reason::Fragmented {
                    let left = rounds.leaves_blocks_in_use(self.in_use).unwrap_or(Left::NoProgress);
                    self.leave_blocks_in_use(&mut waiting, left, lifted);
                }
                waiting.iter().for_each(|waits| self.leave(lifted, &reason, &[waits.work]));
                return;
            }
            if let Some(left) = rounds.leaves_blocks_in_use(self.in_use) {
                self.leave_blocks_in_use(&mut waiting, left, lifted);
            }
            if waiting.is_empty() {
                return;
            }
            self.between(&mut rounds, round);
        }
    }

    /// Compacts memory if it lacks huge pages, or lets time pass.
    fn between(&mut self, rounds: &mut Rounds, last: Round) {
        if last.is_cut && self.compact() {
            return;
        }
        let begin = self.kernel.elapsed();
        self.kernel.pause(rounds.pause(last));
        if last.lacks_pages {
            self.note_no_page(begin);
        }
        if last.in_use > 0 {
            self.note_in_use(begin);
        }
    }

    fn leave_blocks_in_use(&self, waiting: &mut VecDeque<Waiting>, left: Left, lifted: &mut Lifted) {
        waiting.retain(|waits| {
            if waits.is_in_use() {
                self.leave(lifted, &self.busy(waits, left), &[waits.work]);
            }
            !waits.is_in_use()
        });
    }

    /// The reason for a block that was in use.
    fn busy(&self, waits: &Waiting, left: Left) -> Reason {
        let seconds = (left == Left::TimeIsUp).then_some(self.budget.in_use.as_secs());
        Reason::Busy { tries: waits.in_use, seconds }
    }

    /// Tries each block once. Those that may succeed later are left, behind those that were not tried. Also returns why nothing
    /// more is done in the segment.
    fn round(
        &mut self,
        index: usize,
        segment: &Segment,
        waiting: &mut VecDeque<Waiting>,
        gone: &mut [bool],
        earlier: &Rounds,
        lifted: &mut Lifted,
    ) -> (Round, Option<Reason>) {
        let (mut round, mut ends, mut later, mut fragmented) = (Round::default(), None, Vec::new(), 0);
        let most_fragmented = MOST_FRAGMENTED.min(waiting.len());
        while !round.is_cut
            && ends.is_none()
            && let Some(mut waits) = waiting.pop_front()
        {
            if waits.is_in_use()
                && let Some(left) = earlier.leaves_blocks_in_use(self.in_use)
            {
                self.leave(lifted, &self.busy(&waits, left), &[waits.work]);
                continue;
            }
            self.remaining = waiting.len() as u64 + 1;
            let (begin, was_in_use) = (self.kernel.elapsed(), waits.is_in_use());
            let done = self.through_any(index, segment, &mut waits.work, gone);
            if was_in_use {
                self.note_in_use(begin);
            }
            let has_no_page = matches!(done, Done::Later(Failed::NoPage));
            fragmented = if has_no_page { fragmented + 1 } else { 0 };
            match done {
                Done::Lifted { held } => {
                    round.lifted += 1;
                    lifted.filled += held.holes(self.machine.huge);
                    lifted.read_back += held.swapped;
                    self.added += held.adds(self.machine.huge);
                }
                Done::Later(failed) => {
                    waits.fails(failed);
                    if failed == Failed::InUse {
                        round.in_use += 1;
                        round.in_vain += self.kernel.elapsed().saturating_sub(begin);
                    }
                    if waits.without_page < self.budget.tries.max(1) {
                        later.push(waits);
                    } else {
                        self.leave(lifted, &Reason::Fragmented, &[waits.work]);
                    }
                }
                Done::Refused(reason) => self.leave(lifted, &reason, &[waits.work]),
                Done::Gone { .. } => self.leave(lifted, &Reason::Gone, &[waits.work]),
                Done::Ends(reason) => {
                    ends = Some(reason);
                    waiting.push_front(waits);
                }
            }
            if has_no_page {
                round.lacks_pages = true;
                self.note_no_page(begin);
                if self.without_page >= self.budget.without_page {
                    ends = Some(Reason::Fragmented);
                }
            }
            round.is_cut = fragmented >= most_fragmented;
        }
        waiting.extend(later);
        (round, ends)
    }

    /// Compacts memory if that is possible.
    fn compact(&mut self) -> bool {
        let begin = self.kernel.elapsed();
        let compacted = self.kernel.compact();
        self.note_no_page(begin);
        compacted
    }

    fn note_no_page(&mut self, begin: Duration) {
        self.without_page += self.kernel.elapsed().saturating_sub(begin);
    }

    fn note_in_use(&mut self, begin: Duration) {
        self.in_use += self.kernel.elapsed().saturating_sub(begin);
    }

    fn leave(&self, lifted: &mut Lifted, reason: &Reason, left: &[Work]) {
        for work in left {
            refuse(&mut lifted.refused, reason.clone(), 1, work.held.data());
        }
    }

    /// Tries a block once, through its mapping or a later one if that is gone. Earlier mappings are gone or do not fit,
    /// so a block checks each mapping once in all its tries.
    fn through_any(&mut self, index: usize, segment: &Segment, item: &mut Work, gone: &mut [bool]) -> Done {
        loop {
            if self.kernel.elapsed() >= self.budget.all {
                self.stopped.get_or_insert(Reason::TimeIsUp { seconds: self.budget.all.as_secs() });
            }
            if let Some(reason) = &self.stopped {
                return Done::Ends(reason.clone());
            }
            let Some(view) = next_view(segment, self.machine, item.block, item.view, gone) else {
                return Done::Gone { ended: false };
            };
            item.view = view;
            let done = self.block(index, &segment.views[view], *item);
            match &done {
                Done::Gone { ended: false } => gone[view] = true,
                Done::Gone { ended: true } => {
                    let pid = segment.views[view].pid;
                    let all = segment.views.iter().zip(gone.iter_mut()).filter(|(view, _)| view.pid == pid);
                    all.for_each(|(_, gone)| *gone = true);
                }
                Done::Ends(reason) if reason.ends_all() => {
                    self.stopped = Some(reason.clone());
                    return done;
                }
                _ => return done,
            }
        }
    }

    fn block(&mut self, index: usize, view: &View, work: Work) -> Done {
        let Some(addresses) = offsets(work.block, self.machine.huge).and_then(|offsets| view.addresses(&offsets))
        else {
            return Done::Gone { ended: false };
        };
        match self.kernel.shows(index, view, addresses) {
            Shown::Segment => {}
            shown => return Done::Gone { ended: shown == Shown::Ended },
        }
        if let Err(reason) = self.check_memory(view.pid) {
            return Done::Ends(reason);
        }
        let held = match self.check_contents(index, work.block) {
            Ok(held) => held,
            Err(reason) => return Done::Refused(reason),
        };
        let collapse = self.kernel.collapse(view.pid, addresses);
        // The kernel locks a block only after it has found a page for it.
        if collapse.result != Err(Refusal::NoPage) {
            self.note_time(collapse.took);
        }
        match collapse.result {
            Ok(()) => {
                self.kernel.added(held.adds(self.machine.huge));
                Done::Lifted { held }
            }
            Err(Refusal::Busy) => Done::Later(Failed::InUse),
            Err(Refusal::NoPage) => Done::Later(Failed::NoPage),
            Err(Refusal::NotCharged) => Done::Refused(Reason::NotCharged),
            Err(Refusal::Ended) => Done::Gone { ended: true },
            Err(Refusal::NotPermitted) => Done::Ends(Reason::NotPermitted),
            Err(Refusal::Other(error)) => match self.kernel.held(index, work.block) {
                Ok(held) if held.data() == 0 => Done::Refused(Reason::Changed),
                _ => Done::Refused(Reason::Refused { error }),
            },
        }
    }

    /// Checks memory before the first block of a process, and again after some blocks.
    fn check_memory(&mut self, pid: i32) -> Result<(), Reason> {
        if self.checked.0 != pid || self.checked.1 == 0 {
            let blocks = at_once(self.machine.huge).min(self.remaining).max(1);
            self.kernel.has_memory(pid, blocks * self.machine.huge.bytes())?;
            self.checked = (pid, blocks);
        }
        self.checked.1 -= 1;
        Ok(())
    }

    /// Reads the contents of a block: since it was planned, the program may have emptied it, or the kernel swapped it
    /// out.
    fn check_contents(&mut self, index: usize, block: u64) -> Result<Held, Reason> {
        let held = self.kernel.held(index, block).map_err(|why| Reason::Unreadable { why })?;
        if held.data() == 0 {
            return Err(Reason::Changed);
        }
        refused_contents(held, self.machine, self.budget.fill)?;
        let (adds, holes) = (held.adds(self.machine.huge), held.holes(self.machine.huge));
        if let Some(most) = self.budget.most.filter(|most| self.added.saturating_add(adds) > *most) {
            return Err(Reason::MostMemory { most });
        }
        if holes > 0 {
            self.kernel.has_room(index, holes)?;
        }
        Ok(held)
    }

    fn note_time(&mut self, time: Duration) {
        self.worst = self.worst.max(time);
        if time > self.budget.block {
            (self.slow, self.fast) = (self.slow + 1, 0);
        } else {
            self.fast += 1;
        }
        if self.fast >= FAST_FOR_ONE_SLOW {
            (self.slow, self.fast) = (self.slow.saturating_sub(1), 0);
        }
        if self.slow >= MOST_SLOW {
            self.stopped = Some(Reason::Slow { milliseconds: self.worst.as_millis() as u64 });
        }
    }
}
