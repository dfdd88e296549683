//! The memory of a program: the most while it works, and what remains after its end.

use super::programs::Program;
use super::ways::Way;
use crate::bench::Bench;
use crate::build::Linking;
use anyhow::{Context as _, Result, ensure};
use measure::report::MemoryFacts;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::thread::sleep;
use std::time::Duration;

const LOOKS: Duration = Duration::from_millis(10);

/// Runs a program once in each way, and returns the memory of each, or the reason why it is unknown. The programs work
/// one after another; each waits after its end while the next ones work.
pub(super) fn measure(
    bench: &Bench,
    program: Program,
    ways: &[Way],
    suite: Option<&Path>,
    folder: &Path,
) -> Result<Vec<Result<MemoryFacts>>> {
    let library = bench.build("exit-report.so", &["exit-report.c"], Linking::Default, &["-shared", "-fPIC"])?;
    let reports = folder.join("reports");
    fs::create_dir(&reports)?;
    fs::set_permissions(&reports, std::os::unix::fs::PermissionsExt::from_mode(0o1777))?;
    let mut waiting = Waiting(Vec::new());
    let mut facts = Vec::new();
    for (number, way) in ways.iter().enumerate() {
        bench.stop_if_interrupted()?;
        let report = reports.join(number.to_string());
        let run = way.before(Some(&library), &[("HEAP_REPORT", report.display().to_string())]);
        let mut command = program.script("run", &run, suite, folder);
        command.stdout(Stdio::null()).stderr(fs::File::create(report.with_extension("errors"))?);
        let ends = report.with_extension("ends");
        waiting.0.push((command.process_group(0).spawn()?, report));
        if let Some((child, _)) = waiting.0.last_mut() {
            facts.push(most(bench, child, &ends)?);
        }
    }
    let ended = waiting.0.iter_mut().zip(facts).map(|((child, report), facts)| {
        let status = child.wait()?;
        let said = fs::read_to_string(report.with_extension("errors")).unwrap_or_default();
        ensure!(status.success(), "the run for its memory: {status}: {}", said.trim());
        Ok(MemoryFacts { idle_bytes: idle(report), ..facts })
    });
    let ended = ended.collect();
    bench.stop_if_interrupted()?;
    fs::remove_dir_all(&reports)?;
    Ok(ended)
}

/// The scripts, each with the servers that it starts in a process group. Those that still run are ended when dropped.
struct Waiting(Vec<(Child, PathBuf)>);

impl Drop for Waiting {
    fn drop(&mut self) {
        for (child, _) in &mut self.0 {
            // A script that failed may have left its server. The number of a group that has ended may be in use again.
            if !child.try_wait().is_ok_and(|ended| ended.is_some_and(|status| status.success())) {
                killpg(Pid::from_raw(child.id() as i32), Signal::SIGKILL).ok();
                child.wait().ok();
            }
        }
    }
}

/// Anonymous memory and pool pages that a program held ten seconds after its end; `None` if it did not end by `exit`.
fn idle(report: &Path) -> Option<u64> {
    let text = fs::read_to_string(report).ok()?;
    let numbers: Vec<u64> = text.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    Some(numbers.first()? + numbers.get(1)?)
}

/// Samples the memory of a script and its descendants until the script ends or the measured program does. A terminal's
/// interruption reaches only this process.
fn most(bench: &Bench, child: &mut Child, ends: &Path) -> Result<MemoryFacts> {
    let mut facts = MemoryFacts::default();
    while !ends.exists() && child.try_wait().context("cannot wait for a script")?.is_none() {
        bench.stop_if_interrupted()?;
        let (all, huge) = memory_below(child.id());
        facts.peak_bytes = facts.peak_bytes.max(all);
        facts.huge_bytes = facts.huge_bytes.max(huge);
        sleep(LOOKS);
    }
    Ok(facts)
}

/// Anonymous memory and pool pages of a process with its descendants, and their bytes on huge pages.
fn memory_below(root: u32) -> (u64, u64) {
    let mut parents: BTreeMap<u32, (u32, u64, u64)> = BTreeMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        let Ok(status) = fs::read_to_string(entry.path().join("status")) else { continue };
        let field = |name: &str| field(&status, name);
        let pool = field("HugetlbPages:");
        parents.insert(pid, (field("PPid:") as u32, (field("RssAnon:") + pool) << 10, pool << 10));
    }
    let is_below = |mut pid: u32| {
        while pid > 1 && pid != root {
            pid = parents.get(&pid).map_or(0, |(parent, ..)| *parent);
        }
        pid == root
    };
    let below = parents.iter().filter(|(pid, _)| is_below(**pid));
    below.fold((0, 0), |(all, huge), (pid, (_, bytes, pool))| {
        let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
        (all + bytes, huge + pool + (field(&rollup, "AnonHugePages:") << 10))
    })
}

/// The number of a field in a text of `/proc`, 0 if there is none.
fn field(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}
