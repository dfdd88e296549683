//! Shootdowns that the kernel sends by itself: KSM is named, with what ends it, and told from what a program asks for.

use crate::{ENOUGH, ENOUGH_STACKS, LONGEST, ended, first_finding, seen_by, sent, storm_by};
use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use test_support::{Context, Need, Program, Session, Test, test_case};

const KSM: &str = "/sys/kernel/mm/ksm/run";

pub fn tests(needs: &[Need]) -> Vec<Test> {
    let with_ksm = [needs, &[Need::File(KSM.to_owned())]].concat();
    vec![
        test_case("ksm_is_named", with_ksm, ksm),
        test_case("what_a_program_pages_out_is_its_own_call", needs.to_vec(), paged_out),
    ]
}

/// KSM, which runs until this is dropped; then what it had merged is taken apart.
struct Merging {
    before: String,
}

impl Merging {
    fn begin() -> Result<Self> {
        let before = fs::read_to_string(KSM)?.trim().to_owned();
        fs::write(KSM, "1").context("KSM cannot be switched on")?;
        Ok(Self { before })
    }
}

impl Drop for Merging {
    fn drop(&mut self) {
        // 2 takes merged pages apart (Documentation/admin-guide/mm/ksm.rst).
        for value in ["2", &self.before] {
            if let Err(error) = fs::write(KSM, value) {
                eprintln!("{KSM} could not be put back to {}: {error}", self.before);
            }
        }
    }
}

fn storm_of(t: &Context, what: &str) -> Result<Session> {
    let mut command = Command::new(Program::named("measuring/storms_of_the_kernel.c")?.build()?);
    command.arg(what);
    storm_by(t, command)
}

/// The number of the kernel's thread of this name.
fn kernel_thread(name: &str) -> Result<String> {
    let is_it = |path: &PathBuf| fs::read_to_string(path.join("comm")).is_ok_and(|found| found.trim() == name);
    let processes = fs::read_dir("/proc")?.filter_map(|entry| Some(entry.ok()?.path()));
    let thread = processes.filter(is_it).find(|path| fs::read_link(path.join("exe")).is_err());
    let number = thread.as_ref().and_then(|path| path.file_name()).with_context(|| format!("no thread {name}"))?;
    Ok(number.to_string_lossy().into_owned())
}

fn ksm(t: &Context) -> Result<()> {
    let thread = kernel_thread("ksmd")?;
    let session = storm_of(t, "merged")?;
    let merging = Merging::begin()?;
    let (mut seconds, mut report) = (1, Value::Null);
    while seconds <= LONGEST {
        let time = seconds.to_string();
        let output = t.run(t.pagelift(&["shootdowns", "-p", &thread, "--for", &time, "--json"])?)?.success()?;
        report = serde_json::from_str(&output.stdout)?;
        if sent(&report) >= ENOUGH && report["processes"][0]["effective_stacks"].as_f64() >= Some(ENOUGH_STACKS) {
            break;
        }
        seconds *= 4;
    }
    drop(merging);
    ended(session)?;
    let process = &report["processes"][0];
    ensure!(process["name"] == "ksmd" && process["kernel_thread"] == true, "{report:#}");
    let finding = first_finding(&report)?;
    ensure!(finding["text"] == "the kernel: KSM", "{report:#}");
    ensure!(finding["advice"]["says"].as_str().is_some_and(|says| says.contains(KSM)), "{finding}");
    Ok(())
}

/// The functions that reclaim pages are on the stack, and memory is not short.
fn paged_out(t: &Context) -> Result<()> {
    let (report, _) = seen_by(t, || storm_of(t, "paged-out"))?;
    let finding = first_finding(&report)?;
    ensure!(finding["text"] == "the program's own calls of madvise", "{report:#}");
    ensure!(report["processes"][0]["paths"].to_string().contains("page_out"), "{report:#}");
    Ok(())
}
