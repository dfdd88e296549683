//! A handle on one process (pidfd_open(2)), which never refers to another process that reuses its PID.

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The shortest time that poll(2) waits, apart from none at all.
const SHORTEST_POLL: Duration = Duration::from_millis(1);

/// A handle on one process (Linux 5.3).
#[derive(Debug)]
pub struct ProcessHandle {
    descriptor: OwnedFd,
}

impl ProcessHandle {
    /// Opens the process that has this PID now.
    ///
    /// # Errors
    /// The kernel's: there is no such process.
    pub fn open(pid: i32) -> io::Result<Self> {
        // SAFETY:
        // - pidfd_open takes two integers and touches no memory of this process.
        let descriptor = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
        if descriptor < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY:
        // - the call has just returned this descriptor, and nothing else owns it.
        Ok(Self { descriptor: unsafe { OwnedFd::from_raw_fd(descriptor as i32) } })
    }

    /// True while the process has not ended. Everything that was opened by its PID before then belongs to this process,
    /// since the PID is not reused before its end.
    pub fn is_alive(&self) -> bool {
        let mut end = [PollFd::new(self.descriptor.as_fd(), PollFlags::POLLIN)];
        loop {
            match poll(&mut end, PollTimeout::ZERO) {
                Err(Errno::EINTR) => {}
                ready => return ready == Ok(0),
            }
        }
    }

    /// Waits for `time`, or until the process ends: then returns true.
    pub fn ends_within(&self, time: Duration) -> bool {
        let start = Instant::now();
        let mut end = [PollFd::new(self.descriptor.as_fd(), PollFlags::POLLIN)];
        loop {
            let left = time.saturating_sub(start.elapsed());
            if left < SHORTEST_POLL {
                sleep(left);
                return !self.is_alive();
            }
            match poll(&mut end, PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX)) {
                Ok(0) | Err(Errno::EINTR) => {}
                _ => return true,
            }
        }
    }

    /// Returns the wait status (wait(2)) of the process after its end, whoever has waited for it (Linux 6.15). `None` on an
    /// older kernel, and while the process is alive.
    pub fn exit_status(&self) -> Option<i32> {
        let mut info = EndInfo { mask: INFO_EXIT, ..EndInfo::default() };
        // SAFETY:
        // - the call writes at most as many bytes as its number says, the size of this structure.
        let result = unsafe { libc::ioctl(self.descriptor.as_raw_fd(), GET_INFO, &raw mut info) };
        (result == 0 && info.mask & INFO_EXIT != 0).then_some(info.exit_code)
    }
}

/// The first version of the kernel's `struct pidfd_info` (linux/pidfd.h).
#[repr(C)]
#[derive(Default)]
struct EndInfo {
    mask: u64,
    cgroup: u64,
    numbers: [u32; 11],
    exit_code: i32,
}

/// `PIDFD_INFO_EXIT`.
const INFO_EXIT: u64 = 1 << 3;
/// `PIDFD_GET_INFO`.
const GET_INFO: libc::Ioctl = nix::request_code_readwrite!(0xff, 11, size_of::<EndInfo>());

impl AsRawFd for ProcessHandle {
    fn as_raw_fd(&self) -> RawFd {
        self.descriptor.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_process_is_alive_until_its_end() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let handle = ProcessHandle::open(child.id() as i32).unwrap();
        assert!(handle.is_alive() && !handle.ends_within(Duration::from_millis(2)));
        child.kill().unwrap();
        assert!(handle.ends_within(Duration::from_secs(60)));
        assert_eq!(handle.exit_status(), None, "its parent has not waited");
        child.wait().unwrap();
        // A kernel before 6.15 does not know.
        assert!(handle.exit_status().is_none_or(|status| status & 0x7f == libc::SIGKILL));
        assert!(!handle.is_alive() && ProcessHandle::open(child.id() as i32).is_err());
    }
}
