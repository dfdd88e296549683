//! Finds threads that may be sent signals which their process ignores, and which must be traced last.
//!
//! The kernel drops such a signal at once, unless the receiving thread is traced (`sig_ignored` of its `signal.c`):
//! then it keeps the signal for the tracer, and wakes any thread of the process that is not stopped. If that thread is
//! in a call that fails with EINTR after every interruption, the program sees an error caused by Pagelift, even if the
//! thread itself is not traced. The threads concerned are the main thread, which receives signals sent to the process,
//! and threads with children, which receive SIGCHLD. They are therefore traced last and released first.

use linux::text::text_of;
use nix::unistd::Pid;
use std::collections::BTreeSet;

/// The threads concerned of a process, at the time of the last look.
#[derive(Default)]
pub struct SignalReceivers {
    threads: BTreeSet<i32>,
    /// The latest process or thread of the machine at that time, and the threads of the process.
    looked_at: Option<(String, Vec<i32>)>,
}

impl SignalReceivers {
    /// Examines all threads of a process. Where no process or thread has been started since the last look, nothing is
    /// read: a look while the program runs saves the time while it is stopped.
    pub fn look(&mut self, process: Pid, threads: Vec<i32>) {
        let looked_at = latest_started().map(|latest| (latest, threads.clone()));
        if looked_at.is_none() || looked_at != self.looked_at {
            self.threads = threads.into_iter().filter(|&thread| is_receiver(process, thread)).collect();
            self.looked_at = looked_at;
        }
    }

    /// True for one of these threads.
    pub fn contains(&self, thread: i32) -> bool {
        self.threads.contains(&thread)
    }
}

/// True for a thread that may be sent signals which its process ignores.
pub fn is_receiver(process: Pid, thread: i32) -> bool {
    thread == process.as_raw() || has_children(process, thread)
}

/// True for a thread with children, and if the kernel does not report them (`CONFIG_PROC_CHILDREN`).
pub fn has_children(process: Pid, thread: i32) -> bool {
    text_of(format!("/proc/{process}/task/{thread}/children")).map_or(true, |children| !children.is_empty())
}

/// Returns the PID that was assigned last (proc_loadavg(5)).
fn latest_started() -> Option<String> {
    Some(text_of("/proc/loadavg").ok()?.split_whitespace().last()?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn whoever_has_children_is_found() {
        let own = nix::unistd::gettid().as_raw();
        let mut receivers = SignalReceivers::default();
        receivers.look(Pid::this(), vec![own]);
        assert!(!receivers.contains(own));
        let mut child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        receivers.look(Pid::this(), vec![own]);
        assert!(receivers.contains(own) && has_children(Pid::this(), own));
        drop(child.stdin.take());
        child.wait().unwrap();
        assert!(!has_children(Pid::this(), own) && is_receiver(Pid::this(), Pid::this().as_raw()));
    }
}
