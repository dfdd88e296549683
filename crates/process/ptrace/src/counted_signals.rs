//! A program that reports each signal that it receives, for tests in which its tracer is killed.

use crate::test_program;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::{Pid, gettid};
use std::io::{BufRead, BufReader, Read, Write, stdin};
use std::os::fd::AsFd;
use std::process::{Child, ChildStdout};
use std::{mem, ptr};

/// The signal: one that is queued.
pub const SIGNAL: i32 = 40;

/// Set in the environment of the program.
const REPORTS: &str = "PAGELIFT_TEST_REPORTS_SIGNALS";

/// Maximum number of milliseconds between two signals that are received.
const LONGEST_PAUSE: u16 = 60_000;

/// That program. The test's thread waits, and so does the first one; both can receive signals.
#[test]
fn program_that_reports_its_signals() {
    if std::env::var_os(REPORTS).is_none() {
        return;
    }
    // SAFETY:
    // - all fields are integers, a set of bits and a nullable address; the handler makes one system call only.
    unsafe {
        let mut action: libc::sigaction = mem::zeroed();
        action.sa_sigaction = report as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
        assert_eq!(libc::sigaction(SIGNAL, &action, ptr::null_mut()), 0);
    }
    println!("\nready {}", gettid());
    loop {
        nix::unistd::pause();
    }
}

extern "C" fn report(_: i32, information: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY:
    // - the kernel passes the information of this signal, whose value was set by `send`.
    // - four bytes of this function are written.
    unsafe {
        let value = (*information).si_value().sival_ptr as usize as u32;
        libc::write(libc::STDOUT_FILENO, (&raw const value).cast(), size_of::<u32>());
    }
}

/// Sends the signal to a process, with a value.
pub fn send(process: Pid, value: u32) {
    let value = libc::sigval { sival_ptr: ptr::without_provenance_mut(value as usize) };
    // SAFETY:
    // - takes integers and touches no memory.
    assert_eq!(unsafe { libc::sigqueue(process.as_raw(), SIGNAL, value) }, 0);
}

/// The running program.
pub struct Program {
    child: Child,
    from: BufReader<ChildStdout>,
    /// A thread that is not the first one, and waits.
    pub other: Pid,
}

impl Program {
    pub fn start() -> Self {
        let mut child = test_program::spawn("counted_signals::program_that_reports_its_signals", REPORTS);
        let mut from = BufReader::new(child.stdout.take().unwrap());
        let other = line_after(&mut from, "ready ").parse().unwrap();
        Self { child, from, other: Pid::from_raw(other) }
    }

    pub fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id() as i32)
    }

    /// True if both threads are stopped by a tracer.
    pub fn is_stopped(&self) -> bool {
        [self.pid(), self.other].iter().all(|thread| {
            let status = std::fs::read_to_string(format!("/proc/{thread}/status")).unwrap();
            status.contains("\nState:\tt")
        })
    }

    /// Waits for this number of signals, or until no more come. Returns their values, sorted.
    pub fn received(&mut self, count: usize) -> Vec<u32> {
        let mut values = Vec::new();
        while values.len() < count && self.has_more() {
            let mut value = [0; size_of::<u32>()];
            self.from.read_exact(&mut value).unwrap();
            values.push(u32::from_ne_bytes(value));
        }
        values.sort_unstable();
        values
    }

    fn has_more(&self) -> bool {
        let mut readable = [PollFd::new(self.from.get_ref().as_fd(), PollFlags::POLLIN)];
        !self.from.buffer().is_empty() || poll(&mut readable, PollTimeout::from(LONGEST_PAUSE)).unwrap() > 0
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        drop((self.child.kill(), self.child.wait()));
    }
}

/// A test of this crate that traces the program, executed as a separate process.
pub struct Tracer(Child);

impl Tracer {
    /// Starts it, and waits until it is [`Task::is_ready`].
    pub fn start(test: &str, variable: &str, program: &Program) -> Self {
        let mut child = test_program::spawn(test, variable);
        writeln!(child.stdin.as_mut().unwrap(), "{} {}", program.pid(), program.other).unwrap();
        let mut from = BufReader::new(child.stdout.take().unwrap());
        line_after(&mut from, "traces");
        Self(child)
    }

    /// Kills it.
    pub fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// The task of a [`Tracer`].
pub struct Task {
    pub pid: Pid,
    pub other: Pid,
}

impl Task {
    /// Returns the task of this process; `None` if it is the test itself.
    pub fn read(variable: &str) -> Option<Self> {
        std::env::var_os(variable)?;
        let line = stdin().lines().next().unwrap().unwrap();
        let mut numbers = line.split(' ').map(|number| Pid::from_raw(number.parse().unwrap()));
        Some(Self { pid: numbers.next()?, other: numbers.next()? })
    }

    /// Reports that the tracer may be killed.
    pub fn is_ready(&self) {
        println!("\ntraces");
    }

    /// Waits to be killed.
    pub fn wait(&self) {
        self.is_ready();
        stdin().lines().next();
    }
}

fn line_after(from: &mut impl BufRead, start: &str) -> String {
    let mut lines = from.lines().map(Result::unwrap);
    lines.find_map(|line| line.strip_prefix(start).map(str::to_owned)).unwrap()
}
