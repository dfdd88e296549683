//! The program's own PR_SET_THP_DISABLE, which is suspended while it is lifted.

use super::{LiveExecutor, Target};
use crate::remote::arch::numbers;
use crate::remote::calls::failed;
use lift_execution::CallError;
use nix::errno::Errno;
use std::time::{Duration, Instant};

/// Maximum time for which a thread is looked for that lets the program's own setting stand again: where only threads in
/// system calls can make calls, there is none for a while.
const RESUME_TIMEOUT: Duration = Duration::from_secs(15);

/// How a program was left.
pub struct Finished {
    /// The program; it can be worked on again.
    pub target: Target,
    /// A setting of the program's own that could not be put back, with the reason and the fix.
    pub still_suspended: Option<String>,
}

impl Finished {
    /// Adds what could not be put back to the reason of a refusal.
    pub fn with_reason(&self, why: String) -> String {
        self.still_suspended.iter().fold(why, |why, still| format!("{why}; {still}"))
    }
}

/// The sentence about a setting that stays suspended; none for a program that has ended.
pub(super) fn complaint(error: &CallError, refusal: Option<String>, pid: i32) -> Option<String> {
    if error.errno == Errno::ESRCH as i32 {
        return None;
    }
    let why = refusal.unwrap_or_else(|| error.to_string());
    Some(format!(
        "its own PR_SET_THP_DISABLE is still suspended: {why}; fix: `pagelift detach {pid}` when one of its threads waits in a \
         system call"
    ))
}

impl LiveExecutor {
    /// Suspends the program's own PR_SET_THP_DISABLE until [`LiveExecutor::finish`]: what is lifted in between stays on
    /// huge pages, as for a program that disables them after it was lifted at its start.
    ///
    /// # Errors
    /// Those of prctl(2); the setting is unchanged then.
    pub fn suspend_thp_disable(&mut self) -> Result<(), CallError> {
        let chosen = self.with_thread(|calls| {
            let get = libc::PR_GET_THP_DISABLE as u64;
            let chosen = calls.call("prctl(PR_GET_THP_DISABLE)", numbers::SYS_prctl, [get, 0, 0, 0, 0, 0])?;
            if chosen != 0 {
                // Noted first: the next lift finds it if this process is killed.
                let noted = calls.page.set_suspended_setting(calls.memory, chosen);
                noted.map_err(|error| failed("writing memory", &error))?;
                calls.disable_thp(0, 0)?;
            }
            Ok(chosen)
        })?;
        if chosen != 0 {
            self.thp_disabled = Some(chosen);
        }
        Ok(())
    }

    /// Lets the program's own PR_SET_THP_DISABLE stand again, if it is suspended.
    pub(super) fn resume_thp_disable(&mut self) -> Result<(), CallError> {
        let Some(chosen) = self.thp_disabled else { return Ok(()) };
        let deadline = Instant::now() + RESUME_TIMEOUT;
        // Since Linux 6.18 the upper bits of the result are the flags with which it was set.
        while let Err(error) = self.with_thread(|calls| calls.disable_thp(chosen & 1, chosen & !1)) {
            if error.errno != Errno::EAGAIN as i32 || Instant::now() > deadline {
                return Err(error);
            }
        }
        self.thp_disabled = None;
        // Memory that cannot be written belongs to a program that has ended.
        let _ = self.page.set_suspended_setting(&self.memory, 0);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::complaint;
    use lift_execution::CallError;
    use nix::errno::Errno;

    #[test]
    fn what_stays_suspended_is_said_with_the_reason_and_the_fix() {
        let error = |errno: Errno| CallError { call: "stopping its threads", errno: errno as i32 };
        let said = complaint(&error(Errno::EAGAIN), Some("none fits".to_owned()), 7).unwrap();
        assert!(said.contains("suspended: none fits; fix: `pagelift detach 7`"), "{said}");
        assert!(complaint(&error(Errno::EINVAL), None, 7).unwrap().contains("stopping its threads"));
        assert_eq!(complaint(&error(Errno::ESRCH), Some("it has ended".to_owned()), 7), None);
    }
}
