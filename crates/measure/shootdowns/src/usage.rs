//! Page faults and CPU time of processes, by `/proc/PID/stat` (proc_pid_stat(5)).

use nix::unistd::{SysconfVar, sysconf};
use process_view::ProcessFiles;
use std::collections::HashMap;
use std::fs;

/// Clock ticks each second on all architectures that Pagelift supports.
const USUAL_TICKS: i64 = 100;

/// A process's usage at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Usage {
    /// When it was started, in clock ticks after the boot; another process of the same number has another one.
    started: u64,
    /// Page faults of all its threads, minor and major.
    pub faults: u64,
    /// CPU seconds in the kernel: system calls, page faults and interrupts.
    pub kernel_seconds: f64,
}

impl Usage {
    /// A process's usage; `None` if it has ended.
    pub fn of(pid: i32) -> Option<Self> {
        let ticks = sysconf(SysconfVar::CLK_TCK).ok().flatten().unwrap_or(USUAL_TICKS);
        Self::parse(&ProcessFiles::of(pid).text("stat").ok()?, ticks)
    }

    fn parse(text: &str, ticks: i64) -> Option<Self> {
        // The name may hold anything, parentheses too.
        let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
        // The first field here is the third in the manual page.
        let number = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
        let faults = number(10)?.saturating_add(number(12)?);
        Some(Self { started: number(22)?, faults, kernel_seconds: number(15)? as f64 / ticks.max(1) as f64 })
    }

    /// The use since an earlier moment, at which the process may not have been there yet.
    pub fn since(self, before: Option<&Self>) -> (u64, f64) {
        let before = before.filter(|before| before.started == self.started).copied().unwrap_or_default();
        let seconds = (self.kernel_seconds - before.kernel_seconds).max(0.0);
        (self.faults.saturating_sub(before.faults), seconds)
    }
}

/// The usage of a process during the watch.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Used {
    /// At its begin, or at the start of the watch.
    pub before: Option<Usage>,
    /// As last read.
    pub last: Option<Usage>,
    /// The usage at the start of the watch was not kept.
    pub is_unknown: bool,
}

impl Used {
    /// Page faults and kernel seconds; `None` if it had ended before they could be read.
    pub fn sums(&self) -> Option<(u64, f64)> {
        self.last.filter(|_| !self.is_unknown).map(|last| last.since(self.before.as_ref()))
    }
}

/// Maximum number of processes whose usage at the start of the watch is kept.
pub(crate) const MOST_USAGES: usize = 65_536;

/// The usage of all processes up to now; of [`MOST_USAGES`] if there are more.
pub(crate) fn of_all() -> HashMap<i32, Usage> {
    let entries = fs::read_dir("/proc").into_iter().flatten().filter_map(Result::ok);
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    numbers.filter_map(|pid| Some((pid, Usage::of(pid)?))).take(MOST_USAGES).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAT: &str = "7 (a) b (c) R 1 7 7 0 -1 4194304 1000 9000 5 700 250 130 11 12 20 0 4 0 8421 1 2 3";

    #[test]
    fn a_line_of_stat_is_read() {
        let usage = Usage::parse(STAT, 100).unwrap();
        assert_eq!(usage, Usage { started: 8421, faults: 1005, kernel_seconds: 1.3 });
        for text in ["", "7 (a", "7 (a) R", "7 (a) R 1 7 7 0 -1 4194304 x 9000 5 700 250 130 11 12 20 0 4 0 8421"] {
            assert_eq!(Usage::parse(text, 100), None, "{text}");
        }
    }

    #[test]
    fn another_process_of_the_number_starts_at_zero() {
        let usage = |started, faults| Usage { started, faults, kernel_seconds: faults as f64 };
        assert_eq!(usage(1, 10).since(Some(&usage(1, 4))), (6, 6.0));
        assert_eq!(usage(2, 3).since(Some(&usage(1, 4))), (3, 3.0));
        assert_eq!(usage(2, 3).since(None), (3, 3.0));
    }

    #[test]
    fn use_since_an_unknown_moment_is_unknown() {
        let used = Used { last: Some(Usage::default()), ..Used::default() };
        assert_eq!(used.sums(), Some((0, 0.0)));
        assert_eq!(Used { is_unknown: true, ..used }.sums(), None);
    }

    #[test]
    fn this_process_has_faults() {
        let all = of_all();
        let own = std::process::id() as i32;
        assert!(all[&own].faults > 0 && Usage::of(own).unwrap().faults >= all[&own].faults);
    }
}
