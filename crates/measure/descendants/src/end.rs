//! The end of processes: a request first, then SIGKILL.

use crate::{StartedProcess, with_descendants};
use nix::sys::signal::Signal;
use std::time::{Duration, Instant};

/// The interval for checks.
const LOOK: Duration = Duration::from_millis(10);

/// Ends processes as a service manager does: SIGTERM to all, and SIGKILL to those that still run after `limit`, with
/// their descendants.
pub fn end(processes: &[StartedProcess], limit: Duration) {
    for (index, process) in processes.iter().enumerate() {
        // Some programs skip their last work at a second SIGTERM.
        if !processes[..index].contains(process) {
            process.signal(Signal::SIGTERM);
        }
    }
    let until = Instant::now() + limit;
    while processes.iter().any(|process| process.runs()) {
        if Instant::now() >= until {
            return kill_with_descendants(processes);
        }
        std::thread::sleep(LOOK);
    }
}

/// Sends SIGKILL to processes and their descendants.
pub fn kill_with_descendants(processes: &[StartedProcess]) {
    with_descendants(processes).into_iter().for_each(|process| process.signal(Signal::SIGKILL));
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};
    use std::process::{Child, Command, Stdio};

    /// Time limit of a wait that usually takes milliseconds.
    const LONG: Duration = Duration::from_secs(60);

    /// A shell whose script prints a line once it is ready, and its tree.
    fn shell(script: &str) -> (Child, Vec<StartedProcess>) {
        let mut shell = Command::new("sh").args(["-c", script]).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(shell.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let root = StartedProcess::of(shell.id() as i32).unwrap();
        (shell, with_descendants(&[root]))
    }

    fn wait_until_none_runs(processes: &[StartedProcess]) {
        let until = Instant::now() + LONG;
        while processes.iter().any(|process| process.runs()) {
            assert!(Instant::now() < until, "{processes:?}");
            std::thread::sleep(LOOK);
        }
    }

    #[test]
    fn descendants_end_with_their_root() {
        let (mut root, tree) = shell("sleep 1000 & echo; wait; true");
        assert_eq!(tree.len(), 2, "{tree:?}");
        end(&tree, LONG);
        assert!(!tree.iter().any(|process| process.runs()));
        root.wait().unwrap();
        // The child is a zombie until another process has waited for it.
        assert!(!with_descendants(&tree).contains(&tree[0]));
    }

    #[test]
    fn descendants_that_ignore_the_request_are_killed() {
        let (mut root, tree) = shell("(trap '' TERM; echo; while :; do sleep 1000; done) & wait");
        end(&tree, Duration::from_millis(50));
        root.wait().unwrap();
        wait_until_none_runs(&tree);
    }

    #[test]
    fn a_process_that_reuses_a_pid_is_another_one() {
        let (mut root, tree) = shell("echo; exec sleep 1000");
        let before = StartedProcess::earlier_owner(tree[0]);
        end(&[before], LONG);
        assert!(!before.runs() && tree[0].runs() && with_descendants(&[before]).is_empty());
        kill_with_descendants(&tree);
        root.wait().unwrap();
    }
}
