//! Suspension by job control (Ctrl-Z).

use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use std::sync::{Mutex, PoisonError};

/// The signals that suspend a process, except SIGSTOP, which cannot be ignored (signal(7)).
const SIGNALS: [Signal; 3] = [Signal::SIGTSTP, Signal::SIGTTIN, Signal::SIGTTOU];

/// The number of values of [`NotSuspended`], and the actions before the first one.
static IN_FORCE: Mutex<(usize, Vec<(Signal, SigAction)>)> = Mutex::new((0, Vec::new()));

/// Ignores job control while any value of this type exists: a process that keeps threads of another one stopped must
/// not be suspended itself. A Ctrl-Z in that time has no effect. Programs started in that time ignore it, too.
#[derive(Debug)]
pub struct NotSuspended(());

impl NotSuspended {
    /// Begins to ignore the signals, in all threads of this process.
    pub fn begin() -> Self {
        let mut in_force = IN_FORCE.lock().unwrap_or_else(PoisonError::into_inner);
        if in_force.0 == 0 {
            let ignored = SigAction::new(SigHandler::SigIgn, SaFlags::empty(), SigSet::empty());
            in_force.1 = SIGNALS.into_iter().filter_map(|signal| Some((signal, set(signal, &ignored)?))).collect();
        }
        in_force.0 += 1;
        Self(())
    }
}

impl Drop for NotSuspended {
    fn drop(&mut self) {
        let mut in_force = IN_FORCE.lock().unwrap_or_else(PoisonError::into_inner);
        in_force.0 -= 1;
        if in_force.0 == 0 {
            for (signal, action) in std::mem::take(&mut in_force.1) {
                set(signal, &action);
            }
        }
    }
}

/// Sets the action of a signal and returns the action before.
fn set(signal: Signal, action: &SigAction) -> Option<SigAction> {
    // SAFETY:
    // - the action is to ignore the signal, or the action that was in force before.
    unsafe { sigaction(signal, action) }.ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_ignored(signal: Signal) -> bool {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:\t")).unwrap();
        u64::from_str_radix(line, 16).unwrap() & (1 << (signal as u32 - 1)) != 0
    }

    #[test]
    fn the_last_value_restores_the_actions() {
        let before = SIGNALS.map(is_ignored);
        let (first, second) = (NotSuspended::begin(), NotSuspended::begin());
        drop(first);
        assert_eq!(SIGNALS.map(is_ignored), [true; 3]);
        drop(second);
        assert_eq!(SIGNALS.map(is_ignored), before);
    }
}
