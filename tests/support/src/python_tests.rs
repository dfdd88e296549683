//! CPython's own tests, as Debian packages them (`libpython3.X-testsuite`), run by the interpreter of the same package.

use crate::context::Context;
use crate::outcomes::{Outcome, Outcomes};
use crate::process::Session;
use crate::{Need, tests_folder};
use anyhow::{Context as _, Result, bail, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The interpreter of the distribution's own programs, to which its packages of tests belong.
const PYTHON: &str = "/usr/bin/python3";
/// Limit for a module that hangs: the longest takes less than a minute.
const LIMIT: Duration = Duration::from_secs(400);

/// How a run of the tests is started.
#[derive(Clone, Copy, Debug)]
pub enum PythonRun<'a> {
    /// Without Pagelift.
    Plain,
    /// Each module by a separate `pagelift run` with these options.
    EachLifted(&'a [&'a str]),
    /// All modules below one `pagelift run --only` with these options, which follows every descendant.
    Followed(&'a [&'a str]),
}

/// Some modules of CPython's tests.
#[derive(Clone, Copy, Debug)]
pub struct PythonTests<'a> {
    /// Names such as `test_signal`.
    pub modules: &'a [&'a str],
}

/// A run that was started.
pub struct RunningPythonTests {
    /// Each process, and the file for its outcomes.
    processes: Vec<(Session, PathBuf)>,
}

/// The interpreter's file, which `--only` names, links resolved.
pub fn python() -> PathBuf {
    Path::new(PYTHON).canonicalize().unwrap_or_else(|_| PYTHON.into())
}

/// The name by which `--only` finds [`python`].
pub fn python_name() -> String {
    python().file_name().unwrap_or_default().to_string_lossy().into_owned()
}

impl PythonTests<'_> {
    /// The interpreter and its package of tests.
    pub fn needs() -> Vec<Need> {
        let tests = Path::new("/usr/lib").join(python_name()).join("test/test_signal.py");
        vec![Need::File(PYTHON.to_owned()), Need::File(tests.to_string_lossy().into_owned())]
    }

    /// Starts the modules in parallel, because most of them sleep most of the time. Their output goes to a new folder
    /// of this name in the test's folder.
    ///
    /// # Errors
    /// A process cannot be started.
    pub fn start(&self, t: &Context, name: &str, how: PythonRun) -> Result<RunningPythonTests> {
        let folder = t.folder().join(name);
        fs::create_dir(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        let names: &[&str] = if let PythonRun::Followed(_) = how { &["all"] } else { self.modules };
        let mut processes = Vec::new();
        for name in names {
            let outcomes = folder.join(format!("{name}.xml"));
            let command = match how {
                PythonRun::Plain => one_module(name, &outcomes),
                PythonRun::EachLifted(options) => t.lifted(options, &one_module(name, &outcomes))?,
                PythonRun::Followed(options) => self.followed(t, &outcomes, options)?,
            };
            processes.push((t.session_within(with_setting(command, &folder), LIMIT)?, outcomes));
        }
        Ok(RunningPythonTests { processes })
    }

    /// A shell that is not lifted starts the tests in parallel processes, and then one more Python, which shows whether
    /// programs are still lifted.
    fn followed(&self, t: &Context, outcomes: &Path, options: &[&str]) -> Result<Command> {
        let script = r#"python=$1 xml=$2 last=$3; shift 3
            "$python" -m test -j5 --junit-xml "$xml" "$@"
            "$python" -c "$last""#;
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", script, "sh"]).arg(python()).arg(outcomes).arg(LAST).args(self.modules).args(TOO_SHORT);
        let name = python_name();
        let options = [options, &["--only", &name, "--follow-lifted"]].concat();
        t.lifted(&options, &shell)
    }
}

fn one_module(name: &str, outcomes: &Path) -> Command {
    let mut command = Command::new(python());
    command.args(["-m", "test", "--junit-xml"]).arg(outcomes).arg(name).args(TOO_SHORT);
    command
}

/// Leaves out a test that gives a killed process 0.2 s to end: fifteen tests run at a time, and a tracer, which learns
/// of the end first, may be lifting others.
const TOO_SHORT: [&str; 2] = ["--ignore", "test_leak_fast_process_del_killed"];

/// Prints its process number and whether it has pool pages.
const LAST: &str = "import os; \
    print('last', os.getpid(), 'on pool pages' if 'anon_hugepage' in open('/proc/self/maps').read() else 'on others')";

/// The heap of `--heap` serves small objects only if Python's own allocator is off; plain runs have the same setting.
fn with_setting(mut command: Command, folder: &Path) -> Command {
    command.env("PYTHONMALLOC", "malloc").current_dir(folder);
    command
}

/// The outcomes of a run that has ended.
#[derive(Debug)]
pub struct FinishedPythonTests {
    /// One for each test of all modules.
    pub outcomes: Outcomes,
    /// The last program of a [`PythonRun::Followed`]: its process and whether it was on pool pages.
    pub last: Option<(u32, bool)>,
}

impl RunningPythonTests {
    /// Waits for all modules and reads their outcomes. The exit status of a test process is ignored: its outcomes are
    /// enough.
    ///
    /// # Errors
    /// A module leaves no outcomes, for example because its process was killed, or takes too long.
    pub fn finish(self, t: &Context) -> Result<FinishedPythonTests> {
        let mut last = None;
        let mut files = Vec::new();
        for (session, file) in self.processes {
            let output = session.finish()?;
            t.keep(&output);
            last = last.or_else(|| last_program(&output.stdout));
            ensure!(
                file.exists(),
                "no outcomes in {}: {:?}\n{}{}",
                file.display(),
                output.ending,
                output.stdout,
                output.stderr
            );
            files.push(file);
        }
        Ok(FinishedPythonTests { outcomes: read_outcomes(t, &files)?, last })
    }
}

fn read_outcomes(t: &Context, files: &[PathBuf]) -> Result<Outcomes> {
    let mut reader = Command::new(python());
    reader.arg(tests_folder().join("start/programs/real/outcomes.py")).args(files);
    let text = t.run(reader)?.success()?.stdout;
    let mut outcomes = Outcomes::default();
    for line in text.lines() {
        let (outcome, name) = line.split_once(' ').with_context(|| format!("not an outcome: {line}"))?;
        outcomes.add(name, outcome_of(outcome)?);
    }
    Ok(outcomes)
}

fn outcome_of(word: &str) -> Result<Outcome> {
    Ok(match word {
        "passed" => Outcome::Passed,
        "skipped" => Outcome::Skipped,
        "failure" | "error" => Outcome::Failed,
        _ => bail!("not an outcome: {word}"),
    })
}

fn last_program(stdout: &str) -> Option<(u32, bool)> {
    let line = stdout.lines().find_map(|line| line.strip_prefix("last "))?;
    let (pid, pages) = line.split_once(' ')?;
    Some((pid.parse().ok()?, pages == "on pool pages"))
}
