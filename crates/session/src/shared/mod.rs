//! Shared memory of running programs: what a lift would do and cost, and the lift in place, from outside.
//!
//! Nothing is stopped, and nothing is executed in the programs: the kernel collapses blocks by `process_madvise`. Processes that
//! share a segment are one family: each segment is read once, and lifted once.

mod cgroup;
mod contents;
mod gather;
mod kernel;
mod report;
mod sharers;

pub use gather::SkippedProcess;
pub use report::{LeftAlone, SegmentReport, SharedReport};

use crate::SessionError;
use crate::running::Chosen;
use gather::{Family, machine};
use kernel::Live;
use report::Before;
use shared_memory::{Budget, Machine, Plan, Policy, lift, plan};
use sharers::Sharers;
use std::time::{Duration, Instant};

/// Time after which no further block is begun.
const MOST_TIME: Duration = Duration::from_secs(600);
/// Time that one MiB of a block may take: usually 0.5 to 10 ms. A few blocks that take longer end the lift.
const MOST_TIME_PER_MIB: Duration = Duration::from_millis(250);
/// How often a block whose pages are in use is tried.
const TRIES: u32 = 6;

/// Options of a lift of shared memory.
#[derive(Clone, Copy, Debug, Default)]
pub struct SharedOptions<'a> {
    /// The property that the processes must have.
    pub chosen: Chosen<'a>,
    /// Fill blocks however many holes they have.
    pub fill: bool,
    /// Most bytes that are added: holes that are filled, and swapped data that is read back.
    pub most: Option<u64>,
}

/// Returns the plan of a lift of some processes' shared memory, and changes nothing.
///
/// # Errors
/// No process can be read.
pub fn plan_shared(pids: &[i32], options: SharedOptions<'_>) -> Result<SharedReport, SessionError> {
    let prepared = Prepared::new(pids, options)?;
    Ok(prepared.before().planned(&prepared.family.segments, &prepared.plan))
}

/// Lifts the shared memory of some processes in place.
///
/// # Errors
/// No process can be read. Refusals by the kernel are in the report.
pub fn lift_shared(pids: &[i32], options: SharedOptions<'_>) -> Result<SharedReport, SessionError> {
    let Prepared { machine, family, plan, sharers } = Prepared::new(pids, options)?;
    let before = Before::new(&family, &sharers, machine.huge);
    let Family { segments, files, processes, .. } = family;
    let block = MOST_TIME_PER_MIB * (machine.huge.bytes() >> 20).max(1) as u32;
    let budget = Budget { all: MOST_TIME, block, tries: TRIES, fill: options.fill, most: options.most };
    let begin = Instant::now();
    let mut live = Live::new(&segments, &files, &processes, machine.huge, begin);
    let outcome = lift(&segments, &plan, &machine, &budget, &mut live);
    let took = begin.elapsed();
    Ok(before.lifted(&segments, &plan, &outcome, took))
}

/// The facts that are gathered before a lift, and its plan.
struct Prepared {
    machine: Machine,
    family: Family,
    plan: Plan,
    sharers: Sharers,
}

impl Prepared {
    fn new(pids: &[i32], options: SharedOptions<'_>) -> Result<Self, SessionError> {
        let (machine, settings) = machine()?;
        let family = Family::of(pids, options.chosen, &machine, &settings)?;
        let plan = plan(&family.segments, &machine, Policy { fill: options.fill, most: options.most });
        let keys: Vec<_> = family.segments.iter().map(|segment| segment.key).collect();
        let sharers = Sharers::of(&keys);
        Ok(Self { machine, family, plan, sharers })
    }

    fn before(&self) -> Before {
        Before::new(&self.family, &self.sharers, self.machine.huge)
    }
}
