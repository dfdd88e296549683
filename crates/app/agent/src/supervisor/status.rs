//! The state of a running agent, for `pagelift agent status` and for metrics.

use super::ledger::Counts;
use super::stuck_workers::StuckWorker;
use crate::decision::{Identity, State};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// Name of the file.
pub(super) const NAME: &str = "status.json";
/// Version of the format.
pub(super) const VERSION: u32 = 1;
/// Most processes that are listed.
pub(super) const MOST_LEFT_ALONE: usize = 50;
/// Largest size of the file in bytes.
const LARGEST: u64 = 1 << 20;

/// Written after each scan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Version of the format.
    pub version: u32,
    /// The agent's process.
    pub agent: Identity,
    /// The mode.
    pub mode: String,
    /// Number of rules.
    pub rules: usize,
    /// The last reading of the configuration succeeded.
    pub configuration_is_read: bool,
    /// State of the kill switch.
    pub switch: String,
    /// Seconds since 1970 of the last scan.
    pub scanned: u64,
    /// Time of the last scan in microseconds.
    pub scan_microseconds: u64,
    /// Number of processes by state.
    pub processes: BTreeMap<State, usize>,
    /// CPU time of the agent and its workers since its start, and the pauses, in milliseconds.
    pub cpu_milliseconds: u64,
    /// CPU time that is left in the budget, in milliseconds.
    pub budget_milliseconds: u64,
    /// Counts since the boot.
    pub counts: Counts,
    /// The measurement that runs.
    #[serde(default)]
    pub measuring: Option<MeasuringNow>,
    /// Processes that verdicts leave plain, [`MOST_LEFT_ALONE`] at most.
    #[serde(default)]
    pub left_alone: Vec<LeftAlone>,
    /// Workers that were killed and have not ended.
    #[serde(default)]
    pub stuck: Vec<StuckWorker>,
}

/// A measurement that runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeasuringNow {
    /// Name of the program.
    pub program: String,
    /// The process.
    pub process: Identity,
    /// Blocks so far.
    pub blocks: u64,
}

/// A process that the verdict on its build leaves plain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftAlone {
    /// Name of the program.
    pub program: String,
    /// The process.
    pub process: Identity,
    /// The verdict.
    pub why: String,
}

impl Status {
    /// Reads the file; `None` if no agent has run since the boot.
    ///
    /// # Errors
    /// The file cannot be read, or is damaged.
    pub fn load(state: &Path) -> io::Result<Option<Self>> {
        let file = match File::open(state.join(NAME)) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let mut bytes = Vec::new();
        file.take(LARGEST).read_to_end(&mut bytes)?;
        Ok(Some(serde_json::from_slice(&bytes)?))
    }
}
