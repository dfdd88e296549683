//! The perf map of a process that has just been lifted.

use confinement::{NotConfined, Reads, confine};
use linux::watch::with_same_limit;
use process_view::perf_map::{Destination, PerfMapError, PerfMapSummary};
use std::thread;

/// A map that was written.
#[derive(Debug)]
pub struct Written {
    /// The file, and the programs whose names it has.
    pub summary: PerfMapSummary,
    /// Why its symbols were read with more rights than that takes.
    pub not_confined: Option<NotConfined>,
}

/// Writes the perf map of process `pid`. Its files, which may be hostile, are read by a thread that has only the rights
/// to read; the calling thread keeps its own rights.
///
/// # Errors
/// As [`Destination::write`]. [`PerfMapError::NoThread`] if the kernel gives no thread.
pub fn write(pid: i32) -> Result<Written, PerfMapError> {
    let destination = Destination::of(pid);
    let read = move || {
        let not_confined = confine(Reads::Processes).err();
        destination.write().map(|summary| Written { summary, not_confined })
    };
    let reader = thread::Builder::new()
        .name("perf-map".to_owned())
        .spawn(with_same_limit(read))
        .map_err(PerfMapError::NoThread)?;
    reader.join().unwrap_or(Err(PerfMapError::ReaderEnded))
}
