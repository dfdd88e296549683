//! `pagelift demo`: the bundled program plain and lifted, side by side, in finely interleaved pairs.
//!
//! Every number on the screen was measured in this run or read back from the kernel.

mod advice;
mod screen;

use crate::arguments::policy::choice;
use crate::arguments::time::{SECOND, seconds};
use crate::output::Output;
use advice::LiftSummary;
use anyhow::{Context, Result, ensure};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use linux::written_file::is_standard_output;
use measure::burst_run::{BurstRun, Observer, Running, Stop, VariantSpec};
use measure::machine_check::look_at_machine;
use measure::pinning::last_usable_cpu;
use measure::report::{BenchmarkReport, Series, VariantFacts, WorkloadFacts};
use nix::sys::memfd::{MFdFlags, memfd_create};
use options::{Choice, Pages};
use process_view::ProcessMemory;
use process_view::coverage::Coverage;
use serde::Serialize;
use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

const PROGRAM: &str = "pagelift-demo-program";
const WORKLOADS: [&str; 3] = ["code", "data", "both"];
/// The variants, in this order; the second shows the difference that chance alone makes.
const NAMES: [&str; 3] = ["plain", "plain once more", "lifted"];
const PLAIN: usize = 0;
const PLAIN_AGAIN: usize = 1;
const LIFTED: usize = 2;
/// Seconds per set of processes; below four sets the interval is taken over bursts alone.
const SECONDS_A_GENERATION: f64 = 5.0;
const MOST_GENERATIONS: u32 = 8;

/// `pagelift demo`.
#[derive(Args, Clone)]
pub struct DemoArgs {
    /// Time to measure: 30s, 5m.
    #[arg(long = "for", alias = "seconds", value_name = "TIME", default_value = "30s", value_parser = seconds(2 * SECOND, 3600 * SECOND))]
    pub time: Duration,
    /// Source of huge pages.
    #[arg(long, value_parser = choice::<Pages>(), default_value = "auto")]
    pub pages: Pages,
    /// Write the report with every sample to this file.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// The document of `--json`.
#[derive(Serialize)]
struct DemoReport {
    format: &'static str,
    version: u32,
    /// Coverage of the plain program, after it had touched its memory.
    plain: Coverage,
    /// Coverage of the lifted program, after it had touched its memory.
    lifted: Coverage,
    /// The report of `pagelift run` on the lifted one.
    lift: serde_json::Value,
    measurement: BenchmarkReport,
}

/// Runs the demo.
///
/// # Errors
/// The demo program is missing or computes something else when lifted, nothing could be lifted, or memory is short.
pub fn run(args: &DemoArgs) -> Result<()> {
    let program = session::parts::find(PROGRAM)?;
    let machine = look_at_machine(Duration::from_millis(300));
    let is_taken = args.json.as_deref().is_some_and(is_standard_output);
    let out = if is_taken { Output::Error } else { Output::Standard };
    write!(out, "{}", screen::opening(&machine, args.time.as_secs_f64()))?;

    let cpu = last_usable_cpu();
    let mut lift = LiftFiles::new()?;
    let mut watch = Watch::new();
    let generations = generations(args.time.as_secs_f64());
    let run = BurstRun {
        variants: variants(&program, args.pages, &lift)?,
        workloads: WORKLOADS.map(str::to_owned).to_vec(),
        seed: u64::from(std::process::id()),
        burst: Duration::from_millis(10),
        lead_in_percent: 10,
        warm_up_rounds: 4,
        generations,
        stop: Stop::Time(args.time),
        cpu,
        time_limit: Duration::from_secs(60),
    };
    let seed = run.seed;
    let series = run.run(&mut watch)?;
    watch.bar.finish_and_clear();
    let line = lift.line()?;
    let report = lift.report()?;
    let (plain, lifted) = watch.maps.context("the programs ended before their memory maps could be read")??;
    write!(out, "{}", screen::maps(&plain, &lifted, &line))?;
    ensure!(watch.least_lifted > 0, "nothing could be lifted, so there is nothing to compare: {line}");

    let facts = facts(&watch.huge);
    let workloads = WORKLOADS.iter().zip(&series.steps);
    let workloads = workloads.map(|(name, &steps)| WorkloadFacts { name: (*name).to_owned(), steps }).collect();
    let series = Series::new("demo", seed, facts, workloads, cpu, series.samples);
    write!(out, "{}", screen::results(&series, generations))?;
    let lift_report: LiftSummary = serde_json::from_value(report.clone())?;
    write!(out, "{}", advice::advice(&lift_report, &machine.pools, nix::unistd::geteuid().is_root()))?;
    if let Some(file) = &args.json {
        let mut measurement = BenchmarkReport::new(machine);
        measurement.series.push(series);
        let demo = DemoReport { format: "pagelift-demo", version: 1, plain, lifted, lift: report, measurement };
        linux::written_file::create(file)
            .and_then(|mut file| file.write_all(serde_json::to_string(&demo)?.as_bytes()))
            .with_context(|| format!("cannot write {}", file.display()))?;
        if !is_standard_output(file) {
            writeln!(out, "\nEvery sample is in {}.", file.display())?;
        }
    }
    Ok(())
}

fn generations(seconds: f64) -> u32 {
    let wanted = (seconds / SECONDS_A_GENERATION) as u32;
    if wanted < measure::statistics::GENERATIONS_FOR_T as u32 { 1 } else { wanted.min(MOST_GENERATIONS) }
}

fn variants<'a>(program: &'a Path, pages: Pages, lift: &LiftFiles) -> Result<Vec<VariantSpec<'a>>> {
    let plain = |name: &str| {
        VariantSpec::new(name, move |_| {
            let mut command = Command::new(program);
            command.arg("worker");
            command
        })
    };
    let report = lift.report_path();
    let errors = lift.errors.try_clone()?;
    let pagelift = session::parts::program()?;
    let lifted = VariantSpec::new(NAMES[LIFTED], move |_| {
        let mut command = Command::new(&pagelift);
        command
            .args(["run", "--start-cost=any", "--pages", pages.word(), "--report", &report, "--"])
            .arg(program)
            .arg("worker");
        // Without a copy of the descriptor the line of `pagelift run` is missing when it is read below.
        command.stderr(errors.try_clone().map_or_else(|_| Stdio::inherit(), Stdio::from));
        command
    });
    Ok(vec![plain(NAMES[PLAIN]), plain(NAMES[PLAIN_AGAIN]), lifted])
}

/// Memory files for the report and the line of `pagelift run`, so that no files are left afterwards.
struct LiftFiles {
    report: File,
    errors: File,
}

impl LiftFiles {
    fn new() -> Result<Self> {
        let create = |name: &str| memfd_create(name, MFdFlags::MFD_CLOEXEC).map(File::from);
        Ok(Self { report: create("pagelift-report")?, errors: create("pagelift-errors")? })
    }

    fn report_path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.report.as_raw_fd())
    }

    /// The report of the last start.
    fn report(&mut self) -> Result<serde_json::Value> {
        let text = text_of(&mut self.report)?;
        serde_json::from_str(&text).context("`pagelift run` has left no report of the demo program")
    }

    /// The first line that `pagelift run` printed.
    fn line(&mut self) -> Result<String> {
        Ok(text_of(&mut self.errors)?.lines().next().unwrap_or("`pagelift run` printed no result").to_owned())
    }
}

fn text_of(file: &mut File) -> Result<String> {
    let mut text = String::new();
    file.rewind()?;
    file.read_to_string(&mut text)?;
    Ok(text)
}

fn facts(huge: &[Vec<u64>]) -> Vec<VariantFacts> {
    let facts = |(name, huge): (&&str, &Vec<u64>)| VariantFacts {
        name: (*name).to_owned(),
        command: if *name == NAMES[LIFTED] { format!("pagelift run -- {PROGRAM}") } else { PROGRAM.to_owned() },
        huge_bytes: huge.iter().min().copied(),
        ..Default::default()
    };
    NAMES.iter().zip(huge).map(facts).collect()
}

/// Reads the processes' coverage once they have touched their memory, and shows the progress on a terminal.
struct Watch {
    bar: ProgressBar,
    /// The pages of the first plain and the first lifted process.
    maps: Option<Result<(Coverage, Coverage)>>,
    /// For each variant the bytes on huge pages in each generation.
    huge: Vec<Vec<u64>>,
    least_lifted: u64,
}

impl Watch {
    fn new() -> Self {
        let bar = ProgressBar::new(1000).with_message("measuring");
        if let Ok(style) = ProgressStyle::with_template("{msg} {wide_bar} {percent} %") {
            bar.set_style(style);
        }
        Self { bar, maps: None, huge: vec![Vec::new(); NAMES.len()], least_lifted: u64::MAX }
    }
}

impl Observer for Watch {
    fn warmed_up(&mut self, _generation: u32, variants: &[Running]) {
        let read = |index: usize| -> Result<Coverage> {
            let process = i32::try_from(variants[index].process_id)?;
            Ok(ProcessMemory::read(process)?.coverage())
        };
        let all: Result<Vec<Coverage>> = (0..variants.len()).map(read).collect();
        if let Ok(all) = &all {
            for (huge, coverage) in self.huge.iter_mut().zip(all) {
                huge.push(coverage.total.huge_bytes());
            }
            self.least_lifted = self.least_lifted.min(all[LIFTED].total.huge_bytes());
        }
        if self.maps.is_none() {
            self.maps = Some(all.map(|mut all| (all.swap_remove(PLAIN), all.swap_remove(PLAIN))));
        }
    }

    fn progress(&mut self, done: f64) {
        self.bar.set_position((done * 1000.0) as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_runs_have_one_set_of_processes_and_long_ones_many() {
        assert_eq!([2.0, 19.0, 20.0, 30.0, 600.0].map(generations), [1, 1, 4, 6, MOST_GENERATIONS]);
    }

    #[test]
    fn a_time_that_measures_nothing_is_refused() {
        #[derive(clap::Parser)]
        struct Only {
            #[command(flatten)]
            args: DemoArgs,
        }
        let time = |words: [&str; 2]| {
            let parsed = <Only as clap::Parser>::try_parse_from(["demo", words[0], words[1]]);
            parsed.map(|only| only.args.time.as_secs_f64()).ok()
        };
        for text in ["0", "1.9", "-3", "nan", "inf", "x"] {
            assert_eq!(time(["--for", text]), None, "{text}");
        }
        assert_eq!(time(["--for", "2.5"]), Some(2.5));
        assert_eq!(time(["--seconds", "1m"]), Some(60.0));
    }
}
