//! What was seen, as numbers that can be printed: totals are counted, shares and paths sampled.

use crate::cause::Cause;
use crate::interrupts::InterruptCounts;
use crate::machine::{self, Unseen};
use crate::stacks::Frame;
use crate::tally::ProcessTally;
use crate::times::TimesByProcess;
use crate::watch::{Evidence, Watch};
use serde::Serialize;
use std::cmp::Reverse;

/// Paths and threads that a summary keeps of a process.
const MOST_SHOWN: usize = 20;

/// What a watch has seen.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// What the numbers come from.
    pub evidence: Evidence,
    /// Why better evidence was not used.
    pub refused: Vec<String>,
    /// What this machine does not show.
    pub unseen: Vec<Unseen>,
    /// Seconds that were watched.
    pub seconds: f64,
    /// Shootdowns sent on the whole machine, or calls that may send some, each counted; `None` where neither is shown.
    pub sent: Option<u64>,
    /// Shootdowns received on the whole machine, each counted, one for each CPU that was interrupted and had the address
    /// space in use.
    pub received: Option<u64>,
    /// Shootdowns received by the line `TLB` of `/proc/interrupts`, idle CPUs too.
    pub interrupts: Option<u64>,
    /// Processes, those that sent most first.
    pub processes: Vec<ProcessSummary>,
    /// What watching took, and what it missed.
    pub watching: Watching,
}

/// What watching took, and what it missed.
#[derive(Clone, Debug, Serialize)]
pub struct Watching {
    /// Stacks that were sampled.
    pub stacks: u64,
    /// Samples of senders for which there was no room.
    pub lost_sent: u64,
    /// Samples of receivers.
    pub lost_received: u64,
    /// Stacks.
    pub lost_stacks: u64,
    /// Records of times.
    pub lost_times: u64,
    /// CPU seconds of pagelift for reading, unwinding and naming.
    pub cpu_seconds: f64,
}

/// One process.
#[derive(Clone, Debug, Serialize)]
pub struct ProcessSummary {
    /// Its number.
    pub pid: i32,
    /// The name that the kernel knows it by.
    pub name: String,
    /// Shootdowns sent, estimated where there were many.
    pub sent: f64,
    /// Shootdowns received while it ran.
    pub received: f64,
    /// Base pages per flush, of flushes that name their pages.
    pub pages_per_flush: Option<f64>,
    /// Share of its flushes that flush everything.
    pub whole_flushes: Option<f64>,
    /// Seconds that its threads waited for answers, estimated from windows.
    pub waited_seconds: Option<f64>,
    /// Seconds that it was interrupted for flushes, of whomever.
    pub interrupted_seconds: Option<f64>,
    /// Threads, those that sent most first.
    pub threads: Vec<ThreadSummary>,
    /// Call paths, the most frequent first.
    pub paths: Vec<PathSummary>,
}

/// One thread.
#[derive(Clone, Debug, Serialize)]
pub struct ThreadSummary {
    /// Its number.
    pub tid: i32,
    /// Its name.
    pub name: String,
    /// Shootdowns sent.
    pub sent: f64,
    /// Shootdowns received.
    pub received: f64,
}

/// One call path.
#[derive(Clone, Debug, Serialize)]
pub struct PathSummary {
    /// Share of the process's sampled stacks.
    pub share: f64,
    /// Why the kernel sent.
    pub cause: Cause,
    /// Frames of the program, innermost first.
    pub frames: Vec<Frame>,
}

/// By which a sampled weight becomes a count.
#[derive(Clone, Copy)]
struct Scale {
    sent: f64,
    received: f64,
}

impl Scale {
    fn of(counted: Option<u64>, sampled: u64) -> f64 {
        counted.filter(|_| sampled > 0).map_or(1.0, |counted| counted as f64 / sampled as f64)
    }
}

impl Watch {
    /// What has been seen up to now.
    pub fn summary(&mut self) -> Summary {
        let (sent, received) = self.totals();
        let scale =
            Scale { sent: Scale::of(sent, self.tally.sent), received: Scale::of(received, self.tally.received) };
        let now = InterruptCounts::read().unwrap_or_default();
        let mut processes: Vec<ProcessSummary> = self
            .tally
            .processes
            .iter()
            .map(|(&pid, process)| process_summary(pid, process, scale, &self.times))
            .collect();
        processes.sort_by(|a, b| b.sent.total_cmp(&a.sent).then(b.received.total_cmp(&a.received)));
        let [lost_sent, lost_received, lost_stacks, lost_times] = self.lost();
        Summary {
            evidence: self.evidence,
            refused: self.refused.clone(),
            unseen: machine::unseen(),
            seconds: self.started.elapsed().as_secs_f64(),
            sent,
            received,
            interrupts: now.shootdowns_since(&self.interrupts),
            processes,
            watching: Watching {
                stacks: self.stacks_taken(),
                lost_sent,
                lost_received,
                lost_stacks,
                lost_times,
                cpu_seconds: self.cpu_taken().as_secs_f64(),
            },
        }
    }
}

fn process_summary(pid: i32, process: &ProcessTally, scale: Scale, times: &TimesByProcess) -> ProcessSummary {
    let flushes = process.flushes.by_page + process.flushes.whole;
    let (sent, received) = (process.sent as f64 * scale.sent, process.received as f64 * scale.received);
    let seconds = |mean: Option<f64>, count: f64| mean.map(|nanoseconds| nanoseconds * count / 1e9);
    let mut threads: Vec<ThreadSummary> = process
        .threads
        .iter()
        .map(|(&tid, thread)| ThreadSummary {
            tid,
            name: thread.name.clone(),
            sent: thread.sent as f64 * scale.sent,
            received: thread.received as f64 * scale.received,
        })
        .collect();
    threads.sort_by(|a, b| b.sent.total_cmp(&a.sent).then(b.received.total_cmp(&a.received)));
    threads.truncate(MOST_SHOWN);
    let mut paths: Vec<_> = process.paths.iter().collect();
    paths.sort_by_key(|((cause, addresses), path)| (Reverse(path.weight), *cause, addresses.clone()));
    let paths = paths.into_iter().take(MOST_SHOWN).map(|((cause, _), path)| PathSummary {
        share: path.weight as f64 / process.on_stacks.max(1) as f64,
        cause: *cause,
        frames: path.frames.clone(),
    });
    ProcessSummary {
        pid,
        name: process.name.clone(),
        sent,
        received,
        pages_per_flush: (process.flushes.by_page > 0)
            .then(|| process.flushes.pages as f64 / process.flushes.by_page as f64),
        whole_flushes: (flushes > 0).then(|| process.flushes.whole as f64 / flushes as f64),
        waited_seconds: seconds(times.waited.get(&pid).and_then(|times| times.mean()), sent),
        interrupted_seconds: seconds(times.interrupted.get(&pid).and_then(|times| times.mean()), received),
        threads,
        paths: paths.collect(),
    }
}
