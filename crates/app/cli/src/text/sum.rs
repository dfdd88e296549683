//! The sum of the lifts of `run --only`; pure.

use address_space::{counted, format_bytes};
use session::LiftReport;
use std::collections::{BTreeMap, BTreeSet};

/// PID and start time of a process: numbers are used again.
type Started = (i32, Option<u64>);

/// Maximum number of processes whose outcome is kept: front ends that are running at once have nothing to lift yet.
const MOST_OUTCOMES: usize = 1024;

/// The printed lines about programs of one name.
#[derive(Clone, Copy, Debug)]
struct Printed {
    /// The process of the first line.
    process: Started,
    /// A line is about a lifted program.
    lifted: bool,
    /// The first process has executed a program of the same name, whose line was printed.
    executed: bool,
}

/// Outcomes of the processes that `--only` names.
#[derive(Debug, Default)]
pub struct Sum {
    /// Names of programs whose first process has had its line. A link to a front end can have the name of the program that
    /// it executes.
    names: BTreeMap<String, Printed>,
    /// Names of programs that ended before anything could be printed about them.
    unseen: BTreeSet<String>,
    /// Processes whose lines were held back.
    held: BTreeSet<i32>,
    processes: u64,
    bytes: u64,
    postponed: u64,
    /// Processes that were counted.
    counted: BTreeSet<Started>,
    /// Processes that have not been lifted so far.
    not_lifted: BTreeSet<Started>,
    /// The first processes without a lift, and their outcomes.
    outcomes: Vec<(Started, String)>,
    /// The sum was printed: outcomes are printed one by one from then on.
    is_over: bool,
}

impl Sum {
    /// Adds an outcome of a process that has `started` at this time, in clock ticks since boot. Returns true if its line is part of the sum, and not to be printed.
    pub fn add(&mut self, report: &LiftReport, started: Option<u64>) -> bool {
        let process = (report.pid, started);
        self.count(process, &report.program, report.lift.covered_bytes, report.postponed.is_some(), || report.line())
    }

    /// Adds an outcome of a process that has ended before its line could be printed: the sum names it.
    pub fn add_unseen(&mut self, report: &LiftReport, started: Option<u64>) {
        let process = (report.pid, started);
        self.count_unseen(process, &report.program, report.lift.covered_bytes, || report.line());
    }

    fn count_unseen(&mut self, process: Started, name: &str, bytes: u64, line: impl FnOnce() -> String) {
        self.tally(process, bytes, false, line);
        self.unseen.insert(name.to_owned());
        self.held.insert(process.0);
    }

    fn count(
        &mut self,
        process: Started,
        name: &str,
        bytes: u64,
        postponed: bool,
        line: impl FnOnce() -> String,
    ) -> bool {
        let is_lifted = self.tally(process, bytes, postponed, line);
        let is_held = !self.is_printed(process, name, is_lifted) && !self.is_over;
        if is_held {
            self.held.insert(process.0);
        }
        is_held
    }

    /// Counts an outcome; returns true if something was lifted, or will be.
    fn tally(&mut self, process: Started, bytes: u64, postponed: bool, line: impl FnOnce() -> String) -> bool {
        // A front end executes the program in the same process, which counts once.
        self.processes += u64::from(self.counted.insert(process));
        self.not_lifted.remove(&process);
        self.outcomes.retain(|(other, _)| *other != process);
        self.bytes = self.bytes.saturating_add(bytes);
        self.postponed += u64::from(postponed);
        let is_lifted = bytes > 0 || postponed;
        if !is_lifted {
            self.not_lifted.insert(process);
            if self.outcomes.len() < MOST_OUTCOMES {
                self.outcomes.push((process, line()));
            }
        }
        is_lifted
    }

    /// True for the line of the first program of a name, of the first lifted one, and of the program that a front end of the same
    /// name executes.
    fn is_printed(&mut self, process: Started, name: &str, is_lifted: bool) -> bool {
        let Some(before) = self.names.get_mut(name) else {
            self.names.insert(name.to_owned(), Printed { process, lifted: is_lifted, executed: false });
            return true;
        };
        let by_front_end = before.process == process && !before.executed;
        let is_printed = by_front_end || is_lifted && !before.lifted;
        before.lifted |= is_lifted;
        before.executed |= by_front_end;
        is_printed
    }

    /// True if the line of a process was held back.
    pub fn holds(&self, pid: i32) -> bool {
        self.held.contains(&pid)
    }

    /// Ends the sum. Returns its line; `None` if it has nothing new.
    pub fn end(&mut self, only: &[String]) -> Option<String> {
        self.is_over = true;
        if self.processes == 0 {
            return Some(format!("pagelift: no program named {} was started", only.join(" or ")));
        }
        if self.held.is_empty() {
            return None;
        }
        let names: BTreeSet<&str> = self.names.keys().chain(&self.unseen).map(String::as_str).collect();
        let names: Vec<&str> = names.into_iter().collect();
        let (processes, bytes) = (counted(self.processes, "process"), format_bytes(self.bytes));
        let mut line = format!("pagelift: {}: {processes}, {bytes} on huge pages in all", names.join(", "));
        if self.postponed > 0 {
            line += &format!(", {} with more to lift after more CPU time", self.postponed);
        }
        if !self.not_lifted.is_empty() {
            line += &format!(", {} not lifted", self.not_lifted.len());
        }
        if let Some((_, first)) = self.outcomes.first() {
            line += &format!(", the first: {}", first.strip_prefix("pagelift: ").unwrap_or(first));
        }
        Some(line + " (--each prints a line for each)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn sum(processes: &[(&str, u64, bool)]) -> (Vec<bool>, Sum) {
        let mut sum = Sum::default();
        let mut pid = 100;
        let add = |&(name, bytes, postponed): &(&str, u64, bool)| {
            pid += 1;
            sum.count((pid, None), name, bytes, postponed, || format!("pagelift: {name}[{pid}]: nothing lifted: small"))
        };
        let held = processes.iter().map(add).collect();
        (held, sum)
    }

    #[test]
    fn the_first_of_each_name_has_a_line_and_the_others_are_summed() {
        let (held, mut sum) = sum(&[
            ("cc1", 8 * MIB, false),
            ("as", 0, false),
            ("cc1", 8 * MIB, false),
            ("as", 0, false),
            ("cc1", 0, true),
        ]);
        assert_eq!(held, [false, false, true, true, true]);
        assert!(sum.holds(103) && !sum.holds(101));
        let line = sum.end(&["cc1".to_owned(), "as".to_owned()]).unwrap();
        let expected = "pagelift: as, cc1: 5 processes, 16.0 MiB on huge pages in all, 1 with more to lift after more CPU \
                        time, 2 not lifted, the first: as[102]: nothing lifted: small (--each prints a line for each)";
        assert_eq!(line, expected);
        assert!(!sum.count((106, None), "cc1", MIB, false, String::new), "lines come back after the sum");
    }

    #[test]
    fn the_first_that_is_lifted_has_a_line_after_a_front_end() {
        let (held, _) =
            sum(&[("rustc", 0, false), ("rustc", 8 * MIB, false), ("rustc", 0, false), ("rustc", MIB, false)]);
        assert_eq!(held, [false, false, true, true]);
    }

    #[test]
    fn a_front_end_and_its_program_are_one_process() {
        let mut sum = Sum::default();
        for (process, bytes) in [(7, 0), (7, MIB), (8, 0), (8, MIB), (9, 0)].map(|(pid, bytes)| ((pid, Some(1)), bytes))
        {
            sum.count(process, "rustc", bytes, false, || format!("pagelift: rustc[{}]: nothing lifted", process.0));
        }
        sum.count((9, Some(2)), "rustc", MIB, false, String::new);
        let line = sum.end(&["rustc".to_owned()]).unwrap();
        assert!(
            line.contains("rustc: 4 processes, 3.0 MiB") && line.contains("1 not lifted, the first: rustc[9]"),
            "{line}"
        );
    }

    #[test]
    fn a_process_that_stays_without_a_lift_is_named_though_an_earlier_one_is_lifted_later() {
        let mut sum = Sum::default();
        for (pid, bytes) in [(7, 0), (8, 0), (9, 0), (7, MIB), (9, MIB)] {
            sum.count((pid, Some(1)), "rustc", bytes, false, || format!("pagelift: rustc[{pid}]: nothing lifted"));
        }
        let line = sum.end(&["rustc".to_owned()]).unwrap();
        assert!(line.contains("1 not lifted, the first: rustc[8]"), "{line}");
    }

    #[test]
    fn a_program_that_ended_before_it_was_seen_is_part_of_the_sum() {
        let mut sum = Sum::default();
        sum.count_unseen((7, Some(1)), "cc1", 0, || "pagelift: cc1[7]: nothing lifted: missed".to_owned());
        assert!(!sum.count((8, Some(1)), "cc1", MIB, false, String::new), "the first that can have a line has none");
        let line = sum.end(&["cc1".to_owned()]).unwrap();
        assert!(line.contains("cc1: 2 processes, 1.0 MiB"), "{line}");
        assert!(line.contains("1 not lifted, the first: cc1[7]: nothing lifted: missed"), "{line}");
        let mut alone = Sum::default();
        alone.count_unseen((7, Some(1)), "cc1", 0, String::new);
        assert!(alone.end(&["cc1".to_owned()]).unwrap().starts_with("pagelift: cc1: 1 process, 0 B on"));
    }

    #[test]
    fn the_program_of_a_lifted_front_end_has_its_line_once() {
        let mut sum = Sum::default();
        let processes = [(7, 16), (7, 34), (7, 34), (8, 16), (8, 34)];
        let held = processes.map(|(pid, bytes)| sum.count((pid, Some(1)), "rustc", bytes * MIB, false, String::new));
        assert_eq!(held, [false, false, true, true, true]);
        let line = sum.end(&["rustc".to_owned()]).unwrap();
        assert!(line.contains("rustc: 2 processes, 134.0 MiB on huge pages in all"), "{line}");
    }

    #[test]
    fn what_was_printed_needs_no_sum_and_what_never_came_is_reported() {
        let (_, mut one) = sum(&[("cc1", MIB, false), ("as", MIB, false)]);
        assert_eq!(one.end(&["cc1".to_owned()]), None);
        let mut none = Sum::default();
        let names = ["cc1".to_owned(), "as".to_owned()];
        assert_eq!(none.end(&names).unwrap(), "pagelift: no program named cc1 or as was started");
    }
}
