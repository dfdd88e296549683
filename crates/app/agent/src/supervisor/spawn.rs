//! Starts workers and waits for their answers.

use super::stuck_workers::{LONGEST_DEATH, Stuck, StuckWorker};
use crate::measurement::{Running, Seen, words};
use crate::worker::{Answer, Request, Task, lock_process, not_locked, take_lock};
use linux::process_handle::ProcessHandle;
use measure::sequential::ResultLine;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

/// Longest answer in bytes.
const LONGEST_ANSWER: u64 = 1 << 20;
/// Time after which a worker is killed: a lift in place may take 10 minutes, and the worker's lock 2.
const LONGEST: Duration = Duration::from_secs(15 * 60);
/// Time after which a worker is killed that only reads.
const LONGEST_LOOK: Duration = Duration::from_secs(3 * 60);
/// Time for the end of a worker that has answered, or that [`Patience::End`] ends.
const GRACE: Duration = Duration::from_secs(20);
/// Interval of the calls while a worker is waited for.
const LOOK: Duration = Duration::from_millis(500);

/// Treatment of a worker that has not answered yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// Go on, until its time is over.
    Wait,
    /// End soon: it is killed if it does not.
    End,
}

/// Performs requests.
pub trait Worker {
    /// Performs a request. Calls `meanwhile` about twice a second until there is an answer.
    ///
    /// # Errors
    /// Why there is no answer: the worker crashed, was killed, or took too long.
    fn perform(&mut self, request: &Request, meanwhile: &mut dyn FnMut() -> Patience) -> Result<Answer, String>;

    /// Workers that were killed and have not ended.
    fn stuck(&mut self) -> Vec<StuckWorker> {
        Vec::new()
    }

    /// Starts a measurement of a process by the options of `attach`, which ends undecided after some time. It holds the lock of
    /// workers in the folder of the state.
    ///
    /// # Errors
    /// Why it cannot be started.
    fn measure(
        &mut self,
        pid: i32,
        options: &[String],
        most: Duration,
        state: &Path,
    ) -> Result<Box<dyn Ongoing>, String>;
}

/// A measurement that runs. Dropping it ends it and waits for its end.
pub trait Ongoing {
    /// Looks for the decision, or the reason why there is none, without waiting. `None` while it runs.
    fn poll(&mut self) -> Option<Result<ResultLine, String>>;

    /// The progress at the last look.
    fn seen(&self) -> Seen;

    /// CPU time so far.
    fn cpu(&self) -> Duration;

    /// Asks it to restore the program and to end.
    fn stop(&mut self);

    /// Ends it at once. The program stays in the state of the moment.
    fn kill(&mut self);
}

impl Ongoing for Running {
    fn poll(&mut self) -> Option<Result<ResultLine, String>> {
        Self::poll(self)
    }

    fn seen(&self) -> Seen {
        Self::seen(self)
    }

    fn cpu(&self) -> Duration {
        Self::cpu(self)
    }

    fn stop(&mut self) {
        Self::stop(self);
    }

    fn kill(&mut self) {
        Self::kill(self);
    }
}

/// Workers that are processes: `pagelift agent worker`.
pub struct WorkerProcess {
    program: PathBuf,
    stuck: Stuck,
    limits: Limits,
}

/// Times of one exchange.
#[derive(Clone, Copy, Debug)]
struct Limits {
    look: Duration,
    grace: Duration,
}

impl WorkerProcess {
    /// Workers of this program.
    pub fn of(program: &Path) -> Self {
        Self { program: program.to_owned(), stuck: Stuck::default(), limits: Limits { look: LOOK, grace: GRACE } }
    }

    /// Starts a worker. Its standard input is a socket: a write to a pipe whose reader was killed would end this process, since
    /// `pagelift` does not ignore SIGPIPE.
    fn start(&self) -> Result<(Child, UnixStream), String> {
        let mut command = Command::new(&self.program);
        let (input, of_worker) = UnixStream::pair().map_err(|error| format!("a socket for the worker: {error}"))?;
        // In a separate process group, so that Ctrl-C does not interrupt the lift.
        command
            .args(["agent", "worker"])
            .process_group(0)
            .stdin(OwnedFd::from(of_worker))
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let child = command.spawn();
        let child = child.map_err(|error| format!("{} cannot be started: {error}", self.program.display()))?;
        Ok((child, input))
    }
}

impl Worker for WorkerProcess {
    fn perform(&mut self, request: &Request, meanwhile: &mut dyn FnMut() -> Patience) -> Result<Answer, String> {
        let not_started = |why| Ok(Answer { not_started: true, refusal: Some(why), ..Answer::default() });
        if let Some(why) = self.stuck.forbid(request) {
            return not_started(why);
        }
        let beside = request.beside || self.stuck.now().iter().any(|stuck| !stuck.beside);
        let request = Request { beside, ..request.clone() };
        let (mut child, input) = match self.start() {
            Ok(started) => started,
            Err(why) => return not_started(why),
        };
        let limits = self.limits;
        let handle = ProcessHandle::open(child.id() as i32);
        let answer = exchange(&mut child, input, &request, limits, meanwhile);
        // Without descriptors for a handle, its end is waited for.
        let ends_within = |time| handle.as_ref().map_or(true, |handle| handle.ends_within(time));
        if answer.is_err() || !ends_within(limits.grace) {
            // It may not have ended by itself.
            let _ = child.kill();
            if !ends_within(LONGEST_DEATH) {
                return Err(self.stuck.add(child, &request));
            }
        }
        let status = child.wait().map_err(|error| format!("the worker cannot be waited for: {error}"))?;
        match (answer, status.signal(), status.code()) {
            (Err(NoAnswer::Late(why)), _, _) => Err(why),
            (_, Some(signal), _) => Err(format!("the worker was killed by signal {signal}")),
            (Ok(answer), None, Some(0)) => Ok(answer),
            (Ok(_), None, code) => Err(format!("the worker ended with status {}", code.unwrap_or(-1))),
            (Err(NoAnswer::Bad(why)), None, _) => Err(why),
        }
    }

    fn stuck(&mut self) -> Vec<StuckWorker> {
        self.stuck.now()
    }

    fn measure(
        &mut self,
        pid: i32,
        options: &[String],
        most: Duration,
        state: &Path,
    ) -> Result<Box<dyn Ongoing>, String> {
        let lock = take_lock(state, Duration::ZERO)?;
        let process = lock_process(state, pid, Duration::ZERO).map_err(|error| not_locked(pid, &error))?;
        Ok(Box::new(Running::start_locked(&self.program, &words(pid, options, most), lock, process)?))
    }
}

/// Why a worker has given no answer.
enum NoAnswer {
    /// It is killed: its time is over.
    Late(String),
    /// It has ended without one, or its answer is not understood.
    Bad(String),
}

/// Writes the request and reads the answer.
fn exchange(
    child: &mut Child,
    mut input: UnixStream,
    request: &Request,
    limits: Limits,
    meanwhile: &mut dyn FnMut() -> Patience,
) -> Result<Answer, NoAnswer> {
    let bad = NoAnswer::Bad;
    let text = serde_json::to_vec(request).map_err(|error| bad(error.to_string()))?;
    input.write_all(&text).map_err(|error| bad(format!("the worker does not read: {error}")))?;
    drop(input);
    let Some(output) = child.stdout.take() else { return Err(bad("the worker has no output".to_owned())) };
    let (say, heard) = mpsc::channel();
    // It ends when the worker does, which may be later than its SIGKILL.
    thread::spawn(move || {
        let mut bytes = Vec::new();
        let read = output.take(LONGEST_ANSWER).read_to_end(&mut bytes).map(|_| bytes);
        let _ = say.send(read);
    });
    let bytes = answered(&heard, request.task, limits, meanwhile).map_err(NoAnswer::Late)?;
    let bytes = bytes.map_err(|error| bad(format!("the worker's answer cannot be read: {error}")))?;
    serde_json::from_slice(&bytes).map_err(|error| bad(format!("the worker's answer is damaged: {error}")))
}

/// Waits for the bytes of an answer.
///
/// # Errors
/// The time is over.
fn answered(
    heard: &Receiver<io::Result<Vec<u8>>>,
    task: Task,
    limits: Limits,
    meanwhile: &mut dyn FnMut() -> Patience,
) -> Result<io::Result<Vec<u8>>, String> {
    let longest = if matches!(task, Task::Plan | Task::Look) { LONGEST_LOOK } else { LONGEST };
    let (begin, mut asked) = (Instant::now(), None);
    loop {
        match heard.recv_timeout(limits.look) {
            Ok(bytes) => return Ok(bytes),
            Err(RecvTimeoutError::Disconnected) => return Ok(Err(io::ErrorKind::UnexpectedEof.into())),
            Err(RecvTimeoutError::Timeout) => {}
        }
        if begin.elapsed() > longest {
            return Err(format!("the worker took longer than {} minutes", longest.as_secs() / 60));
        }
        if meanwhile() == Patience::End && asked.get_or_insert_with(Instant::now).elapsed() > limits.grace {
            return Err("the worker was ended by the kill switch".to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decision::Identity;

    /// Writes the script by another process. A child of another test can inherit a descriptor of this process, and then the script
    /// cannot be executed until the child has executed its program.
    fn perform(script: &str) -> Result<Answer, String> {
        perform_with(script, &mut || Patience::Wait)
    }

    fn perform_with(script: &str, meanwhile: &mut dyn FnMut() -> Patience) -> Result<Answer, String> {
        const WRITE: &str = "printf '#!/bin/sh\\n%s\\n' \"$1\" >\"$2\" && chmod 755 \"$2\"";
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("worker");
        let written = Command::new("sh").args(["-c", WRITE, "sh", script]).arg(&program).status().unwrap();
        assert!(written.success());
        let mut worker = WorkerProcess::of(&program);
        worker.limits = Limits { look: Duration::from_millis(10), grace: Duration::from_secs(1) };
        let answer = worker.perform(&request(folder.path()), meanwhile);
        assert!(worker.stuck().is_empty());
        answer
    }

    fn request(state: &Path) -> Request {
        Request {
            task: Task::Look,
            identity: Identity { pid: 1, start: 1 },
            file: None,
            kinds: Vec::new(),
            pages: "auto".to_owned(),
            max_memory: None,
            state: state.to_owned(),
            supervisor: Identity { pid: 1, start: 1 },
            beside: false,
            fork_seconds: 0,
            tried: Vec::new(),
        }
    }

    #[test]
    fn a_worker_is_waited_for_and_ended_on_demand() {
        let mut calls = 0;
        let slow = "cat > /dev/null; sleep 1; echo '{\"covered\":7,\"resident\":0,\"pause_microseconds\":1,\"refusal\":null,\"gone\":false}'";
        let mut count = || {
            calls += 1;
            Patience::Wait
        };
        assert_eq!(perform_with(slow, &mut count).unwrap().covered, 7);
        assert!(calls > 10, "{calls} calls in a second");
        let why = perform_with("cat > /dev/null; exec sleep 1000", &mut || Patience::End).unwrap_err();
        assert_eq!(why, "the worker was ended by the kill switch");
        // It has answered, and does not end.
        let why = perform("cat > /dev/null; echo '{}'; exec >/dev/null sleep 1000").unwrap_err();
        assert_eq!(why, "the worker was killed by signal 9");
    }

    #[test]
    fn an_answer_is_read_and_a_crash_is_none() {
        let answer = "cat > /dev/null; echo '{\"covered\":7,\"resident\":0,\"pause_microseconds\":1,\"refusal\":null,\"gone\":false}'";
        assert_eq!(perform(answer).unwrap().covered, 7);
        assert_eq!(perform(&format!("{answer}; exit 3")).unwrap_err(), "the worker ended with status 3");
        assert_eq!(perform("cat > /dev/null; kill -SEGV $$").unwrap_err(), "the worker was killed by signal 11");
        assert!(perform("cat > /dev/null; echo '{'").unwrap_err().contains("answer is damaged"));
        assert!(perform("cat > /dev/null; yes").unwrap_err().contains("worker"));
    }

    #[test]
    fn a_worker_that_cannot_be_started_has_done_nothing() {
        let answer = WorkerProcess::of(Path::new("/nowhere/pagelift"))
            .perform(&request(Path::new("/")), &mut || Patience::Wait)
            .unwrap();
        assert!(answer.not_started && answer.refusal.unwrap().starts_with("/nowhere/pagelift cannot be started: "));
    }
}
