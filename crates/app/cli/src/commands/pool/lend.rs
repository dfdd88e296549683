//! `pagelift pool reserve --for`: pages for as long as a program runs.
//!
//! A separate process, `pagelift pool reserve --hold`, reserves them and releases them when its standard input ends.
//! Only this process holds the other end, which the kernel closes when this process ends in any way, including SIGKILL.
//! Lines on it name pages to release earlier: those that the lift has not used, by its report.

use super::needed::{by_command, pool_policy, this_program};
use super::nodes::placed;
use crate::arguments::policy::words;
use crate::exit::OWN_FAILURE;
use crate::say;
use crate::signals::{not_ignored, survive_closed_pipes};
use anyhow::Context;
use linux::bounded::KERNEL_TEXT;
use linux::ended::wait_until_ended;
use linux::received_signals::{Received, ReceivedSignals};
use machine_facts::{System, pool_pages_by_node};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use options::Policy;
use pools::{PoolRequest, unused};
use std::ffi::OsString;
use std::fs::File;
use std::io::{BufRead, BufReader, Seek, Write};
use std::os::fd::AsRawFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// The last line that a held reservation prints once it is complete.
pub const HELD: &str = "all requests are met";

/// Interval between checks for the end of the lift.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// A program and the pages that it gets.
pub struct Lending<'a> {
    /// The program and its arguments.
    pub command: &'a [OsString],
    /// The policy of its lift.
    pub policy: Policy,
    /// Pages besides the lift's own.
    pub requests: &'a [PoolRequest],
    /// Arguments for the process that holds the pages.
    pub words: Vec<String>,
}

/// Runs the program; returns its exit status, or 128 and the number of the signal that has ended it.
pub fn run(lending: Lending<'_>) -> anyhow::Result<u8> {
    let policy = pool_policy(lending.policy);
    let needed = by_command(lending.command, &policy)?;
    let for_the_lift = placed(&needed.requests, policy.numa, None)?.requests;
    let beside = placed(lending.requests, policy.numa, None)?.requests;
    let requests: Vec<_> = for_the_lift.iter().chain(&beside).map(ToString::to_string).collect();
    // Signals from now on are for the program.
    let signals = ReceivedSignals::of(&handed_on()).context("handling signals")?;
    survive_closed_pipes()?;
    let loan = match requests.as_slice() {
        [] => {
            say!("pagelift: {} takes no pool pages", needed.name);
            None
        }
        requests => match Loan::take(&lending.words, requests)? {
            Some(loan) => Some(loan),
            None => return Ok(OWN_FAILURE),
        },
    };
    let mut program = Command::new(this_program()?);
    program.arg("run");
    let held = loan.map(|loan| anyhow::Ok((loan, LiftReportFile::new()?))).transpose()?;
    if let Some((_, report)) = &held {
        program.args(["--report-if-possible", "--report"]).arg(report.path());
    }
    let child = program.args(words(&policy)).arg("--").args(lending.command).spawn().context("starting the program");
    let (loan, report) = held.unzip();
    let status = child.and_then(|child| {
        let pid = child.id();
        let remainder = loan.as_ref().zip(report);
        let remainder = remainder.map(|(loan, report)| loan.give_back_what_is_unused(pid, report, for_the_lift));
        let status = wait(child, &signals);
        if let Some(remainder) = remainder {
            remainder.stop();
        }
        status
    });
    if let Some(loan) = loan {
        loan.end();
    }
    let status = status?;
    Ok(status.code().or_else(|| Some(128 + status.signal()?)).map_or(OWN_FAILURE, |code| code as u8))
}

/// Waits for the program, and hands signals on to it.
fn wait(mut child: Child, signals: &ReceivedSignals) -> anyhow::Result<ExitStatus> {
    let pid = Pid::from_raw(child.id() as i32);
    let ended = std::thread::scope(|scope| {
        scope.spawn(|| {
            while let Some(received) = signals.next() {
                if !is_sent_to_both(received) {
                    let _ = kill(pid, received.signal);
                }
            }
        });
        // Waits without taking the number from the program, as long as signals may be sent to it.
        let ended = wait_until_ended(pid);
        signals.end();
        ended
    });
    ended.context("waiting for the program")?;
    child.wait().context("waiting for the program")
}

/// The signals that are handed on. Those that are ignored at the start (nohup) stay ignored, in the program too.
fn handed_on() -> Vec<Signal> {
    let all = [Signal::SIGHUP, Signal::SIGINT, Signal::SIGQUIT, Signal::SIGTERM];
    let kept = not_ignored(&all.map(|signal| signal as i32));
    all.into_iter().filter(|signal| kept.contains(&(*signal as i32))).collect()
}

/// True for the signals of a terminal's keys, which the kernel sends to the program as well: it is in the same process
/// group.
fn is_sent_to_both(received: Received) -> bool {
    received.by_kernel && [Signal::SIGINT, Signal::SIGQUIT].contains(&received.signal)
}

/// A file without a name, which the kernel removes however this process ends, for the report of the lift.
struct LiftReportFile(File);

impl LiftReportFile {
    fn new() -> anyhow::Result<Self> {
        Ok(Self(tempfile::tempfile().context("making a temporary file")?))
    }

    /// A path by which others write to it while this process has it open.
    fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd())
    }

    /// True once the whole report is there.
    fn is_written(&mut self) -> bool {
        let read = self.0.rewind().and_then(|()| KERNEL_TEXT.read_rest(&self.0));
        read.is_ok_and(|text| serde_json::from_slice::<serde_json::Value>(&text).is_ok())
    }
}

/// Waits for the report of the lift, in a thread, and has the pages given back then that it has not used.
struct Remainder {
    thread: JoinHandle<()>,
    ended: Sender<()>,
}

impl Remainder {
    /// The program has ended: no report comes any more.
    fn stop(self) {
        drop(self.ended);
        let _ = self.thread.join();
    }
}

/// The process that holds the pages.
struct Loan {
    guard: Child,
    said: BufReader<ChildStdout>,
    /// Its standard input; shared with the thread that waits for the report.
    orders: Arc<Mutex<Option<ChildStdin>>>,
}

impl Loan {
    /// Starts it. `None` if it could not get all of the pages; it has then reported that.
    fn take(words: &[String], requests: &[String]) -> anyhow::Result<Option<Self>> {
        let mut guard = Command::new(this_program()?);
        guard.args(["pool", "reserve"]).args(words).args(requests);
        // A separate process group: a terminal's signals are not for it.
        guard.stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0);
        let mut guard = guard.spawn().context("starting the process that holds the pages")?;
        let said = guard.stdout.take().context("the process that holds the pages has no output")?;
        let orders = Arc::new(Mutex::new(guard.stdin.take()));
        let mut loan = Self { guard, said: BufReader::new(said), orders };
        if loan.hear(HELD) {
            return Ok(Some(loan));
        }
        loan.guard.wait().context("waiting for the process that holds the pages")?;
        Ok(None)
    }

    /// Waits for the report of the lift of process `pid`, and releases the pages `held` for it that the process has not
    /// taken.
    fn give_back_what_is_unused(&self, pid: u32, mut report: LiftReportFile, held: Vec<PoolRequest>) -> Remainder {
        let (ended, end) = channel::<()>();
        let orders = self.orders.clone();
        let thread = std::thread::spawn(move || {
            while !report.is_written() {
                if end.recv_timeout(LOOK_EVERY) != Err(RecvTimeoutError::Timeout) {
                    return;
                }
            }
            let used = pool_pages_by_node(&System, &format!("/proc/{pid}"));
            let unused = used.map_or_else(Vec::new, |used| unused(&held, &used));
            if let Some(orders) = orders.lock().ok().as_mut().and_then(|orders| orders.as_mut())
                && !unused.is_empty()
            {
                let words: Vec<_> = unused.iter().map(ToString::to_string).collect();
                // One that was killed gives nothing back, now or later.
                let _ = writeln!(orders, "{}", words.join(" "));
            }
        });
        Remainder { thread, ended }
    }

    /// Passes on its output, up to a line or its end. True if the line was found.
    fn hear(&mut self, line: &str) -> bool {
        let mut text = String::new();
        while self.said.read_line(&mut text).is_ok_and(|read| read > 0) {
            if text.trim_end() == line {
                return true;
            }
            say!("pagelift: {}", text.trim_end_matches('\n'));
            text.clear();
        }
        false
    }

    /// Has the pages given back.
    fn end(mut self) {
        // The thread has ended, and no other has it.
        drop(self.orders.lock().ok().and_then(|mut orders| orders.take()));
        self.hear("");
        let _ = self.guard.wait();
    }
}
