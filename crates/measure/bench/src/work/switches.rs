//! Voluntary context switches of a process: one for each time that a thread went to sleep.

use super::{Counter, WorkError};
use std::collections::HashMap;
use std::fs;

/// The switches of each thread that was ever seen, as of its last reading: a bare sum over the threads of the moment would
/// go backwards when one ends.
pub(super) struct Switches {
    /// A process, and those that descended from it at the beginning.
    processes: Vec<i32>,
    seen: HashMap<i32, u64>,
    why: String,
}

impl Switches {
    pub(super) fn of(processes: Vec<i32>, why: String) -> Result<Self, WorkError> {
        let mut switches = Self { processes, seen: HashMap::new(), why };
        switches.read()?;
        Ok(switches)
    }
}

impl Counter for Switches {
    fn read(&mut self) -> Result<f64, WorkError> {
        for (number, pid) in self.processes.iter().enumerate() {
            let folder = format!("/proc/{pid}/task");
            let entries = match fs::read_dir(&folder) {
                Err(_) if number > 0 => continue,
                entries => entries.map_err(|error| WorkError::no_number(&folder, error))?,
            };
            for entry in entries.flatten() {
                let Some(thread) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
                let Ok(text) = fs::read_to_string(entry.path().join("status")) else { continue };
                if let Some(count) = voluntary(&text) {
                    let last = self.seen.entry(thread).or_default();
                    *last = count.max(*last);
                }
            }
        }
        Ok(self.seen.values().sum::<u64>() as f64)
    }

    fn unit(&self) -> String {
        "voluntary context switches".to_owned()
    }

    fn counts_switches(&self) -> bool {
        true
    }

    fn note(&self) -> Option<String> {
        Some(format!("work is counted in voluntary context switches: {}", self.why))
    }
}

/// `voluntary_ctxt_switches` of proc_pid_status(5).
fn voluntary(status: &str) -> Option<u64> {
    status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?.trim().parse().ok()
}
