//! Waits for the end of children and tracees, whichever of the 64 signals has ended them.
//!
//! nix's `waitid` is not used because it knows the signals 1 to 31 only: for a process that a real-time signal
//! (signal(7)) has ended it returns EINVAL.

use nix::errno::Errno;
use nix::unistd::Pid;
use std::mem::MaybeUninit;

/// Waits until a child has ended. It stays a zombie, so that its PID is not reused before the caller has waited for it.
///
/// # Errors
/// `ECHILD` if it is not a child of this process; otherwise the errors of waitid(2) except EINTR.
pub fn wait_until_ended(child: Pid) -> Result<(), Errno> {
    wait(child, libc::WEXITED | libc::WNOWAIT).map(drop)
}

/// Reaps a child or traced thread if it has ended. Any other report about it stays pending.
pub fn reap_if_ended(thread: Pid) {
    let options = libc::WEXITED | libc::WNOHANG | libc::__WALL;
    // Stops of tracees are reported whatever the options are (ptrace(2)).
    let has_ended = |code: i32| matches!(code, libc::CLD_EXITED | libc::CLD_KILLED | libc::CLD_DUMPED);
    if wait(thread, options | libc::WNOWAIT).is_ok_and(|report| report.is_some_and(has_ended)) {
        let _ = wait(thread, options);
    }
}

/// Returns the code (`CLD_*`) of a report; `None` if none is pending and `options` contains `WNOHANG`.
fn wait(thread: Pid, options: i32) -> Result<Option<i32>, Errno> {
    let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
    loop {
        // SAFETY:
        // - the kernel writes one `siginfo_t`.
        match Errno::result(unsafe { libc::waitid(libc::P_PID, thread.as_raw() as u32, info.as_mut_ptr(), options) }) {
            Ok(_) => {
                // SAFETY:
                // - zeroed, which is a valid value, and written by the kernel since.
                // - a report of waitid(2) holds a PID; without a report it is 0.
                let (info, pid) = unsafe { (info.assume_init(), info.assume_init().si_pid()) };
                return Ok((pid != 0).then_some(info.si_code));
            }
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Child, Command};

    fn killed_by(signal: i32) -> Child {
        Command::new("sh").args(["-c", &format!("kill -{signal} $$")]).spawn().unwrap()
    }

    #[test]
    fn an_end_by_any_signal_is_an_end() {
        for signal in [libc::SIGKILL, libc::SIGTERM, 34, 64] {
            let mut child = killed_by(signal);
            assert_eq!(wait_until_ended(Pid::from_raw(child.id() as i32)), Ok(()));
            assert_eq!(child.wait().unwrap().signal(), Some(signal));
        }
    }

    #[test]
    fn one_that_has_ended_is_reaped() {
        for signal in [libc::SIGKILL, 34, 64] {
            let mut child = killed_by(signal);
            let pid = Pid::from_raw(child.id() as i32);
            wait_until_ended(pid).unwrap();
            reap_if_ended(pid);
            assert_eq!(wait_until_ended(pid), Err(Errno::ECHILD), "signal {signal}");
            assert!(child.wait().is_err());
        }
    }

    #[test]
    fn one_that_runs_is_not_reaped() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        reap_if_ended(Pid::from_raw(child.id() as i32));
        child.kill().unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGKILL));
    }
}
