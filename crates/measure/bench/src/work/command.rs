//! A command that prints a growing number.

use super::{Counter, WorkError};
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output, Stdio};

/// Maximum number of starts of a shell that a signal of the terminal ends before the shell can ignore it.
const MOST_STARTS: usize = 4;

/// Executes a command by a shell that ignores SIGINT and SIGHUP, as its children do, with no input; returns its output.
/// A terminal sends these signals to all foreground processes; a switch or a reading that ends in its middle would
/// leave the program in an unknown state.
///
/// # Errors
/// `sh` cannot be executed.
pub fn shell(command: &str) -> io::Result<Output> {
    let execute = || {
        let mut shell = Command::new("sh");
        shell.arg("-c").arg(format!("trap '' INT HUP\n{command}"));
        shell.stdin(Stdio::null()).stderr(Stdio::inherit()).output()
    };
    let mut output = execute()?;
    for _ in 1..MOST_STARTS {
        // They end only a shell that has not reached its first line: the command has done no work.
        if !output.status.signal().is_some_and(|signal| [libc::SIGINT, libc::SIGHUP].contains(&signal)) {
            break;
        }
        output = execute()?;
    }
    Ok(output)
}

/// The last word that a shell command prints.
pub(super) struct Printed {
    command: String,
}

impl Printed {
    pub(super) fn by(command: &str) -> Self {
        Self { command: command.to_owned() }
    }
}

impl Counter for Printed {
    fn read(&mut self) -> Result<f64, WorkError> {
        let failed = |problem: String| WorkError::no_number(&self.command, problem);
        let output = shell(&self.command).map_err(|error| failed(format!("sh cannot be executed: {error}")))?;
        if !output.status.success() {
            return Err(failed(format!("the command failed: {}", output.status)));
        }
        let text = String::from_utf8_lossy(&output.stdout);
        let last = text.split_ascii_whitespace().next_back().unwrap_or_default();
        let number = last.parse().ok().filter(|number: &f64| number.is_finite());
        number.ok_or_else(|| failed(format!("it printed {last:?}; needed: a number that grows with the work")))
    }

    fn unit(&self) -> String {
        "units".to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_number_counts() {
        assert_eq!(Printed::by("echo requests: 41.5").read().unwrap(), 41.5);
        assert!(Printed::by("echo many").read().unwrap_err().to_string().contains("printed \"many\""));
        assert!(Printed::by("exit 3").read().unwrap_err().to_string().contains("exit status: 3"));
    }

    #[test]
    fn a_shell_that_the_terminal_has_ended_is_started_again() {
        let folder = tempfile::tempdir().unwrap();
        let mark = folder.path().join("mark");
        let count = format!("echo >> {0}; test $(wc -l < {0}) = 2", mark.display());
        let ended_once = |signal: &str| format!("{count} || {{ trap - INT; kill -{signal} $$; }}; echo 7");
        assert!(Printed::by(&ended_once("KILL")).read().unwrap_err().to_string().contains("SIGKILL"));
        std::fs::remove_file(&mark).unwrap();
        assert_eq!(Printed::by(&ended_once("INT")).read().unwrap(), 7.0);
    }

    #[test]
    fn what_a_terminal_sends_does_not_reach_a_command() {
        assert_eq!(Printed::by("kill -INT $$; kill -HUP $$; echo 7").read().unwrap(), 7.0);
    }
}
