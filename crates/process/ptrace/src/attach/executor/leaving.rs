//! Leaving a program: no part of a lift stays in it, and its own PR_SET_THP_DISABLE, suspended for the lift, is in
//! force again.

use super::{ALL_CALLS, LiveExecutor, Target};
use crate::attach::inherited::may_share_memory;
use crate::attach::own_mapping::unmap;
use crate::remote::arch::numbers;
use crate::remote::calls::failed;
use crate::remote::time_places::UnusedTimes;
use lift_execution::{CallError, Executor};
use linux::urgency::Urgency;
use linux::watch::WithProgram;
use nix::errno::Errno;
use std::time::{Duration, Instant};

/// Maximum time for finding a thread that makes the last calls: if only threads in system calls can make any, there may
/// be none for a while.
const LAST_CALLS_TIMEOUT: Duration = Duration::from_secs(15);

/// `PR_THP_DISABLE_EXCEPT_ADVISED`: what is advised or collapsed by a call is on huge pages nevertheless.
const EXCEPT_ADVISED: u64 = 1 << 1;

/// How a program was left.
pub struct Finished {
    /// The program; it can be worked on again.
    pub target: Target,
    /// A setting of the program's own that could not be restored, with the reason and the fix.
    pub still_suspended: Option<String>,
}

impl Finished {
    /// Adds the settings that could not be restored to the reason of a refusal.
    pub fn with_reason(&self, why: String) -> String {
        self.still_suspended.iter().fold(why, |why, still| format!("{why}; {still}"))
    }
}

/// The sentence about a setting that stays suspended; none for a program that has ended.
fn complaint(error: &CallError, refusal: Option<String>, pid: i32, has_executed: bool) -> Option<String> {
    if has_executed {
        return Some(
            "it has executed another program, which has lost PR_SET_THP_DISABLE; fix: restart that program".to_owned(),
        );
    }
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
                let (page, memory) = (calls.page, calls.memory);
                page.set_suspended_setting(memory, chosen).map_err(|error| failed("writing memory", &error))?;
                // Since Linux 6.18 processes that it starts meanwhile still get no huge pages unasked.
                let partly = calls.disable_thp(1, EXCEPT_ADVISED);
                let suspended = partly.or_else(|_| calls.disable_thp(0, 0));
                // A call that has not returned may take effect later: then the next lift or `detach` restores the setting.
                if suspended.is_err() && calls.failed.is_none() {
                    let _ = page.set_suspended_setting(memory, 0);
                }
                suspended?;
            }
            Ok(chosen)
        })?;
        if chosen != 0 {
            self.thp_disabled = Some(chosen);
        }
        Ok(())
    }

    /// Restores the program's own PR_SET_THP_DISABLE, if it is suspended.
    fn resume_thp_disable(&mut self) -> Result<(), CallError> {
        let Some(chosen) = self.thp_disabled else { return Ok(()) };
        // Since Linux 6.18 the upper bits of the result are the flags with which it was set.
        self.until_made(|executor| executor.with_thread(|calls| calls.disable_thp(chosen & 1, chosen & !1)))?;
        self.thp_disabled = None;
        // Memory that cannot be written belongs to a program that has ended.
        let _ = self.page.set_suspended_setting(&self.memory, 0);
        Ok(())
    }

    /// Unmaps staging copies that could not be unmapped when they were of no use any more.
    fn unmap_leftovers(&mut self) -> Result<(), CallError> {
        let left: Vec<_> = self.staging.iter().collect();
        left.into_iter().try_for_each(|range| self.until_made(|executor| executor.unmap(range)))
    }

    /// Makes calls, again while no thread is fit for them.
    fn until_made(&mut self, work: impl Fn(&mut Self) -> Result<(), CallError>) -> Result<(), CallError> {
        let deadline = Instant::now() + LAST_CALLS_TIMEOUT;
        loop {
            match work(self) {
                Err(error) if error.errno == Errno::EAGAIN as i32 && Instant::now() < deadline => {}
                result => return result,
            }
        }
    }

    /// Leaves the program, and removes code and call page.
    pub fn finish(mut self) -> Finished {
        // A lift that was given up, or has used up its time, is cleaned up as any other.
        let _with_program = WithProgram::begin();
        self.held = self.held.min(ALL_CALLS.saturating_sub(LAST_CALLS_TIMEOUT));
        let resumed = self.resume_thp_disable();
        let has_executed = self.has_executed();
        let is_clean = resumed.is_ok() && self.unmap_leftovers().is_ok();
        self.process.release_all();
        // A thread that could not be taken out of the code still needs it, and the next lift finds by it what is left to
        // be done.
        if is_clean && !self.page.is_occupied(&self.memory) {
            // Where no thread can do it, page and code stay for the next lift: no thread is in them.
            let _ = self.until_made(Self::remove_page);
        }
        let target = Target { pid: self.process.pid().as_raw(), memory: self.memory, handle: self.handle };
        let still_suspended = resumed.err().and_then(|error| complaint(&error, self.refusal, target.pid, has_executed));
        Finished { target, still_suspended }
    }

    fn remove_page(&mut self) -> Result<(), CallError> {
        // Before the stop, which it would lengthen, and before the urgency: it waits for other threads.
        let pid = self.process.pid();
        // If another process shares the memory, one of its threads may still wait with such a time.
        let times = Some(UnusedTimes::of(pid)).filter(|times| !times.is_empty() && !may_share_memory(pid.as_raw()));
        let _urgency = Urgency::raise();
        let thread = self.process.stop_one().map_err(|error| Self::error_of(&error))?;
        if let Some(times) = times {
            times.clear(thread);
        }
        let removed = unmap(&mut self.process, thread, &self.page, &self.memory, self.base_page);
        self.process.release_all();
        removed.map_err(|error| failed("removing the page for calls", &error))
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
        let said = complaint(&error(Errno::EAGAIN), Some("none fits".to_owned()), 7, false).unwrap();
        assert!(said.contains("suspended: none fits; fix: `pagelift detach 7`"), "{said}");
        assert!(complaint(&error(Errno::EINVAL), None, 7, false).unwrap().contains("stopping its threads"));
        assert_eq!(complaint(&error(Errno::ESRCH), Some("it has ended".to_owned()), 7, false), None);
        let said = complaint(&error(Errno::ESRCH), None, 7, true).unwrap();
        assert!(said.contains("has executed another program"), "{said}");
    }
}
