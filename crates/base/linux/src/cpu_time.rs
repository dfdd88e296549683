//! The CPU time of other processes.

use std::mem::MaybeUninit;
use std::time::Duration;

/// Returns the CPU time that all threads of a process have used since it was forked, ended threads included. `None` if there is
/// no such process. No permission is needed.
pub fn of_process(pid: i32) -> Option<Duration> {
    let mut clock = MaybeUninit::<libc::clockid_t>::uninit();
    // SAFETY:
    // - the call writes one number to an address of this function.
    if unsafe { libc::clock_getcpuclockid(pid, clock.as_mut_ptr()) } != 0 {
        return None;
    }
    let mut time = MaybeUninit::<libc::timespec>::uninit();
    // SAFETY:
    // - the call above has written the number of the clock.
    // - this one writes one time to an address of this function.
    if unsafe { libc::clock_gettime(clock.assume_init(), time.as_mut_ptr()) } != 0 {
        return None;
    }
    // SAFETY:
    // - the call above has written the time.
    let time = unsafe { time.assume_init() };
    Some(Duration::new(u64::try_from(time.tv_sec).ok()?, u32::try_from(time.tv_nsec).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn a_process_that_computes_uses_time_and_one_that_has_ended_none() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let pid = child.id() as i32;
        let used = of_process(pid).unwrap();
        assert!(used < Duration::from_secs(60) && of_process(pid).unwrap() >= used);
        let own = || of_process(std::process::id() as i32).unwrap();
        let before = own();
        while own() == before {}
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(of_process(pid), None);
    }
}
