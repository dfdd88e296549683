//! The programs of /usr/bin with harmless arguments: their output and their ending stay the same.

use anyhow::{Context as _, Result, bail, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;
use test_support::{Context, Ending, Need, Session, Skipped, Test, is_root, pagelift_binary, test_case};

const FOLDER: &str = "/usr/bin";
pub const ARGUMENTS: [&str; 2] = ["--version", "--help"];
/// A program that takes longer waits for something that does not exist here.
const LIMIT: Duration = Duration::from_secs(10);
/// Limit in bytes for each file that a program writes.
const MOST_OUTPUT: u64 = 4 << 20;
/// Number of further plain runs, until one has the output of the lifted run.
const MORE_RUNS: u32 = 50;
/// Debian's and everybody's `nobody`.
const NOBODY: u32 = 65534;

pub fn tests() -> Vec<Test> {
    let of_program = |(file, name): (PathBuf, String)| {
        let needs = vec![Need::Thp, Need::File(file.to_string_lossy().into_owned())];
        test_case(format!("usr_bin/{name}"), needs, move |t| same_outputs(t, &name))
    };
    programs().into_iter().map(of_program).collect()
}

/// Executables with the first of their names.
pub fn programs() -> BTreeMap<PathBuf, String> {
    let mut names: Vec<String> = fs::read_dir(FOLDER)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    let mut programs = BTreeMap::new();
    for name in names {
        let Ok(file) = Path::new(FOLDER).join(&name).canonicalize() else { continue };
        let executable = file.metadata().is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0);
        if executable {
            programs.entry(file).or_insert(name);
        }
    }
    programs
}

fn same_outputs(t: &Context, name: &str) -> Result<()> {
    if let Some(why) = out_of_reach() {
        return Err(Skipped(why.clone()).into());
    }
    in_scratch(t, name, |scratch| Ok(ARGUMENTS.map(|argument| compare_once(t, name, argument, scratch))))
}

/// Compares outputs in a folder of the ordinary user, which is removed afterwards.
pub fn in_scratch(
    t: &Context,
    name: &str,
    compare: impl FnOnce(&Path) -> Result<[Result<Option<String>>; ARGUMENTS.len()]>,
) -> Result<()> {
    let scratch = std::env::temp_dir().join(format!("pagelift-usr-bin-{}-{name}", std::process::id()));
    fs::create_dir_all(&scratch)?;
    if is_root() {
        chown(&scratch, Some(NOBODY), Some(NOBODY))?;
    }
    let results = compare(&scratch);
    end_own_processes(t);
    fs::remove_dir_all(&scratch).ok();
    let results = results?;
    let mut reasons = Vec::new();
    for result in results {
        reasons.extend(result?);
    }
    match reasons.len() {
        0 | 1 => Ok(()),
        _ => Err(Skipped(reasons.join("; ")).into()),
    }
}

/// Why the ordinary user cannot execute the `pagelift` under test: for example a folder that only root may enter.
pub fn out_of_reach() -> Option<&'static String> {
    static WHY: OnceLock<Option<String>> = OnceLock::new();
    let why = || {
        let pagelift = pagelift_binary().ok()?;
        let mut command = Command::new(&pagelift);
        command.arg("--version");
        let output = harmless(&command, &std::env::temp_dir()).output();
        let reached = output.is_ok_and(|output| output.status.success());
        (!reached).then(|| {
            format!("{} cannot be executed by user {NOBODY}; needed: o+x on it and its folders", pagelift.display())
        })
    };
    WHY.get_or_init(why).as_ref()
}

/// The output and the ending of a program.
#[derive(PartialEq, Eq)]
pub struct Said {
    pub ending: Ending,
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
}

fn compare_once(t: &Context, name: &str, argument: &str, scratch: &Path) -> Result<Option<String>> {
    let mut program = Command::new(Path::new(FOLDER).join(name));
    program.arg(argument);
    let lifted = t.lifted(&["--quiet"], &program)?;
    compare_runs(argument, || run(t, &program, scratch), || run(t, &lifted, scratch).context("lifted"))
}

/// Why the outputs cannot be compared; `None` if they are the same. `changed` runs the program in another way.
pub fn compare_runs(
    argument: &str,
    plain: impl Fn() -> Result<Said>,
    changed: impl FnOnce() -> Result<Said>,
) -> Result<Option<String>> {
    let plain = || plain().map_err(|_| format!("{argument} does not end plain"));
    let (one, other) = match (plain(), plain()) {
        (Ok(one), Ok(other)) => (one, other),
        (Err(why), _) | (_, Err(why)) => return Ok(Some(why)),
    };
    if one != other {
        return Ok(Some(format!("{argument} gives other output each time")));
    }
    let changed = changed().with_context(|| argument.to_owned())?;
    // The order of children's writes, or of a hash, varies the output of plain runs, too.
    if changed == one || (0..MORE_RUNS).any(|_| plain().is_ok_and(|another| another == changed)) {
        return Ok(None);
    }
    ensure!(changed.ending == one.ending, "{argument}: plain {:?}, changed {:?}", one.ending, changed.ending);
    same_text("standard output", &one.stdout, &changed.stdout).with_context(|| argument.to_owned())?;
    same_text("standard error", &one.stderr, &changed.stderr).with_context(|| argument.to_owned())?;
    Ok(None)
}

/// Names the first line that differs.
fn same_text(what: &str, plain: &[u8], changed: &[u8]) -> Result<()> {
    let [plain, changed] = [plain, changed].map(String::from_utf8_lossy);
    let differing = plain.lines().zip(changed.lines()).find(|(one, other)| one != other);
    if let Some((one, other)) = differing {
        bail!("{what}: plain `{one}`, changed `{other}`");
    }
    ensure!(plain == changed, "{what}: {} bytes plain, {} changed", plain.len(), changed.len());
    Ok(())
}

/// Runs a command with its output in files, because some programs write without end if they have no input.
pub fn run(t: &Context, command: &Command, scratch: &Path) -> Result<Said> {
    let files = ["stdout", "stderr"].map(|name| t.folder().join(name));
    let mut command = harmless(command, scratch);
    command.stdin(Stdio::null()).stdout(File::create(&files[0])?).stderr(File::create(&files[1])?);
    t.mark(&mut command);
    let output = Session::start_as_is(command, LIMIT)?.finish()?;
    Ok(Said { ending: output.ending, stdout: fs::read(&files[0])?, stderr: fs::read(&files[1])? })
}

/// The command as an ordinary user who may gain no privileges and write no large file, in a new folder, with nearly no
/// environment.
fn harmless(command: &Command, scratch: &Path) -> Command {
    let mut result = Command::new("prlimit");
    result.args([format!("--fsize={MOST_OUTPUT}"), "--core=0".to_owned()]);
    if is_root() {
        let ids = [format!("--reuid={NOBODY}"), format!("--regid={NOBODY}")];
        result.arg("setpriv").args(ids).args(["--clear-groups", "--no-new-privs", "--"]);
    }
    result.arg(command.get_program()).args(command.get_args()).env_clear().current_dir(scratch);
    result.env("PATH", "/usr/bin:/bin").env("LC_ALL", "C.UTF-8").env("HOME", scratch).env("TMPDIR", scratch);
    result.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    result
}

/// Some programs leave their server running, plain too.
fn end_own_processes(t: &Context) {
    for line in t.own_processes() {
        if let Some(pid) = line.split(' ').next().and_then(|pid| pid.parse().ok()) {
            kill(Pid::from_raw(pid), Signal::SIGKILL).ok();
        }
    }
}
