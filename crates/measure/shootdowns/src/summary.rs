//! The results, as numbers that can be printed: totals are counted, shares and paths sampled.

use crate::cause::Cause;
use crate::evidence::Evidence;
use crate::lives::Life;
use crate::machine::Unseen;
use crate::stacks::Frame;
use crate::tally::{self, PathTally, ProcessTally};
use crate::times::TimesByProcess;
use serde::Serialize;
use std::collections::HashMap;

/// The results of a watch.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// The source of the numbers.
    pub evidence: Evidence,
    /// Why better evidence was not used.
    pub refused: Vec<String>,
    /// The parts that are invisible on this machine.
    pub unseen: Vec<Unseen>,
    /// The only watched process; without it all are watched.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub watched: Option<i32>,
    /// Seconds that were watched.
    pub seconds: f64,
    /// Shootdowns sent on the whole machine, or calls that may send some, each counted; `None` if neither is shown.
    pub sent: Option<u64>,
    /// Shootdowns received on the whole machine, each counted, one for each CPU that was interrupted and had the address
    /// space in use.
    pub received: Option<u64>,
    /// Shootdowns received by the line `TLB` of `/proc/interrupts`, idle CPUs too.
    pub interrupts: Option<u64>,
    /// Processes, the most active senders first.
    pub processes: Vec<ProcessSummary>,
    /// The processes for which there was no room above: ended ones, and the least active senders.
    pub others: Others,
    /// The cost of watching, and the missed events.
    pub watching: Watching,
}

/// The cost of watching, and the missed events.
#[derive(Clone, Debug, Default, Serialize)]
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
    /// Records of clone(2) and execve(2), by which programs with the same number are counted apart.
    pub lost_begins: u64,
    /// Results that are not kept, to bound memory.
    pub left_out: LeftOut,
    /// CPU seconds of pagelift for reading, unwinding and naming.
    pub cpu_seconds: f64,
    /// Nanoseconds for which each shootdown that was counted held its thread up, measured on this machine.
    pub nanoseconds_per_record: Option<f64>,
    /// Nanoseconds of a stack, likewise.
    pub nanoseconds_per_stack: Option<f64>,
}

/// Results that are not kept, to bound memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LeftOut {
    /// Processes whose counts are in [`Summary::others`]; a process that was left out twice counts twice.
    pub processes: u64,
    /// Sampled shootdowns, sent and received, that are in the counts of no thread.
    pub threads: u64,
    /// Shootdowns of sampled stacks whose call paths are not kept.
    pub paths: u64,
    /// Times of processes: in calls, waiting or interrupted. Processes without a shootdown are left out first.
    pub times: u64,
}

/// Processes that are not shown by themselves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Others {
    /// Shootdowns sent, estimated if there were many.
    pub sent: f64,
    /// Shootdowns received.
    pub received: f64,
}

impl Others {
    /// True if there were any.
    pub fn had_any(&self) -> bool {
        self.sent + self.received > 0.0
    }

    /// The shootdowns sent and received since an earlier summary. Counts of processes that were shown then and not now
    /// have moved to these since, but are older.
    fn since(self, before: &Summary, now: &HashMap<Life, (f64, f64)>) -> Self {
        let mut moved = before.others;
        for process in &before.processes {
            let (sent, received) = now.get(&process.life).copied().unwrap_or_default();
            moved.sent += (process.sent - sent).max(0.0);
            moved.received += (process.received - received).max(0.0);
        }
        Self { sent: (self.sent - moved.sent).max(0.0), received: (self.received - moved.received).max(0.0) }
    }
}

/// One process.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ProcessSummary {
    /// Its number.
    pub pid: i32,
    /// The program, among all programs with this number.
    #[serde(skip)]
    pub life: Life,
    /// Seconds from the start of the watch to the begin of its process or program; `None` if it began before.
    pub began: Option<f64>,
    /// The name that the kernel knows it by.
    pub name: String,
    /// It is a thread of the kernel.
    pub kernel_thread: bool,
    /// Shootdowns sent, estimated if there were many.
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
    /// Seconds of its threads in munmap, madvise, mprotect and mremap, which contain the waiting; `None` if they are not
    /// measured.
    pub call_seconds: Option<f64>,
    /// Page faults of its threads; `None` if it had ended before they could be read.
    pub page_faults: Option<u64>,
    /// CPU seconds of its threads in the kernel, for all calls, page faults and interrupts.
    pub kernel_seconds: Option<f64>,
    /// Threads, the most active senders first.
    pub threads: Vec<ThreadSummary>,
    /// Its sampled stacks, the source of shares and paths.
    pub stacks: u64,
    /// Number of stacks of equal weight with the same information: in bursts one stack represents many shootdowns.
    pub effective_stacks: f64,
    /// Call paths, the most frequent first.
    pub paths: Vec<PathSummary>,
    /// Share of the stacks on paths for which there was no room.
    pub other_paths: f64,
}

/// One thread.
#[derive(Clone, Debug, Serialize)]
pub struct ThreadSummary {
    /// Its number.
    pub tid: i32,
    /// Nanoseconds of CLOCK_MONOTONIC at its begin; 0 if it began before the watch. The kernel reuses numbers.
    #[serde(skip)]
    pub since: u64,
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
pub(crate) struct Scale {
    sent: f64,
    received: f64,
}

impl Scale {
    /// Returns the ratios of counts to samples, sent and received.
    pub(crate) fn new(sent: (Option<u64>, u64), received: (Option<u64>, u64)) -> Self {
        let of = |(counted, sampled): (Option<u64>, u64)| {
            counted.filter(|_| sampled > 0).map_or(1.0, |counted| counted as f64 / sampled as f64)
        };
        Self { sent: of(sent), received: of(received) }
    }

    /// The value of several processes' sampled weights.
    pub(crate) fn others(self, sampled: tally::Others) -> Others {
        Others { sent: sampled.sent as f64 * self.sent, received: sampled.received as f64 * self.received }
    }
}

impl Summary {
    /// The results since an earlier summary of the same watch: counts and times of the time in between, for processes
    /// and threads with any, the most active senders first. Shares and pages for each flush are computed over the whole
    /// watch, because one second has too few samples.
    #[must_use]
    pub fn since(mut self, before: &Self) -> Self {
        let less = |now: Option<u64>, before: Option<u64>| now.map(|now| now.saturating_sub(before.unwrap_or(0)));
        self.seconds -= before.seconds;
        self.sent = less(self.sent, before.sent);
        self.received = less(self.received, before.received);
        self.interrupts = less(self.interrupts, before.interrupts);
        let counts = self.processes.iter().map(|process| (process.life, (process.sent, process.received)));
        self.others = self.others.since(before, &counts.collect());
        let earlier: HashMap<Life, &ProcessSummary> = before.processes.iter().map(|p| (p.life, p)).collect();
        for process in &mut self.processes {
            if let Some(earlier) = earlier.get(&process.life) {
                process.subtract(earlier);
            }
        }
        self.processes.retain(|process| process.sent + process.received > 0.0);
        self.processes.sort_by(|a, b| b.sent.total_cmp(&a.sent).then(b.received.total_cmp(&a.received)));
        self
    }
}

impl ProcessSummary {
    /// Subtracts an earlier summary. Counts that were estimated by another scale then are not less than nothing.
    fn subtract(&mut self, before: &Self) {
        let less = |now: f64, before: f64| (now - before).max(0.0);
        let less_if = |now: Option<f64>, before: Option<f64>| now.map(|now| less(now, before.unwrap_or(0.0)));
        self.sent = less(self.sent, before.sent);
        self.received = less(self.received, before.received);
        self.waited_seconds = less_if(self.waited_seconds, before.waited_seconds);
        self.interrupted_seconds = less_if(self.interrupted_seconds, before.interrupted_seconds);
        self.call_seconds = less_if(self.call_seconds, before.call_seconds);
        self.kernel_seconds = less_if(self.kernel_seconds, before.kernel_seconds);
        self.page_faults = self.page_faults.map(|now| now.saturating_sub(before.page_faults.unwrap_or(0)));
        for thread in &mut self.threads {
            if let Some(before) =
                before.threads.iter().find(|earlier| (earlier.tid, earlier.since) == (thread.tid, thread.since))
            {
                thread.sent = less(thread.sent, before.sent);
                thread.received = less(thread.received, before.received);
            }
        }
        self.threads.retain(|thread| thread.sent + thread.received > 0.0);
        self.threads.sort_by(|a, b| b.sent.total_cmp(&a.sent).then(b.received.total_cmp(&a.received)));
    }
}

/// Returns the summary of one process, without its call paths.
pub(crate) fn process_summary(
    life: Life,
    process: &ProcessTally,
    scale: Scale,
    times: &TimesByProcess,
) -> ProcessSummary {
    let flushes = process.flushes.by_page + process.flushes.whole;
    let (sent, received) = (process.sent as f64 * scale.sent, process.received as f64 * scale.received);
    let seconds = |mean: Option<f64>, count: f64| mean.map(|nanoseconds| nanoseconds * count / 1e9);
    let mut threads: Vec<ThreadSummary> = process
        .threads
        .iter()
        .map(|(&(tid, since), thread)| ThreadSummary {
            tid,
            since,
            name: thread.name.clone(),
            sent: thread.sent as f64 * scale.sent,
            received: thread.received as f64 * scale.received,
        })
        .collect();
    threads.sort_by(|a, b| b.sent.total_cmp(&a.sent).then(b.received.total_cmp(&a.received)));
    let used = process.used.sums();
    ProcessSummary {
        pid: life.pid,
        life,
        began: None,
        name: process.name.clone(),
        kernel_thread: process.is_kernel_thread,
        sent,
        received,
        pages_per_flush: (process.flushes.by_page > 0)
            .then(|| process.flushes.pages as f64 / process.flushes.by_page as f64),
        whole_flushes: (flushes > 0).then(|| process.flushes.whole as f64 / flushes as f64),
        waited_seconds: seconds(times.waited.get(&life).and_then(|times| times.mean()), sent),
        interrupted_seconds: seconds(times.interrupted.get(&life).and_then(|times| times.mean()), received),
        call_seconds: None,
        page_faults: used.map(|used| used.0),
        kernel_seconds: used.map(|used| used.1),
        threads,
        stacks: process.stacks,
        effective_stacks: process.effective_stacks(),
        paths: Vec::new(),
        other_paths: process.dropped(),
    }
}

/// All call paths of a process, the most frequent first.
pub(crate) fn paths_of(process: &ProcessTally) -> Vec<PathSummary> {
    let mut paths: Vec<_> = process.paths.iter().collect();
    paths.sort_by(|((cause_a, at_a), a), ((cause_b, at_b), b)| {
        b.weight.cmp(&a.weight).then_with(|| (cause_a, at_a).cmp(&(cause_b, at_b)))
    });
    let summary = |(&(cause, _), path): (&(Cause, Vec<u64>), &PathTally)| PathSummary {
        share: path.weight as f64 / process.on_stacks.max(1) as f64,
        cause: match (cause, path.frames.first().and_then(|frame| frame.function.as_deref())) {
            (Cause::Unknown, Some(function)) => Cause::of_wrapper(function),
            _ => cause,
        },
        frames: path.frames.clone(),
    };
    paths.into_iter().map(summary).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: i32, sent: f64, waited: Option<f64>) -> ProcessSummary {
        let thread = |tid, sent| ThreadSummary { tid, since: 0, name: "t".to_owned(), sent, received: 0.0 };
        ProcessSummary {
            pid,
            life: Life { pid, since: 0 },
            name: format!("p{pid}"),
            sent,
            pages_per_flush: Some(3.0),
            waited_seconds: waited,
            threads: vec![thread(pid, 1.0), thread(pid + 1, sent - 1.0)],
            ..ProcessSummary::default()
        }
    }

    fn summary(seconds: f64, sent: u64, processes: Vec<ProcessSummary>) -> Summary {
        Summary {
            evidence: Evidence::TlbTracepoint,
            refused: Vec::new(),
            unseen: Vec::new(),
            watched: None,
            seconds,
            sent: Some(sent),
            received: None,
            interrupts: Some(2 * sent),
            processes,
            others: Others::default(),
            watching: Watching::default(),
        }
    }

    #[test]
    fn a_storm_that_has_ended_is_not_shown_any_more() {
        let before = summary(9.0, 5010, vec![process(10, 5000.0, Some(2.0)), process(20, 10.0, None)]);
        let now =
            summary(10.0, 5047, vec![process(10, 5000.0, Some(2.0)), process(20, 40.0, None), process(30, 7.0, None)]);
        let last = now.since(&before);
        let seen: Vec<_> = last.processes.iter().map(|process| (process.pid, process.sent)).collect();
        assert_eq!((last.seconds, last.sent, last.received, last.interrupts), (1.0, Some(37), None, Some(74)));
        assert_eq!(seen, [(20, 30.0), (30, 7.0)]);
        let threads: Vec<_> = last.processes[0].threads.iter().map(|thread| (thread.tid, thread.sent)).collect();
        assert_eq!(threads, [(21, 30.0)], "the thread that sent nothing since is left out");
        assert_eq!(last.processes[0].pages_per_flush, Some(3.0));
    }

    #[test]
    fn what_others_sent_earlier_is_not_of_the_last_second() {
        let with_others = |sent: f64, summary: Summary| Summary { others: Others { sent, received: 0.0 }, ..summary };
        let before = with_others(50.0, summary(1.0, 160, vec![process(10, 100.0, None), process(20, 10.0, None)]));
        // Process 20 made room; since then it sent 3 and is shown again, and others sent 4.
        let now = summary(2.0, 187, vec![process(10, 120.0, None), process(20, 3.0, None)]);
        let last = with_others(64.0, now).since(&before);
        let shown: f64 = last.processes.iter().map(|process| process.sent).sum();
        assert_eq!((shown, last.others), (20.0, Others { sent: 7.0, received: 0.0 }));
        assert_eq!(last.sent, Some(27));
    }

    #[test]
    fn an_estimate_that_has_shrunk_is_no_negative_count() {
        let before = summary(1.0, 100, vec![process(10, 100.0, Some(0.5))]);
        let last = summary(2.0, 101, vec![process(10, 99.0, Some(0.4))]).since(&before);
        assert!(last.processes.is_empty() && last.sent == Some(1));
    }

    #[test]
    fn counts_of_an_earlier_program_with_the_number_are_not_subtracted() {
        let before = summary(1.0, 100, vec![process(10, 100.0, None)]);
        let second = ProcessSummary { life: Life { pid: 10, since: 5 }, ..process(10, 30.0, None) };
        let last = summary(2.0, 130, vec![process(10, 100.0, None), second]).since(&before);
        let seen: Vec<_> = last.processes.iter().map(|process| (process.life.since, process.sent)).collect();
        assert_eq!(seen, [(5, 30.0)]);
    }
}
