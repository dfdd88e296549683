//! The values of the metrics.

use super::kernel::KernelCounts;
use super::pauses::Pauses;
use crate::decision::{Reason, State};
use crate::rules::Mode;
use crate::verdicts::Standing;
use std::collections::BTreeMap;
use std::time::Duration;

/// The state of the agent at one moment. Counters have been counted since the agent started.
#[derive(Clone, Debug, PartialEq)]
pub struct Snapshot {
    /// Version of Pagelift.
    pub version: &'static str,
    /// Mode of the agent.
    pub mode: Mode,
    /// The last configuration was accepted.
    pub is_config_accepted: bool,
    /// Time at which a configuration was last accepted, in seconds since 1970.
    pub config_accepted_at: f64,
    /// The kill switch is on.
    pub is_killed: bool,
    /// Processes in each state.
    pub processes: BTreeMap<State, u64>,
    /// Memory of lifted programs.
    pub lifted: Vec<Lifted>,
    /// Results of attempts.
    pub lifts: LiftResults,
    /// Refusals by reason.
    pub refusals: BTreeMap<Reason, u64>,
    /// Longest pause of each lift.
    pub pauses: Pauses,
    /// Lifted programs that crashed within a minute.
    pub crashes: u64,
    /// Builds by verdict.
    pub verdicts: BTreeMap<Standing, u64>,
    /// Gains of programs.
    pub gains: Vec<ProgramGain>,
    /// CPU time of the supervisor.
    pub supervisor_cpu: Duration,
    /// CPU time of workers.
    pub worker_cpu: Duration,
    /// Time for which programs were stopped.
    pub pause_time: Duration,
    /// CPU time that the budget permits now.
    pub budget_left: Duration,
    /// Resident bytes of the supervisor.
    pub resident: u64,
    /// Duration of the last scan.
    pub scan: Duration,
    /// Scans.
    pub scans: u64,
    /// Scans that the budget did not permit.
    pub dropped_scans: u64,
    /// Events of processes that executed a program; `None` where the kernel does not report them.
    pub exec_events: Option<Heard>,
    /// Blocks of all measurements.
    pub measured_blocks: u64,
    /// Workers that were killed and have not ended.
    pub stuck_workers: u64,
    /// Bytes of lifted code and constants that are no longer on huge pages.
    pub lost: u64,
    /// Time of this snapshot, in seconds since 1970.
    pub at: f64,
    /// The kernel's counts.
    pub kernel: KernelCounts,
}

impl Snapshot {
    /// A snapshot of an agent that has done nothing yet.
    pub fn new(version: &'static str, mode: Mode) -> Self {
        Self {
            version,
            mode,
            is_config_accepted: true,
            config_accepted_at: 0.0,
            is_killed: false,
            processes: BTreeMap::new(),
            lifted: Vec::new(),
            lifts: LiftResults::default(),
            refusals: BTreeMap::new(),
            pauses: Pauses::default(),
            crashes: 0,
            verdicts: BTreeMap::new(),
            gains: Vec::new(),
            supervisor_cpu: Duration::ZERO,
            worker_cpu: Duration::ZERO,
            pause_time: Duration::ZERO,
            budget_left: Duration::ZERO,
            resident: 0,
            scan: Duration::ZERO,
            scans: 0,
            dropped_scans: 0,
            exec_events: None,
            measured_blocks: 0,
            stuck_workers: 0,
            lost: 0,
            at: 0.0,
            kernel: KernelCounts::default(),
        }
    }
}

/// Events of processes that executed a program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Heard {
    /// Number of events.
    pub executed: u64,
    /// Number of times that the kernel has dropped some.
    pub lost: u64,
}

/// Huge memory of one program from one source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lifted {
    /// Name of the executable.
    pub program: String,
    /// Source of the pages: `file`, `image`, `hugetlb` or `thp`.
    pub source: &'static str,
    /// Page size in bytes.
    pub page_size: u64,
    /// Bytes on huge pages.
    pub bytes: u64,
    /// Bytes that only this process has because of the lift.
    pub private: u64,
}

/// Attempts by result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LiftResults {
    /// Programs that were lifted.
    pub lifted: u64,
    /// Lifts that mode `observe` did not make.
    pub observed: u64,
    /// Lifts that were refused.
    pub refused: u64,
    /// Workers that ended without an answer.
    pub failed: u64,
    /// Lifts that were undone.
    pub put_back: u64,
}

/// The measured gain of a program: low end, middle and high end of the interval, as shares.
#[derive(Clone, Debug, PartialEq)]
pub struct ProgramGain {
    /// Name of the executable.
    pub program: String,
    /// Low end, middle, high end.
    pub gain: [f64; 3],
}
