//! One test_case: its needs, its folder of artefacts, and the command that repeats it.

use crate::need::{self, Need};
use crate::pool::PoolReservation;
use crate::process::{Output, Session, poll_until};
use crate::setting::put_settings_right;
use crate::{pagelift_binary, scratch_folder};
use anyhow::{Context as _, Result};
use libtest_mimic::{Arguments, Completion, Failed, Trial as Test};
use std::cell::{Cell, RefCell};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

/// The environment variable that marks every process of a test, so that one left behind is found.
const MARK: &str = "PAGELIFT_TEST_CASE";
/// A limit for hangs, not for slowness: some tests take half a minute on an idle machine.
const LIMIT: Duration = Duration::from_secs(240);

/// A test's environment. Its folder is removed if the test passes and kept if it fails.
pub struct Context {
    name: String,
    folder: PathBuf,
    pool: Option<PoolReservation>,
    notes: RefCell<String>,
    runs: Cell<u32>,
}

impl Context {
    fn new(name: &str, pool: Option<PoolReservation>) -> Result<Self> {
        let file_name: String = name.chars().map(|c| if c.is_alphanumeric() { c } else { '-' }).collect();
        let tests = scratch_folder().join("tests");
        remove_what_earlier_runs_kept(&tests, &file_name);
        let folder = tests.join(format!("{file_name}.{}", std::process::id()));
        fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        Ok(Self { name: name.to_owned(), folder, pool, notes: RefCell::default(), runs: Cell::new(0) })
    }
    /// The test's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// An empty folder of the test's own.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Records the duration of a part of this test, beside the durations of whole tests.
    pub fn note_duration_of(&self, part: &str, took: Duration) {
        note_duration(&format!("{}: {part}", self.name), took);
    }

    /// The pool that the test asked for with [`Need::Pool`].
    ///
    /// # Errors
    /// It did not ask.
    pub fn pool(&self) -> Result<&PoolReservation> {
        self.pool.as_ref().context("this test_case has reserved no pool")
    }

    /// Keeps a line for the reader of a failure.
    pub fn note(&self, text: impl AsRef<str>) {
        let mut notes = self.notes.borrow_mut();
        notes.push_str(text.as_ref());
        notes.push('\n');
    }

    /// Runs a command to its end, within a few minutes.
    ///
    /// # Errors
    /// It cannot be started or does not end.
    pub fn run(&self, command: Command) -> Result<Output> {
        self.run_within(command, LIMIT)
    }

    /// Runs a command to its end.
    ///
    /// # Errors
    /// It cannot be started or does not end in time.
    pub fn run_within(&self, command: Command, limit: Duration) -> Result<Output> {
        let output = self.session_within(command, limit)?.finish()?;
        self.keep(&output);
        Ok(output)
    }

    /// Starts a command that the test talks to.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn session(&self, command: Command) -> Result<Session> {
        self.session_within(command, LIMIT)
    }

    /// Starts a command that the test talks to, with another limit of time than the usual one.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn session_within(&self, mut command: Command, limit: Duration) -> Result<Session> {
        self.mark(&mut command);
        Session::start(command, limit)
    }

    /// Notes the command and marks its processes as this test's.
    pub fn mark(&self, command: &mut Command) {
        self.note(format!("+ {command:?}"));
        command.env(MARK, self.mark_value());
    }

    /// The mark in the environment of this test's processes: the test and its run, because another user may run the
    /// same tests at the same time.
    fn mark_value(&self) -> String {
        format!("{}@{}", self.name, std::process::id())
    }

    /// Command lines of the processes that this test has started and that still run.
    pub fn own_processes(&self) -> Vec<String> {
        processes_marked(&self.mark_value())
    }

    /// Keeps what a finished process wrote.
    pub fn keep(&self, output: &Output) {
        let run = self.runs.get();
        self.runs.set(run + 1);
        self.note(format!("  run {run}: {:?} after {:.3} s", output.ending, output.took.as_secs_f64()));
        for (kind, text) in [("stdout", &output.stdout), ("stderr", &output.stderr)] {
            if !text.is_empty() {
                fs::write(self.folder.join(format!("{run}.{kind}")), text).ok();
            }
        }
    }

    /// `pagelift run` with these options, the program behind `--`. A lift is made at the start at any price unless they limit
    /// it: the price follows from what another test has measured while the machine was busy.
    ///
    /// # Errors
    /// No `pagelift` was built.
    pub fn lifted(&self, options: &[&str], program: &Command) -> Result<Command> {
        let mut command = Command::new(pagelift_binary()?);
        let is_limited = options.iter().any(|option| option.starts_with("--start-cost"));
        command.arg("run").args(if is_limited { &[][..] } else { &["--start-cost", "any"] });
        command.args(options).arg("--").arg(program.get_program()).args(program.get_args());
        for (name, value) in program.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        if let Some(folder) = program.get_current_dir() {
            command.current_dir(folder);
        }
        Ok(command)
    }

    /// `pagelift` with these arguments.
    ///
    /// # Errors
    /// No `pagelift` was built.
    pub fn pagelift(&self, arguments: &[&str]) -> Result<Command> {
        let mut command = Command::new(pagelift_binary()?);
        command.args(arguments);
        Ok(command)
    }

    /// Fails if a process of this test still runs after a short wait for those that are ending.
    fn check_nobody_is_left(&self) -> Result<()> {
        let mut left = Vec::new();
        let waited = poll_until(Duration::from_secs(60), "the test's processes to end", || {
            left = self.own_processes();
            left.is_empty()
        });
        waited.with_context(|| format!("left behind: {left:?}"))
    }
}

/// Removes the folders that earlier failures of a test left. They are named after the process that ran the test; those
/// of runs in progress stay.
fn remove_what_earlier_runs_kept(tests: &Path, name: &str) {
    for entry in fs::read_dir(tests).into_iter().flatten().flatten() {
        let file_name = entry.file_name().to_string_lossy().into_owned();
        let process = file_name.strip_prefix(name).and_then(|rest| rest.strip_prefix('.'));
        if process.is_some_and(|process| !Path::new("/proc").join(process).exists()) {
            fs::remove_dir_all(entry.path()).ok();
        }
    }
}

/// Command lines of the processes that carry the mark of this test.
fn processes_marked(value: &str) -> Vec<String> {
    let mark = format!("{MARK}={value}");
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let marked = entries.filter(|entry| {
        let environment = fs::read(entry.path().join("environ")).unwrap_or_default();
        environment.split(|&b| b == 0).any(|variable| variable == mark.as_bytes())
    });
    let line = |entry: fs::DirEntry| {
        let arguments = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        format!("{} {}", entry.file_name().display(), String::from_utf8_lossy(&arguments).replace('\0', " "))
    };
    marked.map(line).collect()
}

/// The error of a test that finds during its run that it does not apply here; the test is skipped.
#[derive(Debug)]
pub struct Skipped(pub String);

impl std::fmt::Display for Skipped {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl std::error::Error for Skipped {}

/// A test that is skipped if a need is not met. Its folder is kept if the test fails.
pub fn test_case<F>(name: impl Into<String>, needs: Vec<Need>, body: F) -> Test
where
    F: FnOnce(&Context) -> Result<()> + Send + 'static,
{
    let name = name.into();
    let own_name = name.clone();
    Test::ignorable_test(name, move || {
        let pool = match need::meet(&needs) {
            Ok(pool) => pool,
            Err(reason) => return Ok(Completion::ignored_with(reason)),
        };
        let started = Instant::now();
        let context = Context::new(&own_name, pool).map_err(|e| Failed::from(format!("{e:#}")))?;
        let body = std::panic::AssertUnwindSafe(|| body(&context).and_then(|()| context.check_nobody_is_left()));
        let result = std::panic::catch_unwind(body)
            .unwrap_or_else(|_| Err(anyhow::anyhow!("it panicked; the message stands above")));
        note_duration(&own_name, started.elapsed());
        match result {
            Ok(()) => {
                fs::remove_dir_all(&context.folder).ok();
                Ok(Completion::Completed)
            }
            Err(error) if error.is::<Skipped>() => {
                fs::remove_dir_all(&context.folder).ok();
                Ok(Completion::ignored_with(error.to_string()))
            }
            Err(error) => Err(failure(&context, &error)),
        }
    })
}

/// Records the duration of each test, as a help for making the tests faster.
fn note_duration(name: &str, took: Duration) {
    let file = fs::File::options().create(true).append(true).open(scratch_folder().join("durations"));
    if let Ok(mut file) = file {
        writeln!(file, "{:8.2} s  {name}", took.as_secs_f64()).ok();
    }
}

fn failure(context: &Context, error: &anyhow::Error) -> Failed {
    let notes = context.notes.borrow();
    fs::write(context.folder.join("notes"), format!("{notes}\n{error:?}\n")).ok();
    let test = target_name().unwrap_or_else(|| "NAME".to_owned());
    let name = &context.name;
    let folder = context.folder.display();
    Failed::from(format!(
        "{error:#}\n\n{notes}\nkept: {folder}\nrepeat: cargo test -p pagelift-tests --test {test} -- --exact '{name}'"
    ))
}

/// The name of this test target.
fn target_name() -> Option<String> {
    let executable = std::env::current_exe().ok()?;
    let (name, _hash) = executable.file_stem()?.to_str()?.rsplit_once('-')?;
    Some(name.to_owned())
}

/// True if `scripts/test` runs this test target side by side with others, and this is the run of all other targets.
fn is_run_beside() -> bool {
    let names = std::env::var("PAGELIFT_TESTS_BESIDE").unwrap_or_default();
    target_name().is_some_and(|own| names.split(' ').any(|name| name == own))
}

/// Runs the tests of one test target, as `cargo test` expects it.
pub fn main_of(tests: Vec<Test>) -> ExitCode {
    // Tests start processes of their own; more than two at once only disturb each other.
    run_at_once(tests, 2)
}

/// Like [`main_of`], for tests that each boot a virtual machine: half of the time its programs sleep and wait, so that two
/// more find CPUs that the other two leave idle.
pub fn main_of_machines(tests: Vec<Test>) -> ExitCode {
    run_at_once(tests, 4)
}

/// Like [`main_of`], for tests whose programs wait most of the time.
pub fn main_of_waiting(tests: Vec<Test>) -> ExitCode {
    run_at_once(tests, 4)
}

/// Like [`main_of`], one test after the other, for tests whose programs need two CPUs by themselves.
pub fn main_of_one_at_a_time(tests: Vec<Test>) -> ExitCode {
    run_at_once(tests, 1)
}

fn run_at_once(tests: Vec<Test>, at_once: usize) -> ExitCode {
    if is_run_beside() {
        return ExitCode::SUCCESS;
    }
    if let Err(error) = put_settings_right() {
        eprintln!("what a killed test has left: {error:#}");
        return ExitCode::FAILURE;
    }
    let mut arguments = Arguments::from_args();
    arguments.test_threads = arguments.test_threads.or(Some(at_once));
    libtest_mimic::run(&arguments, tests).exit_code()
}
