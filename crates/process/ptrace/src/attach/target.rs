//! The process to work on, identified at the time of the request.

use crate::remote::RemoteMemory;
use crate::remote::status::is_ending;
use linux::process_handle::ProcessHandle;
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::unistd::Pid;
use std::fs::File;
use std::io;
use std::thread;
use std::time::{Duration, Instant};

/// A process and the memory that it had when this was opened. Later look-ups by its PID may find another program, which
/// it has executed since: [`super::LiveExecutor`] acts only where the memory is the same.
pub struct Target {
    pub(super) pid: i32,
    pub(super) memory: RemoteMemory,
    pub(super) handle: ProcessHandle,
}

impl Target {
    /// Opens the process that has this PID now, before anything else of it is read.
    ///
    /// # Errors
    /// A sentence that says why it cannot be opened.
    pub fn open(pid: i32) -> Result<Self, String> {
        let handle = ProcessHandle::open(pid).map_err(|error| format!("it cannot be opened: {error}"))?;
        let memory = RemoteMemory::open(pid).map_err(|error| unopened(pid, &error))?;
        match handle.is_alive() {
            true => Ok(Self { pid, memory, handle }),
            false => Err("it has ended".to_owned()),
        }
    }

    /// The PID of the process.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// True where the process has not ended: everything that was read by its PID so far belongs to it.
    pub fn is_alive(&self) -> bool {
        self.handle.is_alive()
    }
}

fn unopened(pid: i32, error: &io::Error) -> String {
    match is_ending(Pid::from_raw(pid), pid) {
        true => "its main thread has ended, so that the kernel shows no memory of it; needed: a main thread that waits for the \
                 others"
            .to_owned(),
        false => format!("its memory cannot be opened: {error}"),
    }
}

/// Takes the lock under which this program is worked on; it ends with its holder. Waits for another holder up to
/// `timeout`.
pub(super) fn lock(pid: i32, timeout: Duration) -> Result<Flock<File>, String> {
    let path = format!("/proc/{pid}/maps");
    let mut file = File::open(&path).map_err(|error| format!("opening {path}: {error}"))?;
    let deadline = Instant::now() + timeout;
    loop {
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => return Ok(lock),
            Err((again, Errno::EWOULDBLOCK)) if Instant::now() < deadline => file = again,
            Err((_, Errno::EWOULDBLOCK)) => return Err("another pagelift works on it; fix: try again later".to_owned()),
            Err((_, error)) => return Err(format!("locking {path}: {error}")),
        }
        thread::sleep(Duration::from_millis(5));
    }
}
