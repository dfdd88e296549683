//! The results of one run of `pagelift stat`.

use crate::commands::lift_switcher::Left;
use process_view::Activity;
use process_view::coverage::Usage;
use serde::Serialize;
use translation::tlb_probe::Load;
use translation::walk_counters::{Counts, SampledWalks, Walks};
use translation::working_set::{PartVerdict, Reach, WorkingSet};

/// Version of the form in which [`Report`] is written; grows when a field changes its meaning.
pub const VERSION: u32 = 1;

/// The measurement, or the reason why there is none.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome<T> {
    /// The measurement.
    Measured(T),
    /// Why nothing was.
    NotMeasured(String),
}

/// Page walks as the PMU counts them, on one kind of core.
#[derive(Clone, Debug, Serialize)]
pub struct CountedWalks {
    /// Their meaning.
    pub walks: Walks,
    /// The counts.
    pub counts: Counts,
    /// The time of walks by samples of IBS, if the CPU has IBS and does not count the time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sampled: Option<SampledWalks>,
}

/// A number for code and one for data.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Walked {
    /// Instruction fetches.
    pub code: Option<f64>,
    /// Loads and stores.
    pub data: Option<f64>,
}

/// The time of page walks if the PMU does not count it: an estimate and an upper bound, since walks overlap with other
/// work and with each other.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Estimated {
    /// The cost of a walk on base pages of this machine, in ns: the most in several passes.
    pub nanoseconds: Walked,
    /// The least in several passes.
    pub least_nanoseconds: Walked,
    /// Shares of the CPU time, between 0 and 1; absent if the passes differ too much.
    pub share: Walked,
    /// CPUs that other programs used during the measurement of the cost.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub load: Option<Load>,
}

/// True if passes that measured this least and this most agree well enough for a share.
pub fn is_stable(least: f64, most: f64) -> bool {
    most <= 1.25 * least
}

/// Pages marked by page walks, and the verdicts on them.
#[derive(Clone, Debug, Serialize)]
pub struct Marks {
    /// The pages.
    pub working_set: WorkingSet,
    /// The possible gain from huge pages.
    pub verdicts: Vec<PartVerdict>,
    /// True if the rounds are dated from the start of a command.
    #[serde(skip)]
    pub of_command: bool,
}

/// Everything that one run of the command finds out.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// [`VERSION`].
    pub version: u32,
    /// The subject: a process's name, a command, the machine.
    pub what: String,
    /// The process.
    pub pid: Option<i32>,
    /// The process whose memory was examined, if it was found by its name (`--only`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_of: Option<String>,
    /// Seconds measured.
    pub seconds: f64,
    /// Why the measurement ended before its time.
    pub ended_early: Option<String>,
    /// Faults, CPU time, context switches; of a command that runs on, the switches of its threads that still run.
    pub activity: Outcome<Activity>,
    /// The memory on huge pages at the end; `None` for the machine.
    pub coverage: Option<Outcome<Usage>>,
    /// Page walks, by kind of core.
    pub page_walks: Outcome<Vec<CountedWalks>>,
    /// Their time, if an estimate was requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub estimated: Option<Outcome<Estimated>>,
    /// Pages marked over time; `None` for the machine.
    pub marks: Option<Outcome<Marks>>,
    /// This machine's TLBs.
    pub tlb: Reach,
}

/// A measurement plain and one lifted.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// [`VERSION`].
    pub version: u32,
    /// The options of the lift, as `attach` and `run` read them.
    pub options: Vec<String>,
    /// Plain.
    pub plain: Report,
    /// The effect of the lift, and the measurement after it; or the reason why there is none.
    pub lifted: Outcome<Lifted>,
    /// The final state of a process that ran before; `None` for a command.
    pub left: Option<Left>,
}

/// A lift and its measurement.
#[derive(Clone, Debug, Serialize)]
pub struct Lifted {
    /// The effect of the lift of a running process, in a line; `None` for a command, whose start prints it.
    pub lift: Option<String>,
    /// Lifted.
    pub report: Report,
}
