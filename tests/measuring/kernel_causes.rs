//! Shootdowns that the kernel sends by itself: KSM, khugepaged and compaction are named with their cures, and
//! distinguished from a program's own calls.

use crate::{LONGEST, ended, first_finding, is_enough, seen_by, sent, storm_by};
use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use test_support::{Context, Need, Program, Session, Setting, Skipped, Test, test_case};

const KSM: &str = "/sys/kernel/mm/ksm/run";
const KHUGEPAGED: &str = "/sys/kernel/mm/transparent_hugepage/khugepaged";
const COMPACT: &str = "/proc/sys/vm/compact_memory";

pub fn tests(needs: &[Need]) -> Vec<Test> {
    let with_ksm = [needs, &[Need::File(KSM.to_owned())]].concat();
    vec![
        test_case("ksm_is_named", with_ksm, ksm),
        test_case("khugepaged_is_named", [needs, &[Need::Thp]].concat(), khugepaged),
        test_case("compaction_is_named", [needs, &[Need::File(COMPACT.to_owned())]].concat(), compaction),
        test_case("what_a_program_pages_out_is_its_own_call", needs.to_vec(), paged_out),
    ]
}

/// Runs KSM until dropped; then all merged pages are separated.
struct Merging {
    _run: Setting,
}

impl Merging {
    fn begin() -> Result<Self> {
        Ok(Self { _run: Setting::change(KSM, "1")? })
    }
}

impl Drop for Merging {
    fn drop(&mut self) {
        // 2 separates merged pages (Documentation/admin-guide/mm/ksm.rst).
        if let Err(error) = fs::write(KSM, "2") {
            eprintln!("KSM keeps what it has merged: {error}");
        }
    }
}

/// Makes khugepaged scan without a pause.
fn scanning() -> Result<[Setting; 2]> {
    let set = |name, value| Setting::change(Path::new(KHUGEPAGED).join(name), value);
    Ok([set("scan_sleep_millisecs", "0")?, set("max_ptes_none", "511")?])
}

fn storm_of(t: &Context, what: &str) -> Result<Session> {
    let mut command = Command::new(Program::named("measuring/storms_of_the_kernel.c")?.build()?);
    command.arg(what);
    storm_by(t, command)
}

/// The number of the kernel thread with this name.
fn kernel_thread(name: &str) -> Result<String> {
    let is_it = |path: &PathBuf| fs::read_to_string(path.join("comm")).is_ok_and(|found| found.trim() == name);
    let processes = fs::read_dir("/proc")?.filter_map(|entry| Some(entry.ok()?.path()));
    let thread = processes.filter(is_it).find(|path| fs::read_link(path.join("exe")).is_err());
    let number = thread.as_ref().and_then(|path| path.file_name()).with_context(|| format!("no thread {name}"))?;
    Ok(number.to_string_lossy().into_owned())
}

/// Watches a kernel thread until it has sent enough, or for a long time.
fn seen_of_kernel(t: &Context, thread: &str) -> Result<Value> {
    let mut seconds = 1;
    loop {
        let time = seconds.to_string();
        let output = t.run(t.pagelift(&["shootdowns", "-p", thread, "--for", &time, "--json"])?)?.success()?;
        let report = serde_json::from_str(&output.stdout)?;
        if is_enough(&report) || seconds >= LONGEST {
            return Ok(report);
        }
        seconds *= 4;
    }
}

fn ksm(t: &Context) -> Result<()> {
    let thread = kernel_thread("ksmd")?;
    let session = storm_of(t, "merged")?;
    let merging = Merging::begin()?;
    let report = seen_of_kernel(t, &thread)?;
    drop(merging);
    ended(session)?;
    let process = &report["processes"][0];
    ensure!(process["name"] == "ksmd" && process["kernel_thread"] == true, "{report:#}");
    let finding = first_finding(&report)?;
    ensure!(finding["text"] == "the kernel: KSM", "{report:#}");
    ensure!(finding["advice"]["says"].as_str().is_some_and(|says| says.contains(KSM)), "{finding}");
    Ok(())
}

/// khugepaged collapses memory that threads read.
fn khugepaged(t: &Context) -> Result<()> {
    let thread = kernel_thread("khugepaged")?;
    let session = storm_of(t, "collapsed")?;
    let scanning = scanning()?;
    let report = seen_of_kernel(t, &thread)?;
    drop(scanning);
    ended(session)?;
    if !is_enough(&report) {
        let why = format!("khugepaged hardly ran beside those threads: {} shootdowns", sent(&report));
        return Err(Skipped(why).into());
    }
    let finding = first_finding(&report)?;
    ensure!(finding["text"] == "the kernel: khugepaged", "{report:#}");
    let setting = format!("{KHUGEPAGED}/scan_sleep_millisecs");
    ensure!(finding["advice"]["says"].as_str().is_some_and(|says| says.contains(&setting)), "{finding}");
    Ok(())
}

/// The process that requests compaction is the sender, but its other calls are not blamed.
fn compaction(t: &Context) -> Result<()> {
    const COMPACTS: &str = "trap 'echo all right; exit 0' TERM; echo ready; while :; do echo 1 > \"$0\"; done";
    let session = storm_of(t, "in-pieces")?;
    let compacts = || {
        let mut shell = Command::new("sh");
        shell.args(["-c", COMPACTS, COMPACT]);
        storm_by(t, shell)
    };
    let (report, _) = seen_by(t, compacts)?;
    ended(session)?;
    let findings = report["diagnoses"][0]["findings"].as_array().context("no findings")?;
    let found = findings.iter().find(|finding| finding["text"] == "the kernel: compaction or migration");
    let says = found.and_then(|finding| finding["advice"]["says"].as_str()).with_context(|| format!("{report:#}"))?;
    ensure!(says.contains("vm.compaction_proactiveness=0") && says.contains(COMPACT), "{says}");
    Ok(())
}

/// The functions that reclaim pages are on the stack, although memory is not short.
fn paged_out(t: &Context) -> Result<()> {
    let (report, _) = seen_by(t, || storm_of(t, "paged-out"))?;
    let finding = first_finding(&report)?;
    ensure!(finding["text"] == "the program's own calls of madvise", "{report:#}");
    ensure!(report["processes"][0]["paths"].to_string().contains("page_out"), "{report:#}");
    Ok(())
}
