//! Stops threads of a program that runs.

use super::restart;
use crate::arch::{self, Interrupted};
use crate::requests;
use crate::seccomp;
use nix::errno::Errno;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use std::{fs, io, thread};

/// How long a thread is given to stop. Threads in uninterruptible sleep, or in vfork, stop only when that ends.
const PATIENCE: Duration = Duration::from_millis(1500);
/// How long a thread in a system call is looked for.
const SEARCH: Duration = Duration::from_millis(1000);
/// Options of every thread that we seize.
const OPTIONS: i32 = libc::PTRACE_O_TRACESYSGOOD;

/// Why a program cannot be stopped for a lift.
#[derive(Debug, thiserror::Error)]
pub enum StopError {
    /// It has ended.
    #[error("the process has ended")]
    Gone,
    /// ptrace is refused.
    #[error("{0}")]
    Refused(String),
    /// A thread does not stop.
    #[error("thread {0} does not stop: it is in vfork or in uninterruptible sleep; try again when that has ended")]
    DoesNotStop(i32),
    /// No thread is fit to make calls.
    #[error("no thread of it makes a system call, so that none can be borrowed safely; try again later")]
    NoneInACall,
    /// Its threads cannot be listed.
    #[error("its threads cannot be listed: {0}")]
    Listing(#[from] io::Error),
}

/// The threads of one running program, as far as we hold them.
pub struct LiveProcess {
    pid: Pid,
    /// Stopped threads, and the signal each stopped for.
    stopped: BTreeMap<i32, i32>,
    /// A thread that is stopped by job control, which it stays.
    stopped_by_shell: bool,
}

impl LiveProcess {
    /// A process none of whose threads is held yet.
    pub fn new(pid: i32) -> Self {
        Self { pid: Pid::from_raw(pid), stopped: BTreeMap::new(), stopped_by_shell: false }
    }

    /// The process.
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// How many threads are held.
    pub fn held(&self) -> usize {
        self.stopped.len()
    }

    /// True where the process is stopped by job control.
    pub fn is_stopped_by_shell(&self) -> bool {
        self.stopped_by_shell
    }

    /// Stops one thread that is in a system call, and so in no restartable sequence.
    ///
    /// # Errors
    /// [`StopError`]; no thread is held then.
    pub fn stop_one(&mut self) -> Result<Pid, StopError> {
        let deadline = Instant::now() + SEARCH;
        loop {
            for thread in self.by_suitability()? {
                if self.stop(thread)? {
                    if is_in_call(Pid::from_raw(thread)) && self.permit(thread)? {
                        return Ok(Pid::from_raw(thread));
                    }
                    self.release(thread);
                }
            }
            if Instant::now() > deadline {
                return Err(StopError::NoneInACall);
            }
            // Another look, when other threads are where this one was.
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Stops every thread, and returns one that is in a system call.
    ///
    /// # Errors
    /// [`StopError`]; no thread is held then.
    pub fn stop_all(&mut self) -> Result<Pid, StopError> {
        let deadline = Instant::now() + SEARCH;
        loop {
            if let Err(error) = self.stop_every_thread() {
                self.release_all();
                return Err(error);
            }
            let fit = self.stopped.keys().copied().find(|&thread| is_in_call(Pid::from_raw(thread)));
            if let Some(thread) = fit {
                self.permit(thread)?;
                return Ok(Pid::from_raw(thread));
            }
            self.release_all();
            if Instant::now() > deadline {
                return Err(StopError::NoneInACall);
            }
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Lets every held thread go, but the one.
    pub fn release_others(&mut self, kept: Pid) {
        for thread in self.stopped.keys().copied().filter(|&t| t != kept.as_raw()).collect::<Vec<_>>() {
            self.release(thread);
        }
    }

    /// Lets every held thread go.
    pub fn release_all(&mut self) {
        for thread in self.stopped.keys().copied().collect::<Vec<_>>() {
            self.release(thread);
        }
    }

    /// The threads, those first whose present system call the kernel itself makes again after a stop. A call that gives
    /// EINTR is made again by us; but we may be killed just then.
    fn by_suitability(&self) -> Result<Vec<i32>, StopError> {
        let mut threads = self.threads()?;
        threads.sort_by_cached_key(|thread| {
            let text = fs::read_to_string(format!("/proc/{}/task/{thread}/syscall", self.pid)).unwrap_or_default();
            match text.split(' ').next().and_then(|number| number.parse::<i64>().ok()) {
                Some(number) if number >= 0 => u8::from(restart::gives_error(number)),
                // Running, or not to be seen.
                _ => 2,
            }
        });
        Ok(threads)
    }

    fn permit(&mut self, thread: i32) -> Result<bool, StopError> {
        seccomp::permit(Pid::from_raw(thread), OPTIONS).map(|()| true).map_err(|why| {
            self.release_all();
            StopError::Refused(why)
        })
    }

    fn stop_every_thread(&mut self) -> Result<(), StopError> {
        loop {
            let new: Vec<i32> = self.threads()?.into_iter().filter(|t| !self.stopped.contains_key(t)).collect();
            if new.is_empty() {
                return if self.stopped.is_empty() { Err(StopError::Gone) } else { Ok(()) };
            }
            // All are told first, so that they come to a stop side by side.
            let mut told = Vec::new();
            for thread in new {
                if self.interrupt(thread)? {
                    told.push(thread);
                }
            }
            let deadline = Instant::now() + PATIENCE;
            for thread in told {
                self.await_stop(thread, deadline)?;
            }
        }
    }

    fn stop(&mut self, thread: i32) -> Result<bool, StopError> {
        Ok(self.interrupt(thread)? && self.await_stop(thread, Instant::now() + PATIENCE)?)
    }

    /// False where the thread has ended meanwhile.
    fn interrupt(&mut self, thread: i32) -> Result<bool, StopError> {
        let id = Pid::from_raw(thread);
        match requests::seize(id, OPTIONS).and_then(|()| requests::interrupt(id)) {
            Ok(()) => Ok(true),
            Err(Errno::ESRCH) => Ok(false),
            // A thread that is on its way out cannot be traced any more.
            Err(Errno::EPERM) if crate::status::is_ending(self.pid, thread) => Ok(false),
            Err(errno) => {
                self.release_all();
                Err(StopError::Refused(refusal(self.pid, errno)))
            }
        }
    }

    fn await_stop(&mut self, thread: i32, deadline: Instant) -> Result<bool, StopError> {
        let mut naps = 0;
        loop {
            match waitpid(Pid::from_raw(thread), Some(WaitPidFlag::__WALL | WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::StillAlive) => {}
                Ok(WaitStatus::Stopped(_, signal)) => {
                    self.stopped.insert(thread, signal as i32);
                    return Ok(true);
                }
                Ok(WaitStatus::PtraceEvent(id, signal, _)) => {
                    self.stopped_by_shell |= signal != nix::sys::signal::Signal::SIGTRAP;
                    self.stopped.insert(thread, 0);
                    // An error that only our stop has caused is none for the program.
                    let _ = restart::mend(id);
                    return Ok(true);
                }
                Ok(WaitStatus::Exited(..) | WaitStatus::Signaled(..)) | Err(Errno::ECHILD) => return Ok(false),
                Ok(_) => {
                    self.stopped.insert(thread, 0);
                    return Ok(true);
                }
                Err(errno) => return Err(StopError::Refused(errno.to_string())),
            }
            if Instant::now() > deadline {
                self.release_all();
                return Err(StopError::DoesNotStop(thread));
            }
            naps += 1;
            if naps > 20 {
                thread::sleep(Duration::from_micros(100));
            } else {
                thread::yield_now();
            }
        }
    }

    fn release(&mut self, thread: i32) {
        if let Some(signal) = self.stopped.remove(&thread) {
            // A thread that was killed meanwhile is gone, and that is all that can be wrong.
            let _ = requests::detach(Pid::from_raw(thread), signal);
        }
    }

    fn threads(&self) -> Result<Vec<i32>, StopError> {
        let entries = match fs::read_dir(format!("/proc/{}/task", self.pid)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(StopError::Gone),
            other => other?,
        };
        Ok(entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect())
    }
}

/// True where the thread stands in a system call, or at one that it is about to make again.
fn is_in_call(thread: Pid) -> bool {
    let Ok(registers) = requests::registers(thread) else { return false };
    if arch::interrupted(&registers) != Interrupted::No {
        return true;
    }
    // `mend` has rewound it to its instruction.
    let Ok(memory) = crate::RemoteMemory::open(thread.as_raw()) else { return false };
    let mut code = vec![0; arch::SYSCALL_INSTRUCTION.len()];
    memory.read(arch::instruction_pointer(&registers), &mut code).is_ok() && code == arch::SYSCALL_INSTRUCTION
}

fn refusal(pid: Pid, errno: Errno) -> String {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let tracer = status.lines().find_map(|line| line.strip_prefix("TracerPid:")).map_or("0", str::trim);
    if tracer != "0" {
        return format!("process {tracer} traces it already, and a process has one tracer at most");
    }
    format!(
        "ptrace is refused ({}); needed: root, or CAP_SYS_PTRACE, or the same user and kernel.yama.ptrace_scope = 0",
        errno.desc()
    )
}
