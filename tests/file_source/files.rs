//! Files in large and in small folios, and processes that cannot map them by huge pages.

use anyhow::{Context as _, Result, bail};
use serde_json::Value;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use test_support::{Context, Program, Session, copy_program, hold};

/// A copy of a program, written to the disk, which no other process maps.
pub fn own_copy(t: &Context, program: &str) -> Result<PathBuf> {
    own_copy_of(t, &Program::named(&format!("start/{program}.c"))?.build()?, program)
}

/// A copy of any program under this name.
pub fn own_copy_of(t: &Context, program: &Path, name: &str) -> Result<PathBuf> {
    let copy = t.folder().join(name);
    copy_program(t, program, &copy)?;
    fs::set_permissions(&copy, fs::Permissions::from_mode(0o755))?;
    File::open(&copy)?.sync_all()?;
    Ok(copy)
}

/// Brings files into huge folios, and keeps them there as long as the sessions last. Reclaim may drop unmapped files
/// between these steps, so both are repeated until this percentage of each file is huge.
pub fn prepared(t: &Context, paths: &[PathBuf], percent: u64) -> Result<Vec<Session>> {
    let command = |words: &[&str]| -> Result<String> {
        let mut command = t.pagelift(words)?;
        command.args(paths);
        Ok(t.run_within(command, Duration::from_secs(300))?.success()?.stdout)
    };
    for _ in 0..10 {
        command(&["cache", "prepare"])?;
        let held = paths.iter().map(|path| hold(t, path)).collect::<Result<Vec<_>>>()?;
        let status: Value = serde_json::from_str(&command(&["cache", "status", "--json"])?)?;
        let files = status["files"].as_array().context("no files")?;
        let bytes = |file: &Value, name: &str| file[name].as_u64().unwrap_or_default();
        if files.iter().all(|file| 100 * bytes(file, "huge") >= percent * bytes(file, "of")) {
            return Ok(held);
        }
        t.note(status.to_string());
    }
    bail!("the files do not stay in huge folios until they are mapped")
}

const DISABLE: &str = "import ctypes, os, sys
assert ctypes.CDLL(None).prctl(41, 1, 0, 0, 0) == 0
os.execv(sys.argv[1], sys.argv[1:])";

/// The command, executed under PR_SET_THP_DISABLE, which an exec keeps.
pub fn of_command_without_huge_pages(command: &Command) -> Command {
    let mut disabled = Command::new("python3");
    disabled.args([OsStr::new("-c"), OsStr::new(DISABLE), command.get_program()]).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => disabled.env(name, value),
            None => disabled.env_remove(name),
        };
    }
    disabled
}

/// The program, executed under PR_SET_THP_DISABLE.
pub fn without_huge_pages(path: &Path) -> Command {
    of_command_without_huge_pages(&Command::new(path))
}
