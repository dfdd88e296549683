//! A process that runs.

use super::counters::Counters;
use super::rounds::{Rounds, Watch};
use super::{Outcome, Report, VERSION};
use crate::commands::probe::known_reach;
use crate::commands::reading::confine_to;
use crate::commands::status::explain;
use confinement::Reads;
use linux::process_handle::ProcessHandle;
use process_view::coverage::Usage;
use process_view::{ActivityReader, ProcessMemory, printable};
use session::program_name_in_time;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};
use translation::walk_counters::Target;

/// The interval for checks of an end.
const LOOK: Duration = Duration::from_millis(20);

/// Measures a process. The files that change it are opened first; after that this program has rights to read only.
pub fn measure(pid: i32, time: Duration, stall: Duration, interrupted: &Arc<AtomicBool>) -> anyhow::Result<Report> {
    let mut reader = ActivityReader::of(pid);
    reader.read().map_err(|error| explain(error, "stat -p"))?;
    let handle = ProcessHandle::open(pid)?;
    let rounds = Rounds::open(pid, time, stall);
    let counters = Counters::start(Target::Process(pid));
    let reach = known_reach(true);
    // Before this thread gives up its rights, of which the other one needs one for a moment.
    let watch = Watch::start(rounds);
    confine_to(Reads::Processes);
    let name = printable(&program_name_in_time(pid));
    let before = reader.read().map_err(|error| explain(error, "stat -p"))?;
    let (start, mut last) = (Instant::now(), before);
    let mut coverage = coverage(pid);
    let ended_early = loop {
        if let Ok(activity) = reader.read() {
            last = activity;
        }
        if !handle.is_alive() {
            break Some("the process ended".to_owned());
        }
        if interrupted.load(Ordering::Relaxed) {
            break Some("interrupted".to_owned());
        }
        if start.elapsed() >= time {
            break None;
        }
        sleep(LOOK.min(time.saturating_sub(start.elapsed())));
    };
    let seconds = start.elapsed().as_secs_f64();
    let page_walks = counters.finish();
    let marks = watch.finish(&reach);
    if handle.is_alive() {
        coverage = self::coverage(pid);
    }
    Ok(Report {
        version: VERSION,
        what: name,
        pid: Some(pid),
        memory_of: None,
        seconds,
        ended_early,
        activity: Outcome::Measured(last.since(&before)),
        coverage: Some(coverage),
        page_walks,
        estimated: None,
        marks: Some(marks),
        tlb: reach,
    })
}

/// The memory on huge pages now.
pub fn coverage(pid: i32) -> Outcome<Usage> {
    match ProcessMemory::read(pid) {
        Ok(memory) => Outcome::Measured(memory.coverage().total),
        Err(error) => Outcome::NotMeasured(explain(error, "stat -p").to_string()),
    }
}
