//! Processes that a test starts: with a time limit and captured output; none survives the test.

use anyhow::{Context as _, Result, bail, ensure};
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use std::io::{Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// With this status.
    Exit(i32),
    /// By this signal.
    Signal(i32),
}

impl From<ExitStatus> for Ending {
    fn from(status: ExitStatus) -> Self {
        status.code().map_or_else(|| Self::Signal(status.signal().unwrap_or(0)), Self::Exit)
    }
}

/// The result of a finished process.
#[derive(Clone, Debug)]
pub struct Output {
    /// Exit status or signal.
    pub ending: Ending,
    /// Everything written to standard output.
    pub stdout: String,
    /// Everything written to standard error.
    pub stderr: String,
    /// The process.
    pub pid: u32,
    /// Time from the start to the end.
    pub took: Duration,
}

impl Output {
    /// The output of a process that must have ended with status 0.
    ///
    /// # Errors
    /// Another ending.
    pub fn success(self) -> Result<Self> {
        ensure!(
            self.ending == Ending::Exit(0),
            "{:?}, stderr:\n{}\nstdout:\n{}",
            self.ending,
            self.stderr,
            self.stdout
        );
        Ok(self)
    }

    /// The lines on standard error that are Pagelift's own.
    pub fn own_lines(&self) -> Vec<&str> {
        self.stderr.lines().filter(|line| line.starts_with("pagelift: ")).collect()
    }

    /// Standard error without Pagelift's own lines.
    pub fn foreign_stderr(&self) -> String {
        self.stderr.lines().filter(|line| !line.starts_with("pagelift: ")).map(|line| format!("{line}\n")).collect()
    }
}

#[derive(Default)]
struct Stream {
    text: Mutex<(Vec<u8>, bool)>,
    changed: Condvar,
}

impl Stream {
    fn follow(mut source: impl Read + Send + 'static) -> Arc<Self> {
        let stream = Arc::new(Self::default());
        let writer = Arc::clone(&stream);
        std::thread::spawn(move || {
            let mut block = [0; 65536];
            loop {
                let length = source.read(&mut block).unwrap_or(0);
                let mut text = writer.text.lock().unwrap_or_else(|e| e.into_inner());
                text.0.extend_from_slice(&block[..length]);
                text.1 = length == 0;
                writer.changed.notify_all();
                if length == 0 {
                    return;
                }
            }
        });
        stream
    }

    /// Waits until `found` is true of the text or the stream ends; returns the text and whether the stream has ended.
    fn wait(&self, until: Instant, found: impl Fn(&str) -> bool) -> Option<(String, bool)> {
        let mut text = self.text.lock().unwrap_or_else(|e| e.into_inner());
        loop {
            let so_far = String::from_utf8_lossy(&text.0).into_owned();
            if text.1 || found(&so_far) {
                return Some((so_far, text.1));
            }
            let left = until.checked_duration_since(Instant::now())?;
            text = self.changed.wait_timeout(text, left).unwrap_or_else(|e| e.into_inner()).0;
        }
    }

    fn so_far(&self) -> String {
        String::from_utf8_lossy(&self.text.lock().unwrap_or_else(|e| e.into_inner()).0).into_owned()
    }
}

/// A running process of a test. Killed, with its process group, when it is dropped before its end.
pub struct Session {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: Option<Arc<Stream>>,
    stderr: Option<Arc<Stream>>,
    started: Instant,
    deadline: Instant,
    finished: bool,
}

/// Starts a command. A program that was just copied may still be open for writing in a child that another test is
/// starting at this moment; it closes the file when it executes.
fn spawn(command: &mut Command) -> std::io::Result<Child> {
    const TRIES: usize = 200;
    for _ in 1..TRIES {
        match command.spawn() {
            Err(error) if error.kind() == std::io::ErrorKind::ExecutableFileBusy => {
                std::thread::sleep(Duration::from_millis(5));
            }
            result => return result,
        }
    }
    command.spawn()
}

impl Session {
    /// Starts a command as the leader of a new process group, with pipes as its streams.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start(mut command: Command, limit: Duration) -> Result<Self> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Self::start_as_is(command, limit)
    }

    /// As [`Session::start`], with the streams as the command has them.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start_as_is(mut command: Command, limit: Duration) -> Result<Self> {
        command.process_group(0);
        let started = Instant::now();
        let mut child = spawn(&mut command).with_context(|| format!("cannot start {command:?}"))?;
        Ok(Self {
            stdin: child.stdin.take(),
            stdout: child.stdout.take().map(Stream::follow),
            stderr: child.stderr.take().map(Stream::follow),
            child,
            started,
            deadline: started + limit,
            finished: false,
        })
    }

    /// The process's number.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its standard error so far.
    pub fn stderr_so_far(&self) -> String {
        self.stderr.as_ref().map(|s| s.so_far()).unwrap_or_default()
    }

    /// Its standard output so far.
    pub fn stdout_so_far(&self) -> String {
        self.stdout.as_ref().map(|s| s.so_far()).unwrap_or_default()
    }

    /// The complete lines of its standard output so far. The last line may be in the middle of being read: a number there lacks
    /// digits.
    pub fn whole_lines_so_far(&self) -> String {
        let text = self.stdout_so_far();
        text.rsplit_once('\n').map(|(whole, _)| format!("{whole}\n")).unwrap_or_default()
    }

    /// Waits until standard output holds this line.
    ///
    /// # Errors
    /// It ends, or the time limit passes, before.
    pub fn wait_for_line(&self, line: &str) -> Result<()> {
        self.wait_for(self.stdout.as_ref(), |text| text.lines().any(|l| l == line), line)
    }

    /// Waits until standard error holds this text.
    ///
    /// # Errors
    /// It ends, or the time limit passes, before.
    pub fn wait_for_stderr(&self, part: &str) -> Result<()> {
        self.wait_for(self.stderr.as_ref(), |text| text.contains(part), part)
    }

    fn wait_for(&self, stream: Option<&Arc<Stream>>, found: impl Fn(&str) -> bool, what: &str) -> Result<()> {
        let stream = stream.context("this stream is not a pipe of ours")?;
        match stream.wait(self.deadline, &found) {
            Some((text, _)) if found(&text) => Ok(()),
            Some((text, _)) => bail!("it ended without `{what}`; it wrote:\n{text}\n{}", self.stderr_so_far()),
            None => bail!("no `{what}` in time; it wrote:\n{}\n{}", self.stdout_so_far(), self.stderr_so_far()),
        }
    }

    /// Writes to its standard input.
    ///
    /// # Errors
    /// It does not read any more.
    pub fn send(&mut self, text: &str) -> Result<()> {
        let stdin = self.stdin.as_mut().context("standard input is not a pipe of ours")?;
        stdin.write_all(text.as_bytes())?;
        Ok(stdin.flush()?)
    }

    /// Sends it a signal.
    ///
    /// # Errors
    /// The process does not exist any more.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        kill(Pid::from_raw(self.pid() as i32), signal).with_context(|| format!("cannot send {signal}"))
    }

    /// True once it has ended, waited for or not.
    ///
    /// # Errors
    /// The system call's error.
    pub fn has_ended(&mut self) -> Result<bool> {
        Ok(self.child.try_wait()?.is_some())
    }

    /// Closes its standard input and waits for its end and for the end of its output.
    ///
    /// # Errors
    /// The time limit passes, and the process is killed; or another process holds its output open.
    pub fn finish(mut self) -> Result<Output> {
        drop(self.stdin.take());
        let status = self.wait_until_deadline()?;
        let took = self.started.elapsed();
        let until = self.deadline.max(Instant::now() + Duration::from_secs(30));
        let mut texts = Vec::new();
        for stream in [&self.stdout, &self.stderr] {
            let text = match stream {
                Some(stream) => {
                    stream.wait(until, |_| false).context("it ended, but somebody holds its output open")?.0
                }
                None => String::new(),
            };
            texts.push(text);
        }
        self.finished = true;
        let stderr = texts.pop().unwrap_or_default();
        let stdout = texts.pop().unwrap_or_default();
        Ok(Output { ending: status.into(), stdout, stderr, pid: self.pid(), took })
    }

    fn wait_until_deadline(&mut self) -> Result<ExitStatus> {
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            if Instant::now() >= self.deadline {
                let state = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap_or_default();
                let state: String =
                    state.lines().filter(|l| l.starts_with("State") || l.starts_with("Tracer")).collect();
                bail!(
                    "still running after {:?} ({state}); it wrote:\n{}\n{}",
                    self.started.elapsed(),
                    self.stdout_so_far(),
                    self.stderr_so_far()
                );
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if !self.finished {
            killpg(Pid::from_raw(self.child.id() as i32), Signal::SIGKILL).ok();
            self.child.kill().ok();
            self.child.wait().ok();
        }
    }
}

/// Calls `ready` every few milliseconds until it is true.
///
/// # Errors
/// The time limit passes.
pub fn poll_until(limit: Duration, what: &str, mut ready: impl FnMut() -> bool) -> Result<()> {
    let started = Instant::now();
    while !ready() {
        ensure!(started.elapsed() < limit, "waited {limit:?} for {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}

/// Replaces whole numbers equal to `number` by `word` in the lines that begin with `pid`, so that outputs that name a process
/// can be compared. Any other line may hold the same number by chance.
pub fn exchange_text(text: &str, number: u32, word: &str) -> String {
    let exchanged = |line: &str| if line.starts_with("pid ") { exchange(line, number, word) } else { line.to_owned() };
    text.split_inclusive('\n').map(exchanged).collect()
}

fn exchange(text: &str, number: u32, word: &str) -> String {
    let wanted = number.to_string();
    let mut result = String::new();
    let mut digits = String::new();
    for c in text.chars().chain(['\0']) {
        if c.is_ascii_digit() {
            digits.push(c);
            continue;
        }
        result.push_str(if digits == wanted { word } else { &digits });
        digits.clear();
        if c != '\0' {
            result.push(c);
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_numbers_are_exchanged() {
        assert_eq!(exchange_text("pid 12, 123, 12", 12, "PID"), "pid PID, 123, PID");
        assert_eq!(exchange_text("version 12\npid 12\n", 12, "PID"), "version 12\npid PID\n");
    }

    #[test]
    fn a_program_that_never_ends_is_killed() {
        let mut command = Command::new("sleep");
        command.arg("60");
        let error = Session::start(command, Duration::from_millis(50)).unwrap().finish().unwrap_err();
        assert!(error.to_string().contains("still running"), "{error}");
    }

    #[test]
    fn a_line_is_waited_for_and_answered() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo ready; read x; echo got $x; exit 3"]);
        let mut session = Session::start(command, Duration::from_secs(10)).unwrap();
        session.wait_for_line("ready").unwrap();
        session.send("word\n").unwrap();
        let output = session.finish().unwrap();
        assert_eq!((output.ending, output.stdout.as_str()), (Ending::Exit(3), "ready\ngot word\n"));
    }
}
