//! Starts workers and waits for their answers.

use crate::measurement::{Running, Seen, words};
use crate::worker::{Answer, Request, Task, lock_process, not_locked, take_lock};
use measure::sequential::ResultLine;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// Longest answer in bytes.
const LONGEST_ANSWER: u64 = 1 << 20;
/// Time after which a worker is killed: a lift in place may take 10 minutes, and the worker's lock 2.
pub(super) const LONGEST: Duration = Duration::from_secs(15 * 60);
/// Time after which a worker is killed that only reads.
const LONGEST_LOOK: Duration = Duration::from_secs(3 * 60);

/// Performs requests.
pub trait Worker {
    /// Performs a request.
    ///
    /// # Errors
    /// Why there is no answer: the worker crashed, was killed, or took too long.
    fn perform(&mut self, request: &Request) -> Result<Answer, String>;

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
}

impl WorkerProcess {
    /// Workers of this program.
    pub fn of(program: &Path) -> Self {
        Self { program: program.to_owned() }
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
    fn perform(&mut self, request: &Request) -> Result<Answer, String> {
        let (mut child, input) = match self.start() {
            Ok(started) => started,
            Err(why) => return Ok(Answer { not_started: true, refusal: Some(why), ..Answer::default() }),
        };
        let answer = exchange(&mut child, input, request);
        if answer.is_err() {
            // It may not have ended by itself.
            let _ = child.kill();
        }
        let status = child.wait().map_err(|error| format!("the worker cannot be waited for: {error}"))?;
        match (answer, status.signal(), status.code()) {
            (_, Some(signal), _) => Err(format!("the worker was killed by signal {signal}")),
            (Ok(answer), None, Some(0)) => Ok(answer),
            (Ok(_), None, code) => Err(format!("the worker ended with status {}", code.unwrap_or(-1))),
            (Err(why), None, _) => Err(why),
        }
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

fn exchange(child: &mut Child, mut input: UnixStream, request: &Request) -> Result<Answer, String> {
    let text = serde_json::to_vec(request).map_err(|error| error.to_string())?;
    input.write_all(&text).map_err(|error| format!("the worker does not read: {error}"))?;
    drop(input);
    let Some(output) = child.stdout.take() else { return Err("the worker has no output".to_owned()) };
    let (say, heard) = mpsc::channel();
    let reader = thread::spawn(move || {
        let mut bytes = Vec::new();
        let read = output.take(LONGEST_ANSWER).read_to_end(&mut bytes).map(|_| bytes);
        let _ = say.send(read);
    });
    let longest = if matches!(request.task, Task::Plan | Task::Look) { LONGEST_LOOK } else { LONGEST };
    let heard = heard.recv_timeout(longest);
    if heard.is_err() {
        // Its end closes the pipe, and so ends the reader.
        let _ = child.kill();
    }
    let _ = reader.join();
    let bytes = heard.map_err(|_| format!("the worker took longer than {} minutes", longest.as_secs() / 60))?;
    let bytes = bytes.map_err(|error| format!("the worker's answer cannot be read: {error}"))?;
    serde_json::from_slice(&bytes).map_err(|error| format!("the worker's answer is damaged: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decision::Identity;

    /// Writes the script by another process. A child of another test can inherit a descriptor of this process, and then the script
    /// cannot be executed until the child has executed its program.
    fn perform(script: &str) -> Result<Answer, String> {
        const WRITE: &str = "printf '#!/bin/sh\\n%s\\n' \"$1\" >\"$2\" && chmod 755 \"$2\"";
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("worker");
        let written = Command::new("sh").args(["-c", WRITE, "sh", script]).arg(&program).status().unwrap();
        assert!(written.success());
        WorkerProcess::of(&program).perform(&request(folder.path()))
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
        }
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
        let answer = WorkerProcess::of(Path::new("/nowhere/pagelift")).perform(&request(Path::new("/"))).unwrap();
        assert!(answer.not_started && answer.refusal.unwrap().starts_with("/nowhere/pagelift cannot be started: "));
    }
}
