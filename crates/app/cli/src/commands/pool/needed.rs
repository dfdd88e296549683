//! Finds which pages a command, a process or a file needs. Other commands of this program do it, so that foreign data
//! is read with no rights but to read, and the plan is the one that a lift makes.

use crate::arguments::policy::words;
use crate::arguments::process::process_unless_file;
use crate::text::worker;
use anyhow::{Context, Error, bail};
use linux::bounded::KERNEL_TEXT;
use options::{Pages, Policy};
use pools::PoolRequest;
use serde_json::Value;
use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::{Command, Stdio};

/// The needed pages, and notes about them.
pub struct Needed {
    /// The program that needs them.
    pub name: String,
    /// Pages.
    pub requests: Vec<PoolRequest>,
    /// Notes for the reader.
    pub notes: Vec<String>,
    /// The process, if the target is one.
    pub pid: Option<i32>,
}

/// The policy by which pages come from the pools.
pub fn pool_policy(policy: Policy) -> Policy {
    let pages = if policy.pages == Pages::Auto { Pages::Hugetlb } else { policy.pages };
    Policy { pages, ..policy }
}

/// This program.
pub fn this_program() -> anyhow::Result<std::path::PathBuf> {
    std::env::current_exe().context("finding the file of this program")
}

/// The needs of a command: it is started up to its entry, and ended there.
pub fn by_command(command: &[OsString], policy: &Policy) -> anyhow::Result<Needed> {
    let folder = tempfile::tempdir().context("making a temporary folder")?;
    let report = folder.path().join("plan");
    let mut start = Command::new(this_program()?);
    start.args(["run", "--dry-run", "--suppose-pool", "--quiet", "--report"]).arg(&report).args(words(policy));
    let name = command[0].to_string_lossy().into_owned();
    let output = start.arg("--").args(command).stdin(Stdio::null()).output().context("starting it")?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let Ok(file) = std::fs::File::open(&report) else {
        bail!("{name}: it could not be started up to its entry: {}", said.trim());
    };
    let document: Value = serde_json::from_slice(&KERNEL_TEXT.read_rest(file)?).context("reading its plan")?;
    if let Some(why) = document["unlifted"].as_str() {
        bail!("{name}: it cannot be lifted: {why}");
    }
    let program = document["target"].as_str().unwrap_or(&name).to_owned();
    let mut notes = Vec::new();
    if let Some(note) = worker::note(command, "whose pages this plan does not count", "pagelift pool plan") {
        notes.push(note);
    } else if Path::new(&command[0]).file_name() != Some(OsStr::new(&program)) {
        notes.push(format!(
            "{name} executes {program}, which this plan is for; name another program by its file, process or name"
        ));
    }
    Ok(Needed { name: program, requests: requests_of(&document)?, notes, pid: None })
}

/// The needs of a process or a file.
pub fn by_target(target: &OsStr, policy: &Policy) -> anyhow::Result<Needed> {
    let pid = process_unless_file(target).map_err(Error::msg)?;
    let target = pid.map_or_else(|| target.to_owned(), |pid| pid.to_string().into());
    let mut look = Command::new(this_program()?);
    look.args(["inspect", "--json", "--suppose-pool"]).args(words(policy)).arg("--").arg(target);
    let output = look.stdin(Stdio::null()).output().context("looking at it")?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        bail!("{}", said.trim().trim_start_matches("pagelift: "));
    }
    let document: Value = serde_json::from_slice(&output.stdout).context("reading its plan")?;
    let name = document["target"].as_str().unwrap_or_default().to_owned();
    let mut notes = Vec::new();
    if pid.is_none() {
        notes.push("shared objects that it loads are not counted; `pagelift pool plan -- CMD` counts them".to_owned());
    }
    Ok(Needed { name, requests: requests_of(&document)?, notes, pid })
}

/// The pages that a plan takes of the pools.
fn requests_of(document: &Value) -> anyhow::Result<Vec<PoolRequest>> {
    let pool = document["pool"].as_array().context("its plan names no pages")?;
    let request = |entry: &Value| {
        let size = address_space::PageSize::new(entry["page_size"].as_u64()?).ok()?;
        Some(PoolRequest { size, pages: entry["pages"].as_u64()?, node: None })
    };
    pool.iter().map(|entry| request(entry).context("its plan is not understood")).collect()
}
