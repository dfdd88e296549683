//! Processes that hold pages until they end, and the names of their records.

use address_space::ProcessStat;
use machine_facts::Files;

/// A name that no reservation of a user can have.
const PREFIX: &str = "held.";

/// The process of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Holder {
    /// Its PID.
    pub pid: i32,
    /// Time of its start in clock ticks since boot, which distinguishes it from a later process with this PID.
    pub start: u64,
}

impl Holder {
    /// A process as it is now; `None` if it has ended.
    pub fn of(files: &impl Files, pid: i32) -> Option<Self> {
        let start = ProcessStat::parse(&files.text(&format!("/proc/{pid}/stat"))?)?.start_time()?;
        Some(Self { pid, start })
    }

    /// The holder of the record with this name; `None` for a reservation of a user.
    pub fn named(name: &str) -> Option<Self> {
        let (pid, start) = name.strip_prefix(PREFIX)?.split_once('.')?;
        Some(Self { pid: pid.parse().ok()?, start: start.parse().ok()? })
    }

    /// The name of its record.
    pub fn name(self) -> String {
        format!("{PREFIX}{}.{}", self.pid, self.start)
    }

    /// True while the process lives.
    pub fn is_there(self, files: &impl Files) -> bool {
        Self::of(files, self.pid) == Some(self)
    }
}
