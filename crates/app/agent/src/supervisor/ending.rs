//! Programs that end soon after a lift.

use super::action::Named;
use address_space::ProcessStat;
use linux::process_handle::ProcessHandle;
use linux::text::bytes_of;
use nix::sys::signal::Signal;
use std::time::{Duration, Instant};

/// Time after a lift within which a crash counts.
pub const WATCHED: Duration = Duration::from_secs(60);
/// Field of proc_pid_stat(5): wait status of a process that nobody has waited for yet.
const EXIT_CODE: usize = 52;
/// Signals that report a fault in a program.
const CRASHES: [Signal; 7] =
    [Signal::SIGSEGV, Signal::SIGBUS, Signal::SIGILL, Signal::SIGFPE, Signal::SIGABRT, Signal::SIGTRAP, Signal::SIGSYS];

/// A program that was lifted within the last minute.
#[derive(Debug)]
pub struct Recent {
    /// Which.
    pub named: Named,
    /// Its build.
    pub build: String,
    /// Owner of its file.
    pub owner: u32,
    /// Its user.
    pub user: u32,
    /// Handle on it.
    pub handle: ProcessHandle,
    /// When it was lifted.
    pub at: Instant,
}

impl Recent {
    /// The status with which it has ended; `Err` while it runs.
    pub fn ended(&self) -> Result<Option<i32>, ()> {
        if self.handle.is_alive() {
            return Err(());
        }
        Ok(self.handle.exit_status().or_else(|| zombie_status(self.named.identity.pid, self.named.identity.start)))
    }
}

fn zombie_status(pid: i32, start: u64) -> Option<i32> {
    let text = bytes_of(format!("/proc/{pid}/stat")).ok()?;
    let stat = ProcessStat::parse(&text)?;
    (stat.has_ended() && stat.start_time() == Some(start)).then(|| stat.number(EXIT_CODE)).flatten()
}

/// Why an end within a minute blocks the build; `None` if it does not. An end of which nothing is known counts as a crash: a
/// program that ends within a minute gains nothing by a lift anyway.
pub fn crash(status: Option<i32>, after: Duration) -> Option<String> {
    let seconds = after.as_secs();
    let Some(status) = status else {
        return Some(format!(
            "it ended within {seconds} s after its lift, and this kernel does not report how (needed: Linux 6.15)"
        ));
    };
    let signal = Signal::try_from(status & 0x7f).ok().filter(|signal| CRASHES.contains(signal))?;
    Some(format!("it was killed by {signal} within {seconds} s after its lift"))
}

/// Why an end during a measurement blocks the build; `None` if it does not. A measurement may take ten minutes, so that an end of
/// which nothing is known counts only soon after its begin.
pub fn crash_while_measured(status: Option<i32>, after: Duration) -> Option<String> {
    crash(status, after).filter(|_| status.is_some() || after < WATCHED)
}

/// Why an end during a lift blocks the build; `None` if it does not. A lift may end a program by its memory, too: SIGKILL
/// is how the kernel frees memory.
pub fn killed_by_lift(status: Option<i32>) -> Option<String> {
    let Some(status) = status else {
        return Some("it ended during its lift, and this kernel does not report how (needed: Linux 6.15)".to_owned());
    };
    let signal = Signal::try_from(status & 0x7f).ok()?;
    let counts = signal == Signal::SIGKILL || CRASHES.contains(&signal);
    counts.then(|| format!("it was killed by {signal} during its lift"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crash_is_an_end_by_certain_signals() {
        let after = Duration::from_secs(7);
        assert_eq!(crash(Some(11), after).unwrap(), "it was killed by SIGSEGV within 7 s after its lift");
        assert_eq!(crash(Some(0x80 | 7), after).unwrap(), "it was killed by SIGBUS within 7 s after its lift");
        for fine in [0, 1 << 8, 15, 9, 2] {
            assert_eq!(crash(Some(fine), after), None);
        }
        assert!(crash(None, after).unwrap().contains("Linux 6.15"));
        assert!(crash_while_measured(None, after).is_some() && crash_while_measured(Some(11), WATCHED).is_some());
        assert_eq!((crash_while_measured(None, WATCHED), crash_while_measured(Some(0), after)), (None, None));
        assert_eq!(killed_by_lift(Some(9)).unwrap(), "it was killed by SIGKILL during its lift");
        assert!(killed_by_lift(Some(11)).is_some() && killed_by_lift(None).is_some());
        assert!([0, 1 << 8, 15, 2].iter().all(|fine| killed_by_lift(Some(*fine)).is_none()));
    }
}
