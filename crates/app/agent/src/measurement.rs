//! Runs `pagelift measure-lift` on a process, and reads the decision.
//!
//! It is a separate process: it needs libraries that the agent does not load, and its crash does not affect the agent.

use crate::discovery::Sampler;
use linux::lock_file::{LockFile, PassingLock};
use linux::process_handle::ProcessHandle;
use measure::sequential::{Line, ResultLine};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread;
use std::time::Duration;

/// Time in which a measurement restores its program and ends.
const LONGEST_END: Duration = Duration::from_secs(60);
/// Time in which it ends by SIGKILL.
const LONGEST_DEATH: Duration = Duration::from_secs(5);
/// Most bytes that are read: a line has about 150, and a measurement a few hundred lines.
const LONGEST: u64 = 1 << 20;

/// Progress of a measurement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Number of blocks so far. Dropped blocks and blocks of the control count.
    pub blocks: u64,
    /// Longest pause of the program by a lift so far.
    pub longest_pause: Duration,
    /// Sum of its pauses so far.
    pub paused: Duration,
}

/// A measurement that runs. It is ended when this is dropped, and then leaves the program plain.
#[derive(Debug)]
pub struct Running {
    child: Child,
    heard: Receiver<Heard>,
    seen: Seen,
    /// The line with the result, or the reason why there is none.
    end: Option<Result<ResultLine, String>>,
    /// The lock of workers, which the process holds too, and the lock of the measured program.
    _locks: Option<(LockFile, PassingLock)>,
}

/// Pauses of the program so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pauses {
    longest: Duration,
    total: Duration,
}

/// A message of the thread that reads lines.
#[derive(Debug)]
enum Heard {
    Block(Pauses),
    End(Result<ResultLine, NoResult>),
}

/// Why there is no decision.
#[derive(Debug, PartialEq, Eq)]
enum NoResult {
    /// The process says why, or ends without a word.
    Ended(String),
    /// Its lines cannot be read, so that it must be ended.
    Unread(String),
}

/// Words of the measurement of a process by the options of `attach`, for example `--pages thp --lift text,rodata`.
pub fn words(pid: i32, options: &[String], most: Duration) -> Vec<OsString> {
    let seconds = most.as_secs().max(1).to_string();
    let options = options.iter().map(OsString::from);
    let first = ["measure-lift".into(), "--for".into(), seconds.into()];
    first.into_iter().chain(options).chain([pid.to_string().into()]).collect()
}

impl Running {
    /// Starts a program, usually `pagelift`, with [`words`]. It holds the lock as long as it lives, if there is one, also if this
    /// process is killed.
    ///
    /// # Errors
    /// The program cannot be executed.
    pub fn start(program: &Path, words: &[OsString], lock: Option<&PassingLock>) -> Result<Self, String> {
        let mut command = Command::new(program);
        command.args(words).stdin(lock.map_or(Ok(Stdio::null()), inherited)?);
        Self::of(command, None)
    }

    /// Starts a program that holds the lock of workers as long as it lives, also if this process is killed. Ctrl-C does not
    /// interrupt it.
    ///
    /// # Errors
    /// The program cannot be executed.
    pub fn start_locked(
        program: &Path,
        words: &[OsString],
        lock: LockFile,
        process: PassingLock,
    ) -> Result<Self, String> {
        let mut command = Command::new(program);
        command.args(words).stdin(inherited(&lock)?).process_group(0);
        Self::of(command, Some((lock, process)))
    }

    fn of(mut command: Command, locks: Option<(LockFile, PassingLock)>) -> Result<Self, String> {
        let name = command.get_program().to_string_lossy().into_owned();
        command.stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().map_err(|error| format!("{name}: {error}"))?;
        let (say, heard) = channel();
        if let Some(output) = child.stdout.take() {
            thread::spawn(move || hear(output, &say));
        }
        Ok(Self { child, heard, seen: Seen::default(), end: None, _locks: locks })
    }

    /// Process of the measurement, whose CPU time counts against the budget.
    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// CPU time of the process so far.
    pub fn cpu(&self) -> Duration {
        let sample = Sampler::now().ok().and_then(|sampler| sampler.sample(self.pid()));
        sample.map_or(Duration::ZERO, |sample| sample.usage.cpu)
    }

    /// The progress at the last [`Self::poll`].
    pub fn seen(&self) -> Seen {
        self.seen
    }

    /// Looks for the decision, or the reason why there is none, and does not wait. `None` while the process lives: it may still
    /// restore the program.
    pub fn poll(&mut self) -> Option<Result<ResultLine, String>> {
        while self.end.is_none() {
            match self.heard.try_recv() {
                Ok(heard) => self.take(heard),
                Err(TryRecvError::Empty) => return None,
                Err(TryRecvError::Disconnected) => self.take(Heard::End(Err(NoResult::Ended(lost())))),
            }
        }
        let status = self.child.try_wait().ok().flatten()?;
        self.end.take().map(|end| with_status(end, status))
    }

    /// Waits for the decision.
    ///
    /// # Errors
    /// The reason why there is none.
    pub fn result(mut self) -> Result<ResultLine, String> {
        while self.end.is_none() {
            let heard = self.heard.recv().unwrap_or_else(|_| Heard::End(Err(NoResult::Ended(lost()))));
            self.take(heard);
        }
        let status = self.child.wait().map_err(|error| error.to_string())?;
        with_status(self.end.take().unwrap_or_else(|| Err(lost())), status)
    }

    fn take(&mut self, heard: Heard) {
        match heard {
            Heard::Block(Pauses { longest, total }) => {
                let Seen { blocks, longest_pause, paused } = self.seen;
                self.seen =
                    Seen { blocks: blocks + 1, longest_pause: longest_pause.max(longest), paused: paused.max(total) };
            }
            Heard::End(end) => {
                if matches!(end, Err(NoResult::Unread(_))) {
                    self.stop();
                }
                self.end = Some(end.map_err(|(NoResult::Ended(why) | NoResult::Unread(why))| why));
            }
        }
    }

    /// Asks the process to end, after it has restored the program.
    pub fn stop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = kill(Pid::from_raw(self.pid()), Signal::SIGTERM);
        }
    }

    /// Ends the process at once. The program stays in the state of the moment.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
    }
}

/// A duplicate of a lock, for the standard input of a process.
fn inherited(lock: &impl AsFd) -> Result<Stdio, String> {
    let lock = lock.as_fd().try_clone_to_owned().map_err(|error| format!("a lock of the measurement: {error}"))?;
    Ok(lock.into())
}

fn lost() -> String {
    "the measurement ended without a decision".to_owned()
}

fn with_status(end: Result<ResultLine, String>, status: ExitStatus) -> Result<ResultLine, String> {
    end.map_err(|why| if status.success() { why } else { format!("{why} ({status})") })
}

impl Drop for Running {
    fn drop(&mut self) {
        // SIGKILL leaves the program in the state of the moment, and does not end an uninterruptible sleep.
        self.stop();
        if !matches!(self.child.try_wait(), Ok(None)) {
            return;
        }
        let end = ProcessHandle::open(self.pid());
        // Without descriptors for a handle, its end is waited for.
        let ends_within = |time| end.as_ref().map_or(true, |end| end.ends_within(time));
        if !ends_within(LONGEST_END) {
            self.kill();
            if !ends_within(LONGEST_DEATH) {
                return;
            }
        }
        let _ = self.child.wait();
    }
}

/// Reads lines until the decision.
fn hear(output: impl Read, say: &Sender<Heard>) {
    let end = read(output, |pauses| drop(say.send(Heard::Block(pauses))));
    let _ = say.send(Heard::End(end));
}

/// The decision in the lines of a measurement. Each block is reported with the pauses so far.
fn read(output: impl Read, mut block: impl FnMut(Pauses)) -> Result<ResultLine, NoResult> {
    for line in BufReader::new(output.take(LONGEST)).lines() {
        let line = line.map_err(|error| NoResult::Unread(format!("the measurement cannot be read: {error}")))?;
        let unread = |error| NoResult::Unread(format!("a line of the measurement: {error}"));
        match serde_json::from_str(&line).map_err(unread)? {
            Line::Result(result) => return Ok(result),
            Line::Failed(why) => return Err(NoResult::Ended(why)),
            Line::Block(seen) => block(pauses(seen.longest_pause_microseconds, seen.paused_microseconds)),
            Line::Dropped(seen) => block(pauses(seen.longest_pause_microseconds, seen.paused_microseconds)),
        }
    }
    Err(NoResult::Ended(lost()))
}

fn pauses(longest: u64, total: u64) -> Pauses {
    Pauses { longest: Duration::from_micros(longest), total: Duration::from_micros(total) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use measure::sequential::{Decision, Measuring, Rule};

    fn shell(script: &str) -> Running {
        Running::start(Path::new("/bin/sh"), &["-c".into(), script.into()], None).unwrap()
    }

    #[test]
    fn the_last_line_is_the_decision() {
        let mut measuring = Measuring::new(Rule::default());
        let mut text = String::new();
        while !measuring.is_decided() {
            text += &(serde_json::to_string(&measuring.add(false, 0.0)).unwrap() + "\n");
        }
        text += &serde_json::to_string(&Line::Result(measuring.result("units"))).unwrap();
        let mut blocks = 0;
        let result = read(text.as_bytes(), |_| blocks += 1).unwrap();
        assert_eq!(blocks, 7);
        assert_eq!((result.decision, result.blocks), (Decision::PutBack, 7));
    }

    #[test]
    fn what_is_no_decision_is_a_reason() {
        let why = |script| shell(script).result().unwrap_err();
        assert_eq!(why("echo '{\"failed\":\"no pages\"}'"), "no pages");
        assert!(why("exit 3").ends_with("without a decision (exit status: 3)"));
        assert!(why("kill -9 $$").contains("signal: 9"));
        assert!(why("echo nonsense").starts_with("a line of the measurement: "));
        assert!(why("echo '{\"other\":1}'").starts_with("a line of the measurement: "));
        assert!(read(std::io::repeat(b'x'), |_| {}).is_err());
        assert!(
            Running::start(Path::new("/nowhere/pagelift"), &[], None).unwrap_err().starts_with("/nowhere/pagelift: ")
        );
    }

    #[test]
    fn a_measurement_that_is_given_up_can_clean_up() {
        let folder = tempfile::tempdir().unwrap();
        let (ready, cleaned) = (folder.path().join("ready"), folder.path().join("cleaned"));
        let script = format!(
            "trap 'touch {}; exit' TERM; touch {}; while :; do sleep 0.01; done",
            cleaned.display(),
            ready.display()
        );
        let running = shell(&script);
        while !ready.exists() {
            std::thread::sleep(Duration::from_millis(1));
        }
        drop(running);
        assert!(cleaned.exists());
    }

    #[test]
    fn a_measurement_is_polled_until_its_process_has_ended() {
        let block = "{\"block\":{\"is_control\":false,\"value\":0.1,\"log_evidence\":0.0,\"longest_pause_microseconds\":7,\"paused_microseconds\":9}}";
        let mut running = shell(&format!("echo '{block}'; read line; echo '{{\"failed\":\"no pages\"}}'"));
        let end = loop {
            if let Some(end) = running.poll() {
                break end;
            }
            thread::sleep(Duration::from_millis(1));
        };
        assert_eq!(end.unwrap_err(), "no pages");
        assert_eq!(
            running.seen(),
            Seen { blocks: 1, longest_pause: Duration::from_micros(7), paused: Duration::from_micros(9) }
        );
    }

    #[test]
    fn nonsense_ends_the_process() {
        let mut running = shell("echo nonsense; exec sleep 600");
        while running.poll().is_none() {
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// The next agent waits for the measurement of one that was killed.
    #[test]
    fn the_process_holds_the_lock() {
        let folder = tempfile::tempdir().unwrap();
        let open = || std::fs::File::open(folder.path()).unwrap();
        let take = |most| LockFile::take(open(), "lock", most);
        let program = || PassingLock::take(open(), "program", Duration::ZERO);
        let sleep = (Path::new("/bin/sleep"), [OsString::from("600")]);
        let lock = take(Duration::ZERO).unwrap();
        let running = Running::start_locked(sleep.0, &sleep.1, lock, program().unwrap()).unwrap();
        assert!(take(Duration::ZERO).is_err() && program().is_err());
        drop(running);
        assert!(take(Duration::ZERO).is_ok());
        let lock = program().unwrap();
        let running = Running::start(sleep.0, &sleep.1, Some(&lock)).unwrap();
        assert!(program().is_err());
        drop((running, lock));
        assert!(program().is_ok());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "only the lock that stays");
    }

    #[test]
    fn the_words_name_the_process_last() {
        let options = ["--pages".to_owned(), "thp".to_owned()];
        let expected = ["measure-lift", "--for", "60", "--pages", "thp", "42"];
        assert_eq!(words(42, &options, Duration::from_secs(60)), expected);
    }
}
