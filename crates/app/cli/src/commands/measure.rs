//! The commands that measure by clients of databases and make charts: `pagelift-measure` is executed for them.

use anyhow::{Context, anyhow};
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Replaces this program by `pagelift-measure` with these words, the first of which is this program's name. Returns only why
/// that failed.
pub fn become_measure(words: &[OsString]) -> anyhow::Error {
    let program = match session::parts::find(session::parts::MEASURE) {
        Ok(program) => program,
        Err(why) => return anyhow!(why),
    };
    let (name, rest) = words.split_first().map_or((None, words), |(name, rest)| (Some(name), rest));
    let mut command = Command::new(&program);
    if let Some(name) = name {
        command.arg0(name);
    }
    let error = command.args(rest).exec();
    Err::<(), _>(error).with_context(|| format!("executing {}", program.display())).unwrap_err()
}
