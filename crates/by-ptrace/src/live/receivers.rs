//! Threads to which signals may be sent that their process ignores.
//!
//! The kernel drops such a signal at once, unless the thread that it is sent to is traced (`sig_ignored` of its
//! `signal.c`): then it is kept for its tracer, and any thread of the process that is not stopped is woken for it. Should
//! that one be in a call that gives EINTR after every interruption, its program sees an error because of us, though the
//! thread itself may be none of ours. These are the threads concerned: the main thread, to which what is sent to the
//! process goes, and those with children, whose ends are told by SIGCHLD. They are therefore the last to be traced and
//! the first to be let go.

use kernel_calls::text::text_of;
use nix::unistd::Pid;
use std::collections::BTreeSet;

/// Those of a process, as they were when it was looked at.
#[derive(Default)]
pub struct Receivers {
    threads: BTreeSet<i32>,
    /// The latest process or thread of the machine then, and the threads of the process.
    looked_at: Option<(String, Vec<i32>)>,
}

impl Receivers {
    /// Looks at all threads of a process. Where no process or thread has been started since, all is known already: what
    /// is looked up while the program runs costs no time while it stands still.
    pub fn look(&mut self, process: Pid, threads: Vec<i32>) {
        let looked_at = latest_started().map(|latest| (latest, threads.clone()));
        if looked_at.is_none() || looked_at != self.looked_at {
            self.threads = threads.into_iter().filter(|&thread| is_receiver(process, thread)).collect();
            self.looked_at = looked_at;
        }
    }

    /// True for one of them.
    pub fn contains(&self, thread: i32) -> bool {
        self.threads.contains(&thread)
    }
}

/// True for such a thread.
pub fn is_receiver(process: Pid, thread: i32) -> bool {
    thread == process.as_raw() || has_children(process, thread)
}

/// True also where the kernel does not tell (`CONFIG_PROC_CHILDREN`).
pub fn has_children(process: Pid, thread: i32) -> bool {
    text_of(format!("/proc/{process}/task/{thread}/children")).map_or(true, |children| !children.is_empty())
}

/// The number that was given last (proc_loadavg(5)).
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
        let mut receivers = Receivers::default();
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
