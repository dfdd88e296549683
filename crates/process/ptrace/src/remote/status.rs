//! Reads `/proc/PID/status` of a thread (proc_pid_status(5)).

use crate::remote::requests::signal_mask;
use linux::text::text_of;
use nix::unistd::Pid;
use std::mem::MaybeUninit;

/// The fields that are needed here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ThreadStatus {
    blocked: u64,
    ignored: u64,
    handled: u64,
    pending: u64,
    /// Mode of seccomp: 0 none, 1 strict, 2 filter; `None` where the status cannot be read. A kernel without seccomp reports no
    /// mode, which is 0.
    pub seccomp: Option<u32>,
    /// Number of seccomp filters (Linux 5.9).
    pub seccomp_filters: u32,
    /// The process has disabled transparent huge pages for itself (`THP_enabled`, Linux 5.0).
    pub thp_off: bool,
    /// Number of threads of the process; 0 where the kernel does not report it.
    pub threads: u32,
    /// PID of the process in its innermost PID namespace (Linux 4.1).
    pub own_number: Option<i32>,
}

impl ThreadStatus {
    /// Reads the status. Fields that cannot be read count as not set, except for the mode of seccomp.
    pub fn read(pid: Pid) -> Self {
        text_of(format!("/proc/{pid}/status")).map_or_else(|_| Self::default(), |text| Self::parse(&text))
    }

    /// Returns the facts about calls and SIGTRAP for the process that has started this one and is at its exec, without
    /// reading a file: both processes ignore the same signals and have the same filters. `None` if that is not enough.
    pub fn of_our_launcher(pid: Pid) -> Option<Self> {
        // SAFETY:
        // - takes integers and touches no memory.
        let seccomp = unsafe { libc::prctl(libc::PR_GET_SECCOMP, 0, 0, 0, 0) };
        let mut action = MaybeUninit::<libc::sigaction>::uninit();
        // SAFETY:
        // - without a new disposition nothing changes, and on success the old one is written completely.
        let disposition = unsafe {
            (libc::sigaction(libc::SIGTRAP, std::ptr::null(), action.as_mut_ptr()) == 0)
                .then(|| action.assume_init().sa_sigaction)
        };
        let ignored = if disposition? == libc::SIG_IGN { bit(libc::SIGTRAP) } else { 0 };
        let blocked = signal_mask(pid).ok()?;
        // Only the status file contains the number of filters.
        (seccomp == 0).then(|| Self {
            blocked,
            ignored,
            seccomp: Some(0),
            threads: 1,
            own_number: Some(pid.as_raw()),
            ..Self::default()
        })
    }

    fn parse(text: &str) -> Self {
        let mut status = Self { seccomp: Some(0), ..Self::default() };
        // Skips two lines in three.
        let of_interest = |line: &&str| matches!(line.as_bytes().first(), Some(b'S' | b'T' | b'N'));
        for (field, value) in text.lines().filter(of_interest).filter_map(|line| line.split_once(':')) {
            let value = value.trim();
            match field {
                "SigBlk" => status.blocked = u64::from_str_radix(value, 16).unwrap_or(0),
                "SigIgn" => status.ignored = u64::from_str_radix(value, 16).unwrap_or(0),
                "SigCgt" => status.handled = u64::from_str_radix(value, 16).unwrap_or(0),
                // Pending for the thread, and for its process.
                "SigPnd" | "ShdPnd" => status.pending |= u64::from_str_radix(value, 16).unwrap_or(0),
                "Seccomp" => status.seccomp = value.parse().ok(),
                "THP_enabled" => status.thp_off = value == "0",
                "Threads" => status.threads = value.parse().unwrap_or(0),
                "NSpid" => status.own_number = value.split_whitespace().last().and_then(|last| last.parse().ok()),
                "Seccomp_filters" => status.seccomp_filters = value.parse().unwrap_or(0),
                _ => {}
            }
        }
        status
    }

    /// True if the thread blocks the signal.
    pub fn blocks(&self, signal: i32) -> bool {
        self.blocked & bit(signal) != 0
    }

    /// True if this mask is in force. The kernel omits SIGKILL and SIGSTOP from every mask.
    pub fn has_mask(&self, mask: u64) -> bool {
        (self.blocked ^ mask) & !(bit(libc::SIGKILL) | bit(libc::SIGSTOP)) == 0
    }

    /// True if the process ignores the signal.
    pub fn ignores(&self, signal: i32) -> bool {
        self.ignored & bit(signal) != 0
    }

    /// True if the process has a handler for the signal.
    pub fn handles(&self, signal: i32) -> bool {
        self.handled & bit(signal) != 0
    }

    /// True if the process has a handler for any signal.
    pub fn handles_any(&self) -> bool {
        self.handled != 0
    }

    /// True if the process has a handler for a signal that the thread does not block.
    pub fn handles_any_unblocked(&self) -> bool {
        self.handled & !self.blocked != 0
    }

    /// True if a handler will run for a pending signal.
    pub fn has_signal_to_handle(&self) -> bool {
        self.pending & self.handled & !self.blocked != 0
    }
}

/// True for a thread that has ended or is ending: its state is zombie or dead, or it no longer exists.
pub fn is_ending(process: Pid, thread: i32) -> bool {
    state(process, thread).is_none_or(|state| matches!(state, 'Z' | 'X'))
}

/// True for a thread in uninterruptible sleep, such as for a disk or in vfork, which cannot be stopped.
pub fn sleeps_uninterruptibly(process: Pid, thread: i32) -> bool {
    state(process, thread) == Some('D')
}

/// True for a thread that runs, or waits for a CPU.
pub fn is_runnable(process: Pid, thread: i32) -> bool {
    state(process, thread) == Some('R')
}

/// The state of a thread as one letter (proc_pid_stat(5)); `None` where the thread no longer exists.
fn state(process: Pid, thread: i32) -> Option<char> {
    let text = text_of(format!("/proc/{process}/task/{thread}/status")).ok()?;
    text.lines().find_map(|line| line.strip_prefix("State:"))?.trim().chars().next()
}

/// The bit of a signal in a mask.
pub fn bit(signal: i32) -> u64 {
    1 << (signal - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_that_cannot_be_read_is_not_one_without_seccomp() {
        let mode = |text: &str| ThreadStatus::parse(text).seccomp;
        assert_eq!([mode("Seccomp:\t0\n"), mode("Name:\tprog\n"), mode("Seccomp:\t?\n")], [Some(0), Some(0), None]);
        // Above the kernel's largest possible number (PID_MAX_LIMIT is 4 million).
        assert_eq!(ThreadStatus::read(Pid::from_raw(i32::MAX)).seccomp, None);
        assert!(ThreadStatus::read(Pid::this()).seccomp.is_some());
    }

    #[test]
    fn masks_are_read_by_signal() {
        let masks = "SigPnd:\t0000000000000000\nShdPnd:\t0000000000000200\nSigBlk:\t0000000000000010\n\
                     SigIgn:\t0000000000001000\nSigCgt:\t0000000000000200\n";
        let status =
            ThreadStatus::parse(&format!("NSpid:\t4711\t12\nThreads:\t3\nTHP_enabled:\t0\n{masks}Seccomp:\t2\n"));
        assert!(status.blocks(libc::SIGTRAP) && !status.ignores(libc::SIGTRAP));
        assert!(status.ignores(libc::SIGPIPE) && !status.blocks(libc::SIGPIPE));
        assert!(status.handles(libc::SIGUSR1) && status.has_signal_to_handle());
        let blocked = ThreadStatus { blocked: bit(libc::SIGUSR1), ..status };
        assert!(blocked.handles_any() && status.handles_any_unblocked() && !blocked.handles_any_unblocked());
        assert!(!blocked.has_signal_to_handle() && !status.handles(libc::SIGTRAP));
        assert!(status.thp_off && !ThreadStatus::parse("THP_enabled:\t1\n").thp_off);
        assert_eq!((status.seccomp, status.threads, status.own_number), (Some(2), 3, Some(12)));
    }
}
