//! Disturbances that make a block useless. They are found without looking at its value.

use crate::tree::tree_of;
use nix::unistd::{SysconfVar, sysconf};
use process_view::ProcessFiles;
use serde::Serialize;
use std::fs;
use std::time::Instant;

/// Share of the CPUs' time that a hypervisor may take.
const MOST_STOLEN: f64 = 0.01;

/// Why a block is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Disturbance {
    /// The hypervisor took more than 1 % of the CPUs' time.
    Steal,
    /// A switch was refused at first.
    RefusedSwitch,
    /// Threads of the program were started or ended.
    Threads,
    /// A window had too little work, or a counter went backwards.
    LittleWork,
}

impl Disturbance {
    /// The word in JSON.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Steal => "steal",
            Self::RefusedSwitch => "refused-switch",
            Self::Threads => "threads",
            Self::LittleWork => "little-work",
        }
    }
}

/// State of the machine and the program that must not change within a block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Quiet {
    at: Instant,
    threads: Option<u64>,
    /// Seconds that the hypervisor has taken from each CPU since the boot, on average.
    stolen: Option<f64>,
}

impl Quiet {
    pub(super) fn now(pid: i32) -> Self {
        Self { at: Instant::now(), threads: threads_of(pid), stolen: stolen() }
    }

    pub(super) fn disturbance_until(&self, end: &Self) -> Option<Disturbance> {
        let most = MOST_STOLEN * (end.at - self.at).as_secs_f64();
        if end.stolen.zip(self.stolen).is_some_and(|(end, begin)| end - begin > most) {
            return Some(Disturbance::Steal);
        }
        (self.threads != end.threads).then_some(Disturbance::Threads)
    }
}

/// Threads of a process and its descendants.
fn threads_of(pid: i32) -> Option<u64> {
    let of_one = |pid| threads_in(&ProcessFiles::of(pid).text("stat").ok()?);
    tree_of(pid).into_iter().map(of_one).sum()
}

/// `num_threads` of proc_pid_stat(5).
fn threads_in(stat: &str) -> Option<u64> {
    let (_, behind_name) = stat.rsplit_once(')')?;
    behind_name.split_ascii_whitespace().nth(17)?.parse().ok()
}

fn stolen() -> Option<f64> {
    let ticks = sysconf(SysconfVar::CLK_TCK).ok().flatten()? as f64;
    Some(stolen_ticks(&fs::read_to_string("/proc/stat").ok()?)? / ticks)
}

/// The mean `steal` of the CPUs that are online. The first line of proc_stat(5) has their sum, and this process may be bound to
/// fewer CPUs.
fn stolen_ticks(stat: &str) -> Option<f64> {
    let mut lines = stat.lines();
    let all: u64 = lines.next()?.strip_prefix("cpu ")?.split_ascii_whitespace().nth(7)?.parse().ok()?;
    let cpus = lines.take_while(|line| line.starts_with("cpu")).count();
    Some(all as f64 / cpus.max(1) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn the_kernel_s_texts_are_read() {
        let stat = "12 (a) b) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 5 0 99";
        assert_eq!(threads_in(stat), Some(5));
        assert_eq!(threads_in("12 (a"), None);
        assert_eq!(stolen_ticks("cpu  1 2 3 4 5 6 7 80 9 10\ncpu0 1\nintr 1\n"), Some(80.0));
        let many = (0..64).map(|cpu| format!("cpu{cpu} 1\n")).collect::<String>();
        assert_eq!(stolen_ticks(&format!("cpu  1 2 3 4 5 6 7 128 9 10\n{many}intr 1\n")), Some(2.0));
        // A child of another test may end between the list of processes and its own file.
        let own = std::process::id() as i32;
        assert!((0..1000).any(|_| threads_of(own).is_some_and(|threads| threads >= 1)) && stolen().is_some());
    }

    #[test]
    fn a_block_is_dropped_for_its_surroundings() {
        let begin = Quiet { at: Instant::now(), threads: Some(3), stolen: Some(5.0) };
        let after = Quiet { at: begin.at + Duration::from_secs(1), ..begin };
        assert_eq!(begin.disturbance_until(&after), None);
        let stolen = |share: f64| Quiet { stolen: Some(5.0 + share), ..after };
        assert_eq!(begin.disturbance_until(&stolen(0.009)), None);
        assert_eq!(begin.disturbance_until(&stolen(0.011)), Some(Disturbance::Steal));
        let fewer = Quiet { threads: Some(2), ..after };
        assert_eq!(begin.disturbance_until(&fewer), Some(Disturbance::Threads));
    }
}
