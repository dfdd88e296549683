//! One long-living worker process.

use crate::MeasureError;
use crate::protocol::{Answer, Burst};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// Time that a worker whose input has ended may take to end by itself.
const TIME_TO_END: Duration = Duration::from_secs(2);

/// The time of a burst, and the checksum of its work.
pub(crate) struct BurstResult {
    pub wall_nanoseconds: u64,
    /// `None` if the worker cannot read its CPU time.
    pub cpu_nanoseconds: Option<u64>,
    pub checksum: u64,
}

/// A running variant, for observers of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Running {
    /// Its name.
    pub name: String,
    /// Its process.
    pub process_id: u32,
}

pub(crate) struct Variant {
    pub(crate) name: String,
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
    time_limit: Duration,
}

impl Variant {
    /// Starts the worker and waits for its greeting; gives the worker and the names of its workloads.
    pub(crate) fn start(
        name: &str,
        mut command: Command,
        time_limit: Duration,
    ) -> Result<(Self, Vec<String>), MeasureError> {
        let failed = |source| MeasureError::Start { variant: name.to_owned(), source };
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map_err(failed)?;
        let input = child.stdin.take();
        let output = child.stdout.take().ok_or_else(|| failed(std::io::ErrorKind::BrokenPipe.into()))?;
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let mut variant = Self { name: name.to_owned(), child, input, lines, time_limit };
        match variant.hear()? {
            Answer::Hello(workloads) => Ok((variant, workloads)),
            other => Err(variant.wrong(format!("it began with `{}` instead of a greeting", other.to_line()))),
        }
    }

    pub(crate) fn process_id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn running(&self) -> Running {
        Running { name: self.name.clone(), process_id: self.process_id() }
    }

    /// Has the worker run one burst.
    pub(crate) fn run(&mut self, burst: &Burst) -> Result<BurstResult, MeasureError> {
        let line = burst.to_line() + "\n";
        if self.input.as_mut().is_none_or(|input| input.write_all(line.as_bytes()).is_err()) {
            return Err(self.died());
        }
        match self.hear()? {
            Answer::Done { wall_nanoseconds, cpu_nanoseconds, checksum } => {
                Ok(BurstResult { wall_nanoseconds, cpu_nanoseconds, checksum })
            }
            Answer::Error(text) => Err(self.wrong(text)),
            Answer::Hello(_) => Err(self.wrong("it greeted twice".to_owned())),
        }
    }

    fn hear(&mut self) -> Result<Answer, MeasureError> {
        match self.lines.recv_timeout(self.time_limit) {
            Ok(line) => Answer::parse(&line).map_err(|problem| self.wrong(problem)),
            Err(RecvTimeoutError::Disconnected) => Err(self.died()),
            Err(RecvTimeoutError::Timeout) => {
                Err(MeasureError::Silent { variant: self.name.clone(), seconds: self.time_limit.as_secs() })
            }
        }
    }

    fn wrong(&self, problem: String) -> MeasureError {
        MeasureError::Protocol { variant: self.name.clone(), problem }
    }

    fn died(&mut self) -> MeasureError {
        let status = match self.end() {
            Some(status) => status.to_string(),
            None => "its status is not known".to_owned(),
        };
        MeasureError::Died { variant: self.name.clone(), status }
    }

    /// Ends the worker: closes its input and, if that is not enough, kills it. Returns its status if it ended by
    /// itself.
    fn end(&mut self) -> Option<std::process::ExitStatus> {
        self.input = None;
        let deadline = Instant::now() + TIME_TO_END;
        while Instant::now() < deadline {
            match self.child.try_wait() {
                Ok(Some(status)) => return Some(status),
                Ok(None) => std::thread::sleep(Duration::from_millis(1)),
                Err(_) => return None,
            }
        }
        // Both fail only if it has ended already, which is the goal.
        let _ = self.child.kill();
        let _ = self.child.wait();
        None
    }
}

impl Drop for Variant {
    fn drop(&mut self) {
        self.end();
    }
}
