//! A foreign load generator: a shell command for each burst, and the number that it prints.

use super::super::ServerPlace;
use super::metric::Metric;
use super::{Broken, Burst, Reading};
use crate::conduct::Conduct;
use linux::bounded::LOAD_OUTPUT;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// Interval between checks of a wait for an interruption.
const LOOK: Duration = Duration::from_millis(50);
/// The time that a load has to end after the request.
const TO_END: Duration = Duration::from_secs(3);

/// The command, and the metric in its output.
pub(in crate::servers) struct Tool<'a> {
    pub(super) command: &'a str,
    pub(super) metric: Option<&'a Metric>,
    /// The value of `{seconds}`.
    pub(super) seconds: f64,
}

impl Tool<'_> {
    /// Runs it once. Without a metric it does the same work each time.
    pub(super) fn burst(
        &self,
        place: &ServerPlace,
        conduct: &Conduct<'_>,
        read: &mut dyn FnMut() -> Result<Reading, Broken>,
    ) -> Result<Burst, Broken> {
        let command = place.fill_in(self.command).replace("{seconds}", &self.seconds.to_string());
        let failed = |what: &str| Broken::Failed(format!("the load {command:?}: {what}"));
        let output = tempfile::tempfile().map_err(|error| failed(&error.to_string()))?;
        let mut from = read()?;
        from.at = Instant::now();
        let status = run(&command, &output, &|| conduct.is_interrupted())?;
        let to = read()?;
        let text = end_of(&output).map_err(|error| failed(&error.to_string()))?;
        if !status.success() {
            return Err(failed(&format!("{status}; it printed last: {}", last_words(&text))));
        }
        let seconds = (to.at - from.at).as_secs_f64();
        let work = self.metric.map_or(Ok(1.0), |metric| metric.work_in(&text, seconds)).map_err(|why| failed(&why))?;
        Ok(Burst { work, from, to, latency: None })
    }
}

/// Runs a shell command in a separate process group, until it ends or is interrupted.
pub(in crate::servers) fn run(
    command: &str,
    output: &File,
    is_interrupted: &dyn Fn() -> bool,
) -> Result<ExitStatus, Broken> {
    let failed = |error: io::Error| Broken::Failed(format!("sh cannot be executed: {error}"));
    let (out, error) = (output.try_clone().map_err(failed)?, output.try_clone().map_err(failed)?);
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(command).stdin(Stdio::null()).stdout(out).stderr(error).process_group(0);
    let mut child = shell.spawn().map_err(failed)?;
    let group = Pid::from_raw(child.id() as i32);
    let (sender, receiver) = channel();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            // The receiver lives as long as this thread.
            let _ = sender.send(child.wait());
        });
        loop {
            match receiver.recv_timeout(LOOK) {
                Ok(status) => return status.map_err(failed),
                Err(RecvTimeoutError::Disconnected) => return Err(Broken::Interrupted),
                Err(RecvTimeoutError::Timeout) if is_interrupted() => {
                    end(group, &receiver);
                    return Err(Broken::Interrupted);
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    })
}

/// The thread that waits reaps it, so that its number is nobody else's until then.
fn end(group: Pid, receiver: &Receiver<io::Result<ExitStatus>>) {
    let _ = killpg(group, Signal::SIGTERM);
    if receiver.recv_timeout(TO_END).is_err() {
        let _ = killpg(group, Signal::SIGKILL);
        let _ = receiver.recv();
    }
}

/// The kept end of a file. The position at which others write is left alone.
pub(in crate::servers) fn end_of(file: &File) -> io::Result<String> {
    let length = file.metadata()?.len();
    let mut bytes = vec![0; length.min(LOAD_OUTPUT.bytes()) as usize];
    let mut filled = 0;
    while filled < bytes.len() {
        let from = length - (bytes.len() - filled) as u64;
        match file.read_at(&mut bytes[filled..], from)? {
            0 => break,
            read => filled += read,
        }
    }
    Ok(String::from_utf8_lossy(&bytes[..filled]).into_owned())
}

/// The last line with text, made printable.
pub(in crate::servers) fn last_words(text: &str) -> String {
    let last = text.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("nothing").trim();
    last.chars().map(|c| if c.is_control() { '?' } else { c }).take(300).collect()
}
