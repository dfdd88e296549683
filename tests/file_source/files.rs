//! Files in large and in small folios, and processes that cannot map them by huge pages.

use anyhow::Result;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use test_support::{Context, Program, copy_program};

/// A file of its own, which nobody else maps: a copy of a program, written to the disk.
pub fn own_copy(t: &Context, program: &str) -> Result<PathBuf> {
    own_copy_of(t, &Program::named(&format!("start/{program}.c"))?.build()?, program)
}

/// A copy of any program under a name of its own.
pub fn own_copy_of(t: &Context, program: &Path, name: &str) -> Result<PathBuf> {
    let copy = t.folder().join(name);
    copy_program(t, program, &copy)?;
    fs::set_permissions(&copy, fs::Permissions::from_mode(0o755))?;
    File::open(&copy)?.sync_all()?;
    Ok(copy)
}

const DISABLE: &str = "import ctypes, os, sys
assert ctypes.CDLL(None).prctl(41, 1, 0, 0, 0) == 0
os.execv(sys.argv[1], sys.argv[1:])";

/// The command, executed with PR_SET_THP_DISABLE, which an exec keeps.
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

/// The program, executed so.
pub fn without_huge_pages(path: &Path) -> Command {
    of_command_without_huge_pages(&Command::new(path))
}
