//! `pagelift estimate`.

mod again;

use super::probe::beside;
use crate::arguments::policy::{PolicyArgs, words};
use crate::arguments::process::{process_number, refuse_process};
use crate::arguments::time::{LONGEST, seconds};
use crate::output::Output;
use crate::say;
use crate::text::estimate::text;
use crate::text::worker;
use anyhow::{Context, Result, bail, ensure};
use clap::{Args, ValueEnum};
use estimate::tlb_model::{CpuidError, Geometry, Replacement, known_cpu, own_cpu};
use estimate::{EstimateError, PlannedPages, Qemu, Request, Slice, Today, Transparent, estimate, fix_addresses};
use foreign_text::quoted_path;
use lift_plan::ThpMode;
use linux::pages::base_page;
use session::start::CommandFiles;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Names of the CPUs whose TLBs are known.
const CPUS: [&str; 13] = [
    "haswell",
    "broadwell",
    "skylake-sp",
    "ice-lake-sp",
    "sapphire-rapids",
    "granite-rapids",
    "zen1",
    "zen2",
    "zen3",
    "zen4",
    "zen5",
    "neoverse-n1",
    "neoverse-v2",
];

/// `--replacement`.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ReplacementArg {
    /// Evicts the least recently used entry.
    Lru,
    /// Approximates LRU by a tree of bits, in arrays of 2, 4, 8, ... ways.
    TreePlru,
}

/// `pagelift estimate`.
#[derive(Args, Clone)]
pub struct EstimateArgs {
    /// The kinds to lift and the sources of pages.
    #[command(flatten)]
    pub policy: PolicyArgs,
    /// The CPU whose TLBs are simulated [default: this CPU, as described by CPUID, known for its model, or measured].
    #[arg(long, value_name = "NAME", value_parser = CPUS)]
    pub cpu: Option<String>,
    /// Policy for the entry to evict from a full set. Vendors do not publish it; compare both policies to see the
    /// effect.
    #[arg(long, value_enum, default_value = "lru")]
    pub replacement: ReplacementArg,
    /// Number of adjacent base pages that one entry can hold: AMD CPUs coalesce four, and `pagelift probe` reports a
    /// measured number. All groups count as contiguous in physical memory, the most favourable case.
    #[arg(long, value_name = "PAGES", default_value_t = 1, value_parser = joined)]
    pub joined: u32,
    /// Number of cores that all threads share in turn [default: a core for each thread].
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    pub cores: Option<u32>,
    /// Number of simulated instructions, of all threads: 100M, 2G.
    #[arg(long, value_name = "COUNT", value_parser = parse_count, default_value = "100M")]
    pub instructions: u64,
    /// Number of instructions before the slice; they run five to ten times as fast.
    #[arg(long, value_name = "COUNT", value_parser = parse_count, default_value = "0")]
    pub skip: u64,
    /// Time before the slice, in whole seconds, in which a server can start and receive load.
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = seconds(Duration::ZERO, LONGEST))]
    pub after: Duration,
    /// Number of instructions at the beginning of the slice that fill the TLBs and are not counted [default: a tenth of
    /// --instructions].
    #[arg(long, value_name = "COUNT", value_parser = parse_count)]
    pub warm_up: Option<u64>,
    /// Run the command line of this process, given by its number or the name of its program, again: QEMU cannot trace a
    /// running process.
    #[arg(short, long, value_name = "PID|NAME", value_parser = process_number, conflicts_with = "command")]
    pub pid: Option<i32>,
    /// With --pid: start a second instance of the process's program, with its arguments, environment and working
    /// directory. Only for a process of the same user with the same rights.
    #[arg(long, requires = "pid")]
    pub again: bool,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
    /// The program and its arguments.
    #[arg(required_unless_present = "pid", trailing_var_arg = true, value_name = "CMD")]
    pub command: Vec<OsString>,
}

fn joined(text: &str) -> Result<u32, String> {
    let pages = text.parse().ok().filter(|pages: &u32| pages.is_power_of_two() && *pages <= 64);
    pages.ok_or_else(|| format!("{text:?}; needed: a power of two up to 64"))
}

/// Counts have decimal multiples.
fn parse_count(text: &str) -> Result<u64, String> {
    let (number, factor) = match text.char_indices().next_back() {
        Some((at, 'k' | 'K')) => (&text[..at], 1_000),
        Some((at, 'M')) => (&text[..at], 1_000_000),
        Some((at, 'G')) => (&text[..at], 1_000_000_000),
        _ => (text, 1),
    };
    let count = number.parse::<u64>().ok().and_then(|number| number.checked_mul(factor));
    count.ok_or_else(|| {
        format!("{text:?} is no count; needed: a number, with k, M or G for thousands, millions, billions")
    })
}

/// Traces, simulates and prints.
pub fn run(args: &EstimateArgs) -> Result<()> {
    refuse_process(&args.command, "pagelift estimate -p")?;
    let (slice, cpu) = (slice(args)?, cpu(args)?);
    let started = match args.pid {
        Some(pid) => Started::of_process(pid, args.again)?,
        None => Started { words: args.command.clone(), process: None, environment: None },
    };
    let qemu = Qemu::find()?;
    let plugin = Qemu::find_plugin()?;
    let files = CommandFiles::of(&started.words[0]);
    let program = executable(&files, &started.words)?;
    if let Some(note) = worker::note(&started.words, "which is not traced", "pagelift estimate") {
        say!("pagelift: note: {note} ARGUMENTS");
    }
    fix_addresses().context("fixing the addresses of the programs that are started")?;
    let planned = plan(args, &started)?;
    // While it runs: it need not live as long as the trace.
    let today = started.process.map(Today::of).transpose().context("reading the process's memory on huge pages")?;
    let request = Request {
        program: &program,
        words: &started.words,
        environment: started.environment.as_deref(),
        cpu,
        cores: args.cores,
        slice,
        planned,
        transparent: transparent(today.as_ref()),
        today: today.map(|today| today.objects),
        plugin,
    };
    let interrupted = crate::exit::interruptions()?;
    let estimate = estimate(&request, &qemu, &|| interrupted.load(Ordering::Relaxed))?;
    Output::Standard.print_either(args.json, &estimate, text)
}

/// The program to start.
struct Started {
    words: Vec<OsString>,
    /// The process whose folder is taken.
    process: Option<i32>,
    /// Its environment.
    environment: Option<Vec<(OsString, OsString)>>,
}

/// The ELF file to execute, by the name that maps will show.
fn executable(files: &CommandFiles, words: &[OsString]) -> Result<std::path::PathBuf> {
    let name = words[0].to_string_lossy();
    let Some(program) = files.executed().filter(|path| path.exists()) else { bail!("{name}: not found") };
    if files.is_script() {
        let script = quoted_path(files.program().unwrap_or(Path::new("")));
        bail!(
            "{script} is a script, and QEMU executes only ELF files; fix: name its interpreter: \
             `pagelift estimate -- {} {script} ...`",
            quoted_path(program)
        );
    }
    if let Some(why) = files.privileged() {
        bail!("{why}, and would run without that privilege");
    }
    program.canonicalize().with_context(|| program.display().to_string())
}

fn cpu(args: &EstimateArgs) -> Result<Geometry> {
    let cpu = match &args.cpu {
        None => own_cpu(linux::processor::midr()).or_else(|unknown| measured(&unknown))?,
        Some(name) => known_cpu(name).with_context(|| format!("--cpu {name} is not known"))?,
    };
    let cpu = cpu.with_joined(base_page().bytes().trailing_zeros() as u8, args.joined.trailing_zeros() as u8);
    Ok(match args.replacement {
        ReplacementArg::Lru => cpu,
        ReplacementArg::TreePlru => cpu.with_replacement(Replacement::TreePlru),
    })
}

/// The TLBs that `pagelift probe` measures, for a CPU of which nothing is known.
fn measured(unknown: &CpuidError) -> Result<Geometry, EstimateError> {
    say!("pagelift: note: {unknown}; they are measured now, which takes some seconds");
    let unknown = |why: &str| EstimateError::Cpu(format!("{unknown}, and {why}"));
    let probe = beside().map_err(|why| unknown(&why))?;
    probe.geometry().ok_or_else(|| {
        unknown("the measurement, which ends early on a slow CPU, does not show both levels; fix: name a CPU by --cpu")
    })
}

fn slice(args: &EstimateArgs) -> Result<Slice> {
    ensure!(args.instructions > 0, "--instructions is 0; needed: 1 or more");
    let warm_up = args.warm_up.unwrap_or(args.instructions / 10);
    Ok(Slice { skip: args.skip, after_seconds: args.after.as_secs(), warm_up, instructions: args.instructions })
}

/// Transparent huge pages of anonymous memory: as seen in a running process, otherwise as the kernel's mode makes
/// likely.
fn transparent(today: Option<&Today>) -> Transparent {
    let thp = machine_facts::machine_facts(std::process::id() as i32).thp;
    Transparent {
        size: linux::pages::transparent_huge_page(),
        always: today
            .map_or_else(|| thp.is_some_and(|thp| thp.mode == ThpMode::Always), |today| today.anonymous_is_huge),
    }
}

/// Starts the program up to its entry, as `pagelift run` would lift it, and reads the plan.
fn plan(args: &EstimateArgs, started: &Started) -> Result<PlannedPages> {
    let report = tempfile::NamedTempFile::new().context("making a file for the plan")?;
    let own = session::parts::program()?;
    let mut run = Command::new(own);
    run.args(["run", "--dry-run", "--report"]).arg(report.path()).args(words(&args.policy.policy()));
    run.arg("--").args(&started.words).stdin(Stdio::null());
    if let Some(variables) = &started.environment {
        run.env_clear().envs(variables.iter().map(|(name, value)| (name, value)));
    }
    let output = run.output().context("starting the dry run")?;
    let text = std::fs::read_to_string(report.path()).context("reading the plan")?;
    if text.is_empty() {
        let said = OsStr::from_bytes(&output.stderr).to_string_lossy().trim_end().to_owned();
        bail!("the lift cannot be planned: {said}; `pagelift run --dry-run -- CMD` shows the same");
    }
    Ok(PlannedPages::parse(&text)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_known_cpus_are_choices() {
        assert_eq!(estimate::tlb_model::known_cpus().into_iter().map(|cpu| cpu.name).collect::<Vec<_>>(), CPUS);
    }
}
