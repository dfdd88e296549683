//! Shared and anonymous memory of running programs: what a lift would do and cost, and the lift in place, from outside.
//!
//! Nothing is stopped, and nothing is executed in the programs: the kernel collapses blocks by `process_madvise`. Processes that
//! share a segment are one family: each segment is read once, and lifted once. If a program has switched transparent
//! huge pages off for itself, one of its threads makes two calls, which suspend that for private memory. A process that stops
//! answering is left out.

mod amounts;
mod asking;
mod before;
mod cgroup;
mod compaction;
mod contents;
mod gather;
mod growth;
mod kernel;
mod private;
mod report;
mod sharers;
mod tables;

pub use amounts::InPlaceAmounts;
pub use asking::SkippedProcess;
pub use before::{Expectation, expectation};
pub use growth::{Growing, Rest, added, newly_huge};
pub use report::{InPlaceReport, InPlaceReports, LeftAlone, SegmentReport};

use crate::SessionError;
use crate::running::{Chosen, await_end, in_own_thread};
use asking::Asking;
use gather::{Family, Looking, machine};
use kernel::{Live, Rooms};
use options::Kind;
use report::Before;
use serde::Serialize;
use shared_memory::{Budget, Fill, Machine, Plan, Policy, lift, plan_within};
use sharers::Sharers;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time after which no further block is begun.
const MOST_TIME: Duration = Duration::from_secs(600);
/// Time that one MiB of a block may take: usually 0.5 to 10 ms. A few blocks that take longer end the lift.
const MOST_TIME_PER_MIB: Duration = Duration::from_millis(250);
/// Time that blocks without a free huge page may take in a lift for which a user waits.
const MOST_TIME_WITHOUT_PAGE: Duration = Duration::from_secs(30);
/// Time that such blocks may take in other lifts, which are repeated.
const LESS_TIME_WITHOUT_PAGE: Duration = Duration::from_secs(1);
/// Time that blocks in use may take after their first try in a lift for which a user waits, as long as rounds of tries lift some.
const MOST_TIME_IN_USE: Duration = Duration::from_secs(60);
/// Time that such blocks may take in other lifts.
const LESS_TIME_IN_USE: Duration = Duration::from_secs(5);
/// Number of tries of a block without a free huge page, and of rounds in a row that may lift next to nothing.
const TRIES: u32 = 6;
/// Time for counting the contents of all segments in a lift for which a user waits.
const MOST_TIME_COUNTING: Duration = Duration::from_secs(30);
/// Time for that in plans, and in other lifts, which continue with the block at which the last count ended.
const LESS_TIME_COUNTING: Duration = Duration::from_secs(10);

/// Memory that is lifted in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum InPlace {
    /// [`Kind::Shared`].
    Shared,
    /// [`Kind::Anon`].
    Anonymous,
    /// [`Kind::Jit`].
    Jit,
}

impl InPlace {
    /// All.
    pub const ALL: [Self; 3] = [Self::Shared, Self::Anonymous, Self::Jit];

    /// The kind by which a user chooses it.
    pub const fn kind(self) -> Kind {
        match self {
            Self::Shared => Kind::Shared,
            Self::Anonymous => Kind::Anon,
            Self::Jit => Kind::Jit,
        }
    }
}

/// Options of a lift in place.
#[derive(Clone, Copy, Debug)]
pub struct InPlaceOptions<'a> {
    /// Kind of memory.
    pub memory: InPlace,
    /// The property that the processes must have.
    pub chosen: Chosen<'a>,
    /// The blocks with holes that are filled.
    pub fill: Fill,
    /// The break (brk(2)) counts as anonymous memory. A usual lift has it as the heap.
    pub with_break: bool,
    /// Most bytes that are added: holes that are filled, and swapped data that is read back.
    pub most: Option<u64>,
}

impl InPlaceOptions<'_> {
    /// The usual lift of this memory.
    pub const fn of(memory: InPlace) -> Self {
        Self { memory, chosen: Chosen::ByNumber, fill: Fill::Few, with_break: false, most: None }
    }
}

/// Returns the plan of a lift of some processes' memory in place, and changes nothing.
///
/// # Errors
/// No process can be read.
pub fn plan_in_place(pids: &[i32], options: InPlaceOptions<'_>) -> Result<InPlaceReport, SessionError> {
    let prepared = Prepared::new(pids, options, LESS_TIME_COUNTING, &mut Rooms::default(), &mut Asking::default())?;
    let before = prepared.before(options.memory, true);
    Ok(before.planned(&prepared.family.segments, &prepared.plan))
}

/// Lifts memory of some processes in place.
///
/// # Errors
/// No process can be read. Refusals by the kernel are in the report.
pub fn lift_in_place(pids: &[i32], options: InPlaceOptions<'_>) -> Result<InPlaceReport, SessionError> {
    lift_within(pids, options, &mut Rooms::default(), Turn::Only).map(|(report, _)| report)
}

/// As [`lift_in_place`], for a user who waits: it looks longer for free huge pages, and may compact memory.
///
/// # Errors
/// As for [`lift_in_place`].
pub(crate) fn lift_for_user(pids: &[i32], options: InPlaceOptions<'_>) -> Result<InPlaceReport, SessionError> {
    lift_within(pids, options, &mut Rooms::that_may_compact(), Turn::First).map(|(report, _)| report)
}

/// Lifts of the same memory, one after the other. Together they take at most half of the room beside the programs' own memory.
pub(crate) struct RepeatedLift(Rooms);

impl RepeatedLift {
    /// Before the first lift.
    pub fn begin() -> Self {
        Self(Rooms::that_may_compact())
    }

    /// Lifts memory of some processes.
    ///
    /// # Errors
    /// As for [`lift_in_place`].
    pub fn lift(&mut self, pids: &[i32], options: InPlaceOptions<'_>) -> Result<InPlaceReport, SessionError> {
        lift_within(pids, options, &mut self.0, Turn::Later).map(|(report, _)| report)
    }
}

/// The place of a lift among all lifts of the same memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    /// Nobody waits for it.
    Only,
    /// The first one, for which a user waits.
    First,
    /// One that lifts what has filled since the last.
    Later,
}

/// Lifts memory in place, as one of several lifts. `rooms` are those that earlier lifts have found. Also returns the time spent
/// on reading mappings and counting contents.
fn lift_within(
    pids: &[i32],
    options: InPlaceOptions<'_>,
    rooms: &mut Rooms,
    turn: Turn,
) -> Result<(InPlaceReport, Duration), SessionError> {
    let (begin, mut asking) = (Instant::now(), Asking::default());
    let waits = turn == Turn::First;
    let counting = if waits { MOST_TIME_COUNTING } else { LESS_TIME_COUNTING };
    let prepared = Prepared::new(pids, options, counting, rooms, &mut asking)?;
    let looking = begin.elapsed().saturating_sub(asking.waited());
    let before = prepared.before(options.memory, turn != Turn::Later);
    let Prepared { machine, family, plan, .. } = prepared;
    let block = MOST_TIME_PER_MIB * (machine.huge.bytes() >> 20).max(1) as u32;
    let budget = Budget {
        all: MOST_TIME,
        block,
        without_page: if waits { MOST_TIME_WITHOUT_PAGE } else { LESS_TIME_WITHOUT_PAGE },
        in_use: if waits { MOST_TIME_IN_USE } else { LESS_TIME_IN_USE },
        tries: TRIES,
        fill: options.fill,
        most: options.most,
    };
    let mut work = || {
        let begin = Instant::now();
        let mut live = Live::new(&family, machine.huge, begin, rooms);
        let outcome = lift(&family.segments, &plan, &machine, &budget, &mut live);
        let (suspended, tracer, took) = (live.suspended(), live.tracer(), begin.elapsed());
        let mut skipped = family.skipped.clone();
        live.add_silent(&mut skipped);
        // The thread that may still trace a program ends with it.
        drop(live);
        if let Some(tracer) = tracer {
            await_end(tracer);
        }
        Ok((outcome, suspended, skipped, took))
    };
    // The signals that report stops must not reach this thread.
    let (outcome, suspended, skipped, took) = if family.off.is_empty() { work() } else { in_own_thread(work) }?;
    let (begin, waited) = (Instant::now(), asking.waited());
    let mut report = before.lifted(&family.segments, &plan, &outcome, &mut asking);
    report.suspended = (suspended > 0).then_some(suspended);
    report.microseconds = Some(took.as_micros() as u64);
    report.skipped = skipped;
    asking.add_silent(&mut report.skipped);
    Ok((report, looking + begin.elapsed().saturating_sub(asking.waited().saturating_sub(waited))))
}

/// The facts that are gathered before a lift, and its plan.
struct Prepared {
    machine: Machine,
    family: Family,
    plan: Plan,
    sharers: Sharers,
}

impl Prepared {
    fn new(
        pids: &[i32],
        options: InPlaceOptions<'_>,
        counting: Duration,
        rooms: &mut Rooms,
        asking: &mut Asking,
    ) -> Result<Self, SessionError> {
        let (machine, settings) = machine(options.memory)?;
        let looking = Looking {
            memory: options.memory,
            with_break: options.with_break,
            huge: machine.huge,
            counting,
            settings: Arc::new(settings),
        };
        let family = Family::of(pids, options.chosen, &looking, &mut rooms.unfinished, asking)?;
        let policy = Policy { fill: options.fill, most: options.most };
        let plan = plan_within(&family.segments, &machine, policy, &mut rooms.of_tmpfs);
        let sharers = match options.memory {
            InPlace::Shared => Sharers::of(&family.segments.iter().map(|segment| segment.key).collect::<Vec<_>>()),
            InPlace::Anonymous | InPlace::Jit => Sharers::none(),
        };
        Ok(Self { machine, family, plan, sharers })
    }

    /// Reads the page tables of all sharers, and predicts their size after the lift if that is wanted.
    fn before(&self, memory: InPlace, predicts: bool) -> Before {
        let before = Before::new(&self.family, &self.sharers, memory, self.machine.huge);
        match predicts && memory == InPlace::Shared {
            true => before.predicting(&self.family.segments, &self.plan),
            false => before,
        }
    }
}
