//! The events of an experiment.

use crate::latency::Latency;
use crate::record::{AddressMap, Lift, MemoryUse};
use crate::toggle::{Measured, WINDOWS, Window};
use serde::{Deserialize, Serialize};

/// The event.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Event {
    /// A switch that worked.
    Switch(Switch),
    /// A whole block.
    Block(Box<TimedBlock>),
    /// An observation of the program in one of its states.
    Observed(Box<Observation>),
    /// Page walks that the CPU counted in all windows of one state.
    Walks(Box<WalkFigures>),
    /// The end.
    End(Ended),
}

/// The counts of the CPU in one state.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WalkFigures {
    /// The arm; absent for plain.
    pub arm: Option<usize>,
    /// Name of the table of events, for each kind of core.
    #[serde(default)]
    pub cores: String,
    /// The figures; none if there was no count at all.
    #[serde(default)]
    pub figures: Vec<Figure>,
    /// The smallest share of the time that an event was counted: less than 1 if events took turns on the counters.
    /// Absent in records from before this field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counted_share: Option<f64>,
    /// The kernel's part was not counted.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub user_only: bool,
    /// Processes that the program started were counted as its own, which the kernel could not leave out.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub with_children: bool,
    /// Why nothing was counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_counted: Option<String>,
}

/// A figure, or why there is none; never a zero for an event that was not counted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// Its name, with the unit.
    pub name: String,
    /// The figure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<f64>,
    /// Why there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_counted: Option<String>,
}

/// The most figures of one state.
const MOST_FIGURES: usize = 100;

impl WalkFigures {
    pub(crate) fn is_bounded(&self) -> bool {
        self.figures.len() <= MOST_FIGURES
    }
}

/// Why an experiment ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ended {
    /// The interval is narrow enough.
    Resolved,
    /// Its time is up.
    TimeIsUp,
    /// The user wants the answer so far.
    Interrupted,
    /// Something failed: the reason.
    Failed(String),
}

/// A switch into or out of an arm.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Switch {
    /// The arm; absent for the way back.
    pub arm: Option<usize>,
    /// Seconds in which the program was stopped, the longest stop of all threads.
    pub pause: f64,
    /// Seconds of CPU time of the process that went into it.
    pub cpu: f64,
    /// Bytes on huge pages after it, if the switch knows them.
    pub covered: Option<u64>,
}

/// A block, and the other measurements of its windows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TimedBlock {
    /// The windows.
    #[serde(flatten)]
    pub measured: Measured,
    /// Seconds from the start of the experiment to the end of the block.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<f64>,
    /// Counters of the kernel for each window.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counters: Option<[Counters; WINDOWS]>,
    /// The work and the cost while the program was switched into an arm, for the window after the switch; zeros without
    /// a switch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub switches: Option<[Window; WINDOWS]>,
    /// Waiting times of each window's requests, if clients of Pagelift sent them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency: Option<[Latency; WINDOWS]>,
    /// A lift of this block was made again: the reason why nothing was lifted at first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retried: Option<String>,
    /// A lifted run of this block counts although nothing was lifted, in several tries: the reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unlifted: Option<String>,
    /// No report of a lift was read in this block of an arm's whole runs.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unchecked: bool,
}

impl TimedBlock {
    /// The block with its switches in the windows behind them.
    pub(crate) fn with_switches(&self) -> Measured {
        let mut measured = self.measured;
        for (window, switch) in measured.windows.iter_mut().zip(self.switches.iter().flatten()) {
            window.work += switch.work;
            window.cpu += switch.cpu;
            window.wall += switch.wall;
            window.cycles += switch.cycles;
        }
        measured
    }
}

/// Counters of the kernel for one window: of the process with all its threads, or of a run with all processes that it
/// waited for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Counters {
    /// Page faults that read nothing from a disk.
    pub minor_faults: u64,
    /// Page faults that did.
    pub major_faults: u64,
    /// Seconds of CPU time in the program.
    pub user: f64,
    /// Seconds of CPU time in the kernel.
    pub system: f64,
}

/// An observation of the program at one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Observation {
    /// The arm that was in force; absent if the program was plain.
    pub arm: Option<usize>,
    /// Seconds from the start of the experiment, or of the run.
    pub at: f64,
    /// Name of the observed process.
    #[serde(default)]
    pub process: String,
    /// The effect of the lift.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lift: Option<Lift>,
    /// Its memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryUse>,
    /// Its address space.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub map: Option<AddressMap>,
}

impl Observation {
    pub(crate) fn is_bounded(&self) -> bool {
        self.lift.as_ref().is_none_or(Lift::is_bounded) && self.map.as_ref().is_none_or(AddressMap::is_bounded)
    }
}
