//! Waits for traced threads and decodes their reports.
//!
//! nix's `WaitStatus` is not used because it knows the signals 1 to 31 only: its `waitpid` returns EINVAL for a thread
//! that stops for a real-time signal (signal(7)), and the report is lost.

use nix::errno::Errno;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::time::TimeSpec;
use nix::unistd::Pid;
use std::mem::MaybeUninit;
use std::time::{Duration, Instant};

/// Set in the signal of a system call stop (`PTRACE_O_TRACESYSGOOD`, ptrace(2)).
const SYSTEM_CALL_BIT: i32 = 0x80;

/// Any tracee or child, for waitpid(2).
const ANY: Pid = Pid::from_raw(-1);

/// Maximum duration of one injected call, or of a list of calls: the longest ones fill some GiB of memory.
pub const LONGEST_CALL: Duration = Duration::from_secs(30);

/// The report of a traced thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitReport {
    /// It has ended, by an exit or by a signal.
    Ended,
    /// It has stopped.
    Stopped(Stop),
}

/// Why a traced thread has stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// Before the delivery of this signal, 1 to 64.
    Signal(i32),
    /// Before or after a system call.
    SystemCall,
    /// At a `PTRACE_EVENT_*`.
    Event {
        /// Which event.
        event: i32,
        /// SIGTRAP; for the `PTRACE_EVENT_STOP` of a group stop, the signal that has stopped the process.
        signal: i32,
    },
}

impl WaitReport {
    /// Returns `None` for a status that no tracee reports.
    fn of(status: i32) -> Option<Self> {
        if libc::WIFEXITED(status) || libc::WIFSIGNALED(status) {
            return Some(Self::Ended);
        }
        let signal = libc::WIFSTOPPED(status).then(|| libc::WSTOPSIG(status))?;
        Some(Self::Stopped(match status >> 16 {
            0 if signal == libc::SIGTRAP | SYSTEM_CALL_BIT => Stop::SystemCall,
            0 => Stop::Signal(signal),
            event => Stop::Event { event, signal },
        }))
    }
}

impl Stop {
    /// The signal that a thread at this stop is about to receive; 0: none.
    pub fn delivered_signal(self) -> i32 {
        if let Self::Signal(signal) = self { signal } else { 0 }
    }

    /// True where job control has stopped the whole process.
    pub fn is_group_stop(self) -> bool {
        matches!(self, Self::Event { event: libc::PTRACE_EVENT_STOP, signal } if signal != libc::SIGTRAP)
    }
}

/// Waits for the next report of one thread.
///
/// # Errors
/// `ECHILD` if it is not a tracee of this process; otherwise the errors of waitpid(2) except EINTR.
pub fn wait_for(thread: Pid) -> Result<WaitReport, Errno> {
    loop {
        if let Some((_, report)) = wait(thread, 0)? {
            return Ok(report);
        }
    }
}

/// Waits for the next report of any thread.
///
/// # Errors
/// `ECHILD` if there are neither tracees nor children; otherwise the errors of waitpid(2) except EINTR.
pub fn wait_for_any() -> Result<(Pid, WaitReport), Errno> {
    loop {
        if let Some(report) = wait(ANY, 0)? {
            return Ok(report);
        }
    }
}

/// Longest sleep between two polls for a report: where SIGCHLD is ignored or taken elsewhere, a poll finds the report.
const LONGEST_SLEEP: Duration = Duration::from_millis(1);

/// Waits for the next report of one thread; `None` where there is none by the deadline.
///
/// # Errors
/// As for [`wait_for`].
pub fn wait_until(thread: Pid, deadline: Instant) -> Result<Option<WaitReport>, Errno> {
    poll_until(poll, thread, deadline)
}

/// Like [`wait_until`], but the report of a signal stays pending, see [`poll_keeping_signals`].
///
/// # Errors
/// As for [`wait_for`].
pub fn wait_until_keeping_signals(thread: Pid, deadline: Instant) -> Result<Option<WaitReport>, Errno> {
    poll_until(poll_keeping_signals, thread, deadline)
}

fn poll_until(
    poll: fn(Pid) -> Result<Option<WaitReport>, Errno>,
    thread: Pid,
    deadline: Instant,
) -> Result<Option<WaitReport>, Errno> {
    loop {
        // In this order: if the machine was suspended past the deadline, the thread is polled once more.
        let left = deadline.saturating_duration_since(Instant::now());
        match poll(thread)? {
            None if !left.is_zero() => sleep_until_report(left.min(LONGEST_SLEEP)),
            report => return Ok(report),
        }
    }
}

/// Sleeps until a traced thread may have a report, which SIGCHLD announces (ptrace(2)), or for this time. This thread blocks
/// SIGCHLD, which is consumed, or sleeps for the whole time.
pub fn sleep_until_report(longest: Duration) {
    let time = TimeSpec::from_duration(longest);
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGCHLD);
    // SAFETY:
    // - the kernel reads one set and one time, which outlive the call, and writes no information.
    unsafe { libc::sigtimedwait(signals.as_ref(), std::ptr::null_mut(), time.as_ref()) };
}

/// Returns the report of one thread, if one is pending.
///
/// # Errors
/// As for [`wait_for`].
pub fn poll(thread: Pid) -> Result<Option<WaitReport>, Errno> {
    Ok(wait(thread, libc::WNOHANG)?.map(|(_, report)| report))
}

/// Like [`poll`], but the report of a signal stays pending until the thread is resumed, and is returned by each call until
/// then. A signal whose report has been taken is known to this process only: if this process is killed, the kernel resumes
/// the thread without it (`wait_task_stopped` clears the code that `ptrace_signal` returns). Requests do not need the
/// report to be taken.
///
/// # Errors
/// As for [`wait_for`].
pub fn poll_keeping_signals(thread: Pid) -> Result<Option<WaitReport>, Errno> {
    let (code, status) = peek(libc::P_PID, thread)?;
    // A stop has its event in the higher bits, as in the status of waitid(2).
    let is_signal = code == libc::CLD_TRAPPED && status >> 8 == 0 && status != libc::SIGTRAP | SYSTEM_CALL_BIT;
    match code {
        // A signal's report may have come since: it must not be taken.
        0 => Ok(None),
        _ if is_signal => Ok(Some(WaitReport::Stopped(Stop::Signal(status)))),
        // Before the thread is resumed, only its end or the stop after an exec can follow this report.
        _ => poll(thread),
    }
}

/// Returns the report of any thread, if one is pending.
///
/// # Errors
/// As for [`wait_for_any`].
pub fn poll_any() -> Result<Option<(Pid, WaitReport)>, Errno> {
    wait(ANY, libc::WNOHANG)
}

/// True if a traced thread is at the stop after an exec and has not been waited for. Its report stays pending. Since
/// Linux 5.13 every request fails with ESRCH until then, if the thread has had another number before
/// (`looks_like_a_spurious_pid`).
pub fn exec_is_pending(thread: Pid) -> bool {
    let found = peek(libc::P_PID, thread);
    found
        .is_ok_and(|(code, status)| code == libc::CLD_TRAPPED && status == libc::SIGTRAP | libc::PTRACE_EVENT_EXEC << 8)
}

/// True if the thread will be reported: it is a tracee or a child of this process, and its end has not been reported
/// yet.
pub fn is_to_be_reported(thread: Pid) -> bool {
    peek(libc::P_PID, thread).is_ok()
}

/// True if any thread will be reported, in the sense of [`is_to_be_reported`].
pub fn any_is_to_be_reported() -> bool {
    peek(libc::P_ALL, Pid::from_raw(0)).is_ok()
}

/// Waits until any thread has something to report, which stays pending. Returns the thread if it has ended.
pub fn next_to_end() -> Option<Pid> {
    let information = look(libc::P_ALL, Pid::from_raw(0), 0).ok()?;
    let has_ended = [libc::CLD_EXITED, libc::CLD_KILLED, libc::CLD_DUMPED].contains(&information.si_code);
    // SAFETY:
    // - the kernel has written the fields of SIGCHLD.
    has_ended.then(|| Pid::from_raw(unsafe { information.si_pid() }))
}

/// Returns the next report, which stays pending: its code and status (waitid(2)), zeros if there is none yet.
fn peek(which: libc::idtype_t, thread: Pid) -> Result<(i32, i32), Errno> {
    let information = look(which, thread, libc::WNOHANG)?;
    // SAFETY:
    // - the kernel has written the fields of SIGCHLD, or they are zeros.
    Ok((information.si_code, unsafe { information.si_status() }))
}

fn look(which: libc::idtype_t, thread: Pid, option: i32) -> Result<libc::siginfo_t, Errno> {
    let options = libc::WEXITED | libc::WSTOPPED | libc::WNOWAIT | libc::__WALL | option;
    let mut information = MaybeUninit::<libc::siginfo_t>::zeroed();
    // SAFETY:
    // - the kernel writes one structure.
    let result = unsafe { libc::waitid(which, thread.as_raw() as u32, information.as_mut_ptr(), options) };
    Errno::result(result)?;
    // SAFETY:
    // - the structure is plain integers, zeroed before, and every bit pattern is a number.
    Ok(unsafe { information.assume_init() })
}

fn wait(thread: Pid, options: i32) -> Result<Option<(Pid, WaitReport)>, Errno> {
    let mut status = 0;
    loop {
        // Threads of other processes are only reported with `__WALL` (wait(2)).
        // SAFETY:
        // - the kernel writes one integer.
        let found = unsafe { libc::waitpid(thread.as_raw(), &mut status, options | libc::__WALL) };
        match Errno::result(found) {
            Ok(0) => return Ok(None),
            Ok(pid) => return Ok(WaitReport::of(status).map(|report| (Pid::from_raw(pid), report))),
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

/// True for signals that stop a whole process.
pub fn is_stop_signal(signal: i32) -> bool {
    [libc::SIGSTOP, libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU].contains(&signal)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::remote::requests::{self, Resume};
    use nix::sys::signal::{Signal, kill};
    use std::process::Command;

    fn send(pid: Pid, signal: i32) {
        // SAFETY:
        // - sends a signal to a child of this test and touches no memory.
        assert_eq!(unsafe { libc::kill(pid.as_raw(), signal) }, 0);
    }

    #[test]
    fn each_of_the_64_signals_is_reported_by_its_number() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let pid = Pid::from_raw(child.id() as i32);
        requests::seize(pid, libc::PTRACE_O_TRACESYSGOOD).unwrap();
        for signal in (1..=64).filter(|&signal| signal != libc::SIGKILL && signal != libc::SIGCONT) {
            // 32 and 33 are reserved by the C library; the kernel sends them like any other.
            send(pid, signal);
            assert_eq!(wait_for(pid), Ok(WaitReport::Stopped(Stop::Signal(signal))));
            assert_eq!(poll(pid), Ok(None));
            requests::resume(pid, Resume::Continue, 0).unwrap();
        }
        requests::interrupt(pid).unwrap();
        assert!(is_to_be_reported(pid) && any_is_to_be_reported() && !exec_is_pending(pid));
        assert_eq!(
            wait_for(pid),
            Ok(WaitReport::Stopped(Stop::Event { event: libc::PTRACE_EVENT_STOP, signal: libc::SIGTRAP }))
        );
        requests::resume(pid, Resume::ToSystemCall, 0).unwrap();
        // An interrupted sleep is restarted by a system call.
        assert_eq!(wait_for(pid), Ok(WaitReport::Stopped(Stop::SystemCall)));
        kill(pid, Signal::SIGKILL).unwrap();
        assert!(is_to_be_reported(pid));
        assert_eq!(wait_for(pid), Ok(WaitReport::Ended));
        assert!(!is_to_be_reported(pid));
        assert_eq!(poll(pid), Err(Errno::ECHILD));
        drop(child.wait());
    }

    #[test]
    fn a_signal_whose_report_is_kept_is_not_lost_with_its_tracer() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let pid = Pid::from_raw(child.id() as i32);
        // A tracer that ends while the child is about to receive the signal.
        let trace = || {
            requests::seize(pid, 0).unwrap();
            send(pid, libc::SIGUSR1);
            let mut report = None;
            while report.is_none() {
                report = poll_keeping_signals(pid).unwrap();
            }
            (report, poll_keeping_signals(pid).unwrap())
        };
        let reports = std::thread::scope(|scope| scope.spawn(trace).join());
        let deadline = Instant::now() + LONGEST_CALL;
        let mut ended = None;
        while ended.is_none() && Instant::now() < deadline {
            ended = child.try_wait().unwrap();
        }
        drop(child.kill());
        drop(child.wait());
        let signal = Some(WaitReport::Stopped(Stop::Signal(libc::SIGUSR1)));
        assert_eq!(reports.unwrap(), (signal, signal));
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&ended.unwrap()), Some(libc::SIGUSR1));
    }

    #[test]
    fn the_report_of_a_signal_stays_pending_until_its_thread_is_resumed() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let pid = Pid::from_raw(child.id() as i32);
        requests::seize(pid, libc::PTRACE_O_TRACESYSGOOD).unwrap();
        let wait = || wait_until_keeping_signals(pid, Instant::now() + LONGEST_CALL);
        let reported = |stop| Ok(Some(WaitReport::Stopped(stop)));
        for signal in [libc::SIGSTOP, libc::SIGTRAP, libc::SIGUSR1, 64] {
            send(pid, signal);
            assert_eq!([wait(), poll_keeping_signals(pid)], [reported(Stop::Signal(signal)); 2]);
            // Requests need no report that has been consumed.
            assert_eq!(requests::signal_information(pid).map(|information| information.si_signo), Ok(signal));
            requests::resume(pid, Resume::Continue, 0).unwrap();
            assert_eq!(poll_keeping_signals(pid), Ok(None));
        }
        requests::interrupt(pid).unwrap();
        assert_eq!(wait(), reported(Stop::Event { event: libc::PTRACE_EVENT_STOP, signal: libc::SIGTRAP }));
        assert_eq!(poll_keeping_signals(pid), Ok(None));
        requests::resume(pid, Resume::ToSystemCall, 0).unwrap();
        assert_eq!([wait(), poll_keeping_signals(pid)], [reported(Stop::SystemCall), Ok(None)]);
        requests::resume(pid, Resume::Continue, 0).unwrap();
        // A signal that is delivered is not reported again.
        send(pid, libc::SIGUSR1);
        assert_eq!(wait(), reported(Stop::Signal(libc::SIGUSR1)));
        requests::resume(pid, Resume::Continue, libc::SIGUSR1).unwrap();
        assert_eq!(wait(), Ok(Some(WaitReport::Ended)));
        assert_eq!(poll_keeping_signals(pid), Err(Errno::ECHILD));
        drop(child.wait());
    }

    #[test]
    fn a_thread_that_is_killed_while_its_signal_is_pending_reports_its_end() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let pid = Pid::from_raw(child.id() as i32);
        requests::seize(pid, 0).unwrap();
        send(pid, libc::SIGUSR1);
        let wait = || wait_until_keeping_signals(pid, Instant::now() + LONGEST_CALL);
        assert_eq!(wait(), Ok(Some(WaitReport::Stopped(Stop::Signal(libc::SIGUSR1)))));
        kill(pid, Signal::SIGKILL).unwrap();
        assert_eq!(wait(), Ok(Some(WaitReport::Ended)));
        drop(child.wait());
    }

    #[test]
    fn a_group_stop_is_distinguished_from_an_interrupt() {
        let stop = |signal| Stop::Event { event: libc::PTRACE_EVENT_STOP, signal };
        assert!(stop(libc::SIGTSTP).is_group_stop() && !stop(libc::SIGTRAP).is_group_stop());
        assert!(!Stop::Signal(libc::SIGSTOP).is_group_stop());
        let others = [Stop::Signal(40), stop(libc::SIGSTOP), Stop::SystemCall];
        assert_eq!(others.map(Stop::delivered_signal), [40, 0, 0]);
    }
}
