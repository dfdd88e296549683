//! A process with all its descendants: their usage.

use crate::observation::counters_with_children;
use address_space::ProcessStat;
use measure::record::Counters;
use nix::sys::time::TimeValLike;
use nix::time::{clock_getcpuclockid, clock_gettime};
use nix::unistd::{Pid, SysconfVar, sysconf};
use process_view::ProcessFiles;
pub(crate) use process_view::tree_of;
use std::fs;
use translation::walk_counters::Target;

/// Returns the targets of counters for processes that are a process and its descendants: the threads of a process that
/// is alone; otherwise also its later children. CPU time and system calls are counted for them.
pub(crate) fn targets(processes: &[i32]) -> impl Iterator<Item = Target> {
    let is_alone = processes.len() == 1;
    processes.iter().map(move |&pid| if is_alone { Target::Process(pid) } else { Target::ProcessWithChildren(pid) })
}

/// A process and its visible descendants that execute the same program; the process is first.
pub fn of_one_program(root: i32) -> Vec<i32> {
    let program = |pid: i32| fs::read_link(format!("/proc/{pid}/exe")).ok();
    let of_root = program(root);
    let is_same = |pid: &i32| *pid == root || (of_root.is_some() && program(*pid) == of_root);
    tree_of(root).into_iter().filter(is_same).collect()
}

/// A process and its visible descendants that were forked from it and have executed no program since; the process is first.
pub fn forks_of(root: i32) -> Vec<i32> {
    let start_of_stack = |pid| ProcessStat::parse(&stat_of(pid)?)?.start_of_stack().filter(|&start| start != 0);
    let of_root = start_of_stack(root);
    let is_fork = |pid: &i32| *pid == root || (of_root.is_some() && start_of_stack(*pid) == of_root);
    of_one_program(root).into_iter().filter(is_fork).collect()
}

fn stat_of(pid: i32) -> Option<String> {
    ProcessFiles::of(pid).text("stat").ok()
}

/// Seconds of CPU time and the counters of a process and its descendants, including those that have ended and were
/// waited for. `None` if the process does not exist. The time of running processes is exact, the time of the others in
/// the kernel's ticks.
pub(crate) fn used_by(root: i32) -> Option<(f64, Counters)> {
    let ticks = sysconf(SysconfVar::CLK_TCK).ok().flatten()? as f64;
    let (mut cpu, mut all) = (cpu_of(root)?, Counters::default());
    for pid in tree_of(root) {
        // One that has just ended is in its parent's sum from now on.
        let Some((own, children)) = stat_of(pid).and_then(|stat| counters_with_children(&stat, ticks)) else {
            continue;
        };
        if pid != root {
            cpu += cpu_of(pid).unwrap_or(own.user + own.system);
        }
        cpu += children.user + children.system;
        for part in [own, children] {
            all.minor_faults += part.minor_faults;
            all.major_faults += part.major_faults;
            all.user += part.user;
            all.system += part.system;
        }
    }
    Some((cpu, all))
}

fn cpu_of(pid: i32) -> Option<f64> {
    let time = clock_getcpuclockid(Pid::from_raw(pid)).and_then(clock_gettime).ok()?;
    Some(time.num_nanoseconds() as f64 / 1e9)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::signal::{Signal, kill};
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};
    use std::time::{Duration, Instant};

    /// Time limit of a wait that usually takes milliseconds.
    const LONG: Duration = Duration::from_secs(20);
    /// The interval for checks.
    const LOOK: Duration = Duration::from_millis(10);

    #[test]
    fn a_tree_holds_children_of_children_and_their_time() {
        let script =
            "sh -c 'i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done'; sh -c 'echo $$; exec sleep 100' & wait";
        let mut shell = Command::new("sh").args(["-c", script]).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(shell.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let (root, grandchild) = (shell.id() as i32, line.trim().parse::<i32>().unwrap());
        let tree = tree_of(root);
        assert!(tree[0] == root && tree.contains(&grandchild), "{tree:?}");
        let (cpu, counters) = used_by(root).unwrap();
        assert!(cpu >= 0.01 && counters.minor_faults > 0 && counters.user > 0.0, "{cpu} {counters:?}");
        for pid in tree.into_iter().rev() {
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
        shell.wait().unwrap();
        assert!(used_by(root).is_none());
    }

    #[test]
    fn of_one_program_are_its_own_copies_alone() {
        // The second shell has executed the same program again.
        let script = "sleep 100 & (while :; do sleep 0.1; done) & sh -c 'sleep 100; :' & echo $$; wait";
        let mut shell = Command::new("sh").args(["-c", script]).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(shell.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let root = shell.id() as i32;
        let all = tree_of(root);
        // The loop is a copy of the shell, and so is each sleep until it has been executed.
        let until = Instant::now() + LONG;
        let look = || (of_one_program(root), forks_of(root));
        let (mut same, mut forks) = look();
        while (same.len(), forks.len()) != (3, 2) && Instant::now() < until {
            std::thread::sleep(LOOK);
            (same, forks) = look();
        }
        for pid in tree_of(root).into_iter().rev() {
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
        shell.wait().unwrap();
        assert!(same.len() == 3 && same[0] == root && all.len() >= 4, "{same:?} of {all:?}");
        assert!(forks.len() == 2 && forks[0] == root && same.contains(&forks[1]), "{forks:?} of {same:?}");
    }
}
