//! `pagelift pool reserve --for`: pages for as long as a program runs.
//!
//! A process of its own, `pagelift pool reserve --hold`, reserves them and gives them back when its standard input ends. Only
//! this process holds the other end, which the kernel closes however this process ends: by SIGKILL, too.

use super::needed::{by_command, pool_policy, this_program};
use crate::arguments::policy::words;
use crate::exit::OWN_FAILURE;
use anyhow::Context;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use options::Policy;
use pools::PoolRequest;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;
use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};

/// The last line that a held reservation prints once all of it is there.
pub const HELD: &str = "all requests are met";

/// A program and the pages that it gets.
pub struct Lending<'a> {
    /// The program and its arguments.
    pub command: &'a [OsString],
    /// How it is lifted.
    pub policy: Policy,
    /// Pages beside those that the lift takes.
    pub requests: &'a [PoolRequest],
    /// Words that tell the process that holds the pages how to reserve them.
    pub words: Vec<String>,
}

/// Runs the program; returns its exit status, or 128 and the number of the signal that has ended it.
pub fn run(lending: Lending<'_>) -> anyhow::Result<u8> {
    let policy = pool_policy(lending.policy);
    let needed = by_command(lending.command, &policy)?;
    let requests: Vec<_> = needed.requests.iter().chain(lending.requests).map(ToString::to_string).collect();
    // From here on signals are the program's; those of a terminal reach it without help.
    let signals = Signals::new([SIGHUP, SIGINT, SIGQUIT, SIGTERM]).context("handling signals")?;
    let loan = match requests.as_slice() {
        [] => {
            eprintln!("pagelift: {} takes no pages of a pool", needed.name);
            None
        }
        requests => match Loan::take(&lending.words, requests)? {
            Some(loan) => Some(loan),
            None => return Ok(OWN_FAILURE),
        },
    };
    let mut program = Command::new(this_program()?);
    program.arg("run").args(words(&policy)).arg("--").args(lending.command);
    let status = program.spawn().context("starting the program").and_then(|child| wait(child, signals));
    if let Some(loan) = loan {
        loan.end();
    }
    let status = status?;
    Ok(status.code().or_else(|| Some(128 + status.signal()?)).map_or(OWN_FAILURE, |code| code as u8))
}

/// Waits for the program, and hands signals on to it.
fn wait(mut child: Child, mut signals: Signals) -> anyhow::Result<ExitStatus> {
    let (pid, handle) = (Pid::from_raw(child.id() as i32), signals.handle());
    let forwarder = std::thread::spawn(move || {
        for signal in signals.forever().filter(|signal| [SIGHUP, SIGTERM].contains(signal)) {
            let _ = Signal::try_from(signal).map(|signal| kill(pid, signal));
        }
    });
    // Waits without taking the number from the program, as long as signals may be sent to it.
    let ended = nix::sys::wait::waitid(
        nix::sys::wait::Id::Pid(pid),
        nix::sys::wait::WaitPidFlag::WEXITED | nix::sys::wait::WaitPidFlag::WNOWAIT,
    );
    handle.close();
    let _ = forwarder.join();
    ended.context("waiting for the program")?;
    child.wait().context("waiting for the program")
}

/// The process that holds the pages.
struct Loan {
    guard: Child,
    said: BufReader<ChildStdout>,
}

impl Loan {
    /// Starts it. `None` where it could not get all of the pages, which it has said.
    fn take(words: &[String], requests: &[String]) -> anyhow::Result<Option<Self>> {
        let mut guard = Command::new(this_program()?);
        guard.args(["pool", "reserve"]).args(words).args(requests);
        // A group of its own: a terminal's signals are not for it.
        guard.stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0);
        let mut guard = guard.spawn().context("starting the process that holds the pages")?;
        let said = guard.stdout.take().context("the process that holds the pages has no output")?;
        let mut loan = Self { guard, said: BufReader::new(said) };
        if loan.hear(HELD) {
            return Ok(Some(loan));
        }
        loan.guard.wait().context("waiting for the process that holds the pages")?;
        Ok(None)
    }

    /// Hands on what it says, up to a line or its end. True where the line came.
    fn hear(&mut self, line: &str) -> bool {
        let mut text = String::new();
        while self.said.read_line(&mut text).is_ok_and(|read| read > 0) {
            if text.trim_end() == line {
                return true;
            }
            eprint!("pagelift: {text}");
            text.clear();
        }
        false
    }

    /// Has the pages given back.
    fn end(mut self) {
        drop(self.guard.stdin.take());
        self.hear("");
        let _ = self.guard.wait();
    }
}
