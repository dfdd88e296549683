//! The lift: block by block, within a budget, and nothing more once the kernel says that it hurts.

use crate::plan::{Machine, Plan, Refused, Work, offsets, other_view, refuse};
use crate::segment::{Segment, View};
use crate::{Reason, most_holes};
use address_space::AddressRange;
use core::time::Duration;

/// Blocks between two checks of free memory and of the mapping.
const AT_ONCE: usize = 16;
/// Blocks without a free huge page, one after the other, after which a segment is left: each may take the kernel long.
const MOST_FRAGMENTED: u32 = 8;
/// Slow blocks after which all is left.
const MOST_SLOW: u32 = 3;
/// The first pause before blocks that were in use are tried again. It doubles.
const FIRST_PAUSE: Duration = Duration::from_millis(20);

/// The kernel's operations that a lift needs.
pub trait Kernel {
    /// Checks that these addresses still show the segment at this offset, and that memory of machine and cgroup suffices for
    /// `bytes` of huge pages.
    ///
    /// # Errors
    /// The reason why nothing more is done through this mapping.
    fn ready(&mut self, segment: usize, view: &View, addresses: AddressRange, bytes: u64) -> Result<(), Reason>;
    /// Bytes of data that a block holds now; 0 where that is not known any more.
    fn data(&mut self, segment: usize, block: u64) -> u64;
    /// Collapses one block.
    ///
    /// # Errors
    /// The kernel's.
    fn collapse(&mut self, pid: i32, addresses: AddressRange) -> Result<(), Refusal>;
    /// Time since the beginning.
    fn elapsed(&mut self) -> Duration;
    /// Lets time pass.
    fn pause(&mut self, time: Duration);
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
    /// `ESRCH`: the process has ended.
    Ended,
    /// `EPERM`.
    NotPermitted,
    /// Another one, in words: `EINVAL` where the block cannot be collapsed.
    Other(String),
}

/// Limits of a lift.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// Time after which no further block is begun.
    pub all: Duration,
    /// Time that a block may take; a few slower ones end the lift.
    pub block: Duration,
    /// How often a block is tried that is in use, or for which no huge page is free.
    pub tries: u32,
    /// Fill blocks however many holes they have.
    pub fill: bool,
    /// Most bytes of holes that are filled.
    pub most: Option<u64>,
}

/// The outcome of one segment.
#[derive(Clone, Debug, Default)]
pub struct Lifted {
    /// Number of blocks that the kernel has put on huge pages.
    pub blocks: u64,
    /// Bytes of holes that were filled.
    pub filled: u64,
    /// Planned blocks that are left alone, by reason.
    pub refused: Vec<Refused>,
}

/// The outcome of a lift.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// One for each segment.
    pub segments: Vec<Lifted>,
    /// Time of the slowest block.
    pub worst: Duration,
}

/// Lifts what is planned.
pub fn lift(
    segments: &[Segment],
    plan: &Plan,
    machine: &Machine,
    budget: &Budget,
    kernel: &mut impl Kernel,
) -> Outcome {
    let mut lifter = Lifter { machine, budget, kernel, worst: Duration::ZERO, slow: 0, filled: 0, stopped: None };
    let mut outcome = Outcome::default();
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
    slow: u32,
    filled: u64,
    /// Why nothing more is done at all.
    stopped: Option<Reason>,
}

/// How one block went.
enum Done {
    Lifted {
        filled: u64,
    },
    /// It may go well later.
    Later(Reason),
    Refused(Reason),
}

/// Why a pass over blocks ended early, and at which mapping.
struct Stop {
    reason: Reason,
    view: usize,
}

impl<K: Kernel> Lifter<'_, K> {
    fn segment(&mut self, index: usize, segment: &Segment, work: &[Work]) -> Lifted {
        let (mut lifted, mut waiting, mut gone) = (Lifted::default(), work.to_vec(), Vec::new());
        let (mut tries, mut pause) = (1, FIRST_PAUSE);
        loop {
            let is_last = tries >= self.budget.tries;
            let (left, stop) = self.pass(index, segment, (&waiting, is_last), &mut lifted);
            waiting = left;
            match stop {
                Some(Stop { reason: Reason::Gone, view }) => {
                    gone.push(view);
                    waiting = self.redirected(segment, &waiting, &gone, &mut lifted);
                }
                Some(stop) => {
                    self.leave(&mut lifted, &stop.reason, &waiting);
                    return lifted;
                }
                None if waiting.is_empty() => return lifted,
                None => {
                    self.kernel.pause(pause);
                    (tries, pause) = (tries + 1, pause * 2);
                }
            }
        }
    }

    /// Returns the same blocks through mappings that are not gone.
    fn redirected(&self, segment: &Segment, left: &[Work], gone: &[usize], lifted: &mut Lifted) -> Vec<Work> {
        let mut kept = Vec::new();
        for work in left {
            match other_view(segment, self.machine, work.block, gone) {
                Some(view) => kept.push(Work { view, ..*work }),
                None => self.leave(lifted, &Reason::Gone, &[*work]),
            }
        }
        kept
    }

    fn leave(&self, lifted: &mut Lifted, reason: &Reason, left: &[Work]) {
        for work in left {
            refuse(&mut lifted.refused, reason.clone(), 1, self.machine.huge.bytes() - work.adds);
        }
    }

    /// Tries each block once. Returns those that are left, and why nothing more is done through this mapping. In the last pass
    /// what may go well later is refused.
    fn pass(
        &mut self,
        index: usize,
        segment: &Segment,
        (work, is_last): (&[Work], bool),
        lifted: &mut Lifted,
    ) -> (Vec<Work>, Option<Stop>) {
        let (mut left, mut fragmented, mut at) = (Vec::new(), 0, 0);
        for batch in work.chunk_by(|a, b| a.view == b.view).flat_map(|run| run.chunks(AT_ONCE)) {
            let view = batch[0].view;
            let mut stop = self.may_go_on(index, &segment.views[view], batch).err();
            for item in batch {
                if stop.is_some() {
                    break;
                }
                let done = self.block(index, &segment.views[view], *item);
                fragmented = if matches!(done, Done::Later(Reason::Fragmented)) { fragmented + 1 } else { 0 };
                stop = (fragmented >= MOST_FRAGMENTED).then_some(Reason::Fragmented);
                match done {
                    // The block may still be lifted through another mapping.
                    Done::Refused(Reason::Gone) => {
                        stop = Some(Reason::Gone);
                        break;
                    }
                    Done::Later(_) if !is_last => left.push(*item),
                    Done::Later(reason) | Done::Refused(reason) => self.refused(&reason, item, lifted),
                    Done::Lifted { filled } => {
                        lifted.blocks += 1;
                        lifted.filled += filled;
                        self.filled += filled;
                    }
                }
                at += 1;
                stop = stop.or_else(|| self.stopped.clone());
            }
            if let Some(reason) = stop {
                left.extend_from_slice(&work[at..]);
                return (left, Some(Stop { reason, view }));
            }
        }
        (left, None)
    }

    fn refused(&mut self, reason: &Reason, item: &Work, lifted: &mut Lifted) {
        self.leave(lifted, reason, &[*item]);
        if reason.ends_all() {
            self.stopped = Some(reason.clone());
        }
    }

    fn may_go_on(&mut self, index: usize, view: &View, batch: &[Work]) -> Result<(), Reason> {
        if let Some(reason) = &self.stopped {
            return Err(reason.clone());
        }
        let addresses = |work: Option<&Work>| self.addresses(view, work?.block);
        let (Some(first), Some(last)) = (addresses(batch.first()), addresses(batch.last())) else {
            return Err(Reason::Gone);
        };
        let bytes = batch.len() as u64 * self.machine.huge.bytes();
        let ready = self.kernel.ready(index, view, AddressRange::new(first.start(), last.end()), bytes);
        self.stopped = ready.as_ref().err().filter(|reason| reason.ends_all()).cloned();
        ready
    }

    fn addresses(&self, view: &View, block: u64) -> Option<AddressRange> {
        view.addresses(&offsets(block, self.machine.huge)?)
    }

    fn block(&mut self, index: usize, view: &View, work: Work) -> Done {
        let begin = self.kernel.elapsed();
        if begin >= self.budget.all {
            return Done::Refused(Reason::TimeIsUp { seconds: self.budget.all.as_secs() });
        }
        // The program may have emptied it since it was planned.
        let data = self.kernel.data(index, work.block);
        let adds = self.machine.huge.bytes().saturating_sub(data);
        let Some(addresses) = self.addresses(view, work.block).filter(|_| data > 0) else {
            return Done::Refused(Reason::Changed);
        };
        if adds > most_holes(self.machine.huge) && !self.budget.fill {
            return Done::Refused(Reason::Holes { would_add: adds });
        }
        if let Some(most) = self.budget.most.filter(|most| self.filled + adds > *most) {
            return Done::Refused(Reason::MostMemory { most });
        }
        let collapsed = self.kernel.collapse(view.pid, addresses);
        let took = self.kernel.elapsed().saturating_sub(begin);
        self.note_time(took);
        match collapsed {
            Ok(()) => Done::Lifted { filled: adds },
            Err(Refusal::Busy) => Done::Later(Reason::Busy { tries: self.budget.tries }),
            Err(Refusal::NoPage) => Done::Later(Reason::Fragmented),
            Err(Refusal::NotCharged) => Done::Refused(Reason::NotCharged),
            Err(Refusal::Ended) => Done::Refused(Reason::Gone),
            Err(Refusal::NotPermitted) => Done::Refused(Reason::NotPermitted),
            Err(Refusal::Other(_)) if self.kernel.data(index, work.block) == 0 => Done::Refused(Reason::Changed),
            Err(Refusal::Other(error)) => Done::Refused(Reason::Refused { error }),
        }
    }

    fn note_time(&mut self, time: Duration) {
        self.worst = self.worst.max(time);
        self.slow += u32::from(time > self.budget.block);
        if self.slow >= MOST_SLOW {
            self.stopped = Some(Reason::Slow { milliseconds: self.worst.as_millis() as u64 });
        }
    }
}
