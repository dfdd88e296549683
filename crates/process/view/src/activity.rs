//! The kernel's counts for a process without a PMU: page faults, CPU time, context switches.

use crate::{ObservationError, ProcessFiles, tree_of};
use address_space::{ProcessStat, StatCounters};
use nix::unistd::{SysconfVar, sysconf};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fs;

/// Counts since the start of a process, or between two moments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Activity {
    /// Page faults that needed no reading from a disk.
    pub minor_faults: u64,
    /// Page faults that did.
    pub major_faults: u64,
    /// Seconds of CPU time of the program, in steps of the kernel's clock tick (10 ms nearly everywhere).
    pub user_seconds: f64,
    /// Seconds of CPU time of the kernel for it.
    pub system_seconds: f64,
    /// Times that a thread went to sleep.
    pub voluntary_switches: u64,
    /// Times that a thread was put aside for another.
    pub involuntary_switches: u64,
}

impl Activity {
    /// The difference to an earlier moment.
    pub fn since(&self, before: &Self) -> Self {
        Self {
            minor_faults: self.minor_faults.saturating_sub(before.minor_faults),
            major_faults: self.major_faults.saturating_sub(before.major_faults),
            user_seconds: (self.user_seconds - before.user_seconds).max(0.0),
            system_seconds: (self.system_seconds - before.system_seconds).max(0.0),
            voluntary_switches: self.voluntary_switches.saturating_sub(before.voluntary_switches),
            involuntary_switches: self.involuntary_switches.saturating_sub(before.involuntary_switches),
        }
    }

    /// The counts until now for a process and its descendants, including those that have ended and were waited for.
    /// Context switches are those of the present threads: the kernel does not report others.
    ///
    /// # Errors
    /// [`ObservationError`] of the process.
    pub fn of_tree(root: i32) -> Result<Self, ObservationError> {
        let mut sum = ActivityReader::of(root).read_with_children()?;
        for pid in tree_of(root).into_iter().skip(1) {
            // One that has just ended may be in its parent's sum, or in none.
            sum = ActivityReader::of(pid).read_with_children().map_or(sum, |activity| sum.plus(&activity));
        }
        Ok(sum)
    }

    fn plus(&self, other: &Self) -> Self {
        Self {
            minor_faults: self.minor_faults.saturating_add(other.minor_faults),
            major_faults: self.major_faults.saturating_add(other.major_faults),
            user_seconds: self.user_seconds + other.user_seconds,
            system_seconds: self.system_seconds + other.system_seconds,
            voluntary_switches: self.voluntary_switches.saturating_add(other.voluntary_switches),
            involuntary_switches: self.involuntary_switches.saturating_add(other.involuntary_switches),
        }
    }

    /// Seconds of CPU time.
    pub fn cpu_seconds(&self) -> f64 {
        self.user_seconds + self.system_seconds
    }
}

/// Reads the counts of one process again and again. A thread's switches are known until its last reading: what it did
/// after that, before it ended, is missing. All else includes ended threads.
#[derive(Debug)]
pub struct ActivityReader {
    process: ProcessFiles,
    /// Voluntary and involuntary switches of each thread that was ever seen.
    switches: BTreeMap<i32, (u64, u64)>,
    ticks_per_second: f64,
}

impl ActivityReader {
    /// A reader of the counts of process `pid`.
    pub fn of(pid: i32) -> Self {
        let ticks = sysconf(SysconfVar::CLK_TCK).ok().flatten().unwrap_or(100);
        Self { process: ProcessFiles::of(pid), switches: BTreeMap::new(), ticks_per_second: ticks as f64 }
    }

    /// The counts until now.
    ///
    /// # Errors
    /// [`ObservationError`].
    pub fn read(&mut self) -> Result<Activity, ObservationError> {
        let stat = self.process.text("stat")?;
        Ok(self.counted(ProcessStat::parse(&stat).and_then(ProcessStat::counters)))
    }

    /// The counts until now, including its children that have ended and were waited for.
    fn read_with_children(&mut self) -> Result<Activity, ObservationError> {
        let stat = self.process.text("stat")?;
        let stat = ProcessStat::parse(&stat);
        let own = self.counted(stat.and_then(ProcessStat::counters));
        Ok(self.times(stat.and_then(ProcessStat::counters_of_children)).plus(&own))
    }

    fn counted(&mut self, counters: Option<StatCounters>) -> Activity {
        self.read_switches();
        let sum = |of: fn(&(u64, u64)) -> u64| self.switches.values().map(of).fold(0, u64::saturating_add);
        Activity {
            voluntary_switches: sum(|switches| switches.0),
            involuntary_switches: sum(|switches| switches.1),
            ..self.times(counters)
        }
    }

    /// All but context switches.
    fn times(&self, counters: Option<StatCounters>) -> Activity {
        let StatCounters { minor_faults, major_faults, user_ticks, system_ticks } = counters.unwrap_or_default();
        Activity {
            minor_faults,
            major_faults,
            user_seconds: user_ticks as f64 / self.ticks_per_second,
            system_seconds: system_ticks as f64 / self.ticks_per_second,
            ..Activity::default()
        }
    }

    fn read_switches(&mut self) {
        let Ok(entries) = fs::read_dir(self.process.path("task")) else { return };
        for thread in entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok()) {
            let Ok(status) = self.process.text(&format!("task/{thread}/status")) else { continue };
            let last = self.switches.entry(thread).or_default();
            let now = |name: &str, last: u64| field(&status, name).unwrap_or(last).max(last);
            *last = (now("voluntary_ctxt_switches:", last.0), now("nonvoluntary_ctxt_switches:", last.1));
        }
    }
}

/// Page faults of all threads of a process until now, minor and major; `None` if the kernel does not report them.
pub fn page_faults(process: &ProcessFiles) -> Option<u64> {
    let counters = ProcessStat::parse(&process.text("stat").ok()?)?.counters()?;
    Some(counters.minor_faults.saturating_add(counters.major_faults))
}

/// A field of proc_pid_status(5).
fn field(status: &str, name: &str) -> Option<u64> {
    status.lines().find_map(|line| line.strip_prefix(name))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_faults_and_works() {
        let mut reader = ActivityReader::of(std::process::id() as i32);
        let before = reader.read().unwrap();
        let written: Vec<u8> = (0..16 << 20).map(|index| index as u8).collect();
        assert!(written.iter().map(|&byte| u64::from(byte)).sum::<u64>() > 0);
        let after = reader.read().unwrap();
        let between = after.since(&before);
        assert!(between.minor_faults > 0 && after.user_seconds >= before.user_seconds, "{between:?}");
        assert!(page_faults(&reader.process).unwrap() >= after.minor_faults + after.major_faults);
        assert!(after.voluntary_switches + after.involuntary_switches > 0);
        assert_eq!(before.since(&after).minor_faults, 0);
    }

    #[test]
    fn a_tree_has_the_counts_of_its_ended_and_of_its_running_children() {
        use std::io::{BufRead, BufReader, Write};
        use std::process::{Command, Stdio};
        // A subshell that has worked and was waited for, and one that runs.
        let script = "(i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done); (echo ready; read line); true";
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut shell = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(shell.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let root = shell.id() as i32;
        let (alone, all) = (ActivityReader::of(root).read().unwrap(), Activity::of_tree(root).unwrap());
        assert!(tree_of(root).len() == 2, "{:?}", tree_of(root));
        assert!(all.user_seconds > alone.user_seconds && all.minor_faults > alone.minor_faults, "{all:?} {alone:?}");
        shell.stdin.take().unwrap().write_all(b"\n").unwrap();
        assert!(shell.wait().unwrap().success());
        assert!(Activity::of_tree(root).is_err());
    }

    #[test]
    fn what_a_thread_has_done_stays_counted() {
        let mut reader = ActivityReader::of(std::process::id() as i32);
        let (told, wait) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            for _ in 0..50 {
                std::thread::sleep(std::time::Duration::from_micros(10));
            }
            let _ = wait.recv();
        });
        let during = loop {
            let activity = reader.read().unwrap();
            if activity.voluntary_switches >= 50 {
                break activity;
            }
        };
        drop(told);
        thread.join().unwrap();
        assert!(reader.read().unwrap().voluntary_switches >= during.voluntary_switches);
    }
}
