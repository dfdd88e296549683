//! The arm `calm`: the plain command with the settings by which its allocator keeps its memory, as `pagelift run --calm` sets
//! them, and nothing lifted.

use anyhow::{Context, bail, ensure};
use cli::arguments::bench::{ArmArg, BenchArgs};
use session::heap::{HeapStart, calm};
use session::start::CommandFiles;
use std::ffi::{OsStr, OsString};

/// The arm's name.
pub(super) const NAME: &str = "calm";

/// The settings; `None` if the arm is not requested.
pub(super) fn variables(args: &BenchArgs, words: &[String]) -> anyhow::Result<Option<Vec<(String, String)>>> {
    if !args.arms.contains(&ArmArg::Calm) {
        return Ok(None);
    }
    let command = words.first().context("a command is missing")?;
    let files = CommandFiles::that_count(OsStr::new(command), &args.only);
    let path = files.executed().with_context(|| format!("{command}: not found"))?;
    let words: Vec<OsString> = words.iter().map(OsString::from).collect();
    let start = calm(path, &words, &HeapStart::default());
    if start.variables.is_empty() {
        bail!("--arms calm would change nothing for {}: {}", start.program, start.notes.join("; "));
    }
    Ok(Some(start.variables))
}

/// Refuses the arm for a process that runs.
pub(super) fn needs_a_start(args: &BenchArgs, switches: bool) -> anyhow::Result<()> {
    ensure!(
        !(switches && args.arms.contains(&ArmArg::Calm)),
        "--arms calm needs a start of the program, at which its allocator reads the setting, and --toggle switches one that \
         runs; fix: pagelift bench --arms calm -- CMD, or --server CMD"
    );
    Ok(())
}
