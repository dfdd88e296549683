//! `pagelift bench`: does it pay?

mod calm;
mod recorded_lift;
mod sequence;
mod servers;
mod switchers;
mod toggle;
mod translation;

pub use sequence::run as measure_lift;

use crate::answer as text;
use crate::report::open_record;
use anyhow::{Context, bail, ensure};
use bench::record::read;
use bench::whole_runs::Observed;
use bench::{Limits, Progress};
use cli::arguments::bench::{ArmArg, BenchArgs, PerArg};
use cli::arguments::process::refuse_process;
use cli::commands::reading::confine_to;
use cli::exit::interruptions;
use cli::output::Output;
use cli::say;
use confinement::Reads;
use indicatif::{ProgressBar, ProgressStyle};
use linux::written_file::is_standard_output;
use measure::machine_check::look_at_machine;
use measure::record::{Design, Header, Record};
use measure::toggle::Per;
use options::{Choice, Pages, Policy};
use servers::Arms;
use session::start::worker_of;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Time for watching others' use of the CPUs before the measurement.
const WATCH: Duration = Duration::from_millis(500);

/// Measures, or reads a record, and prints the answer.
pub fn run(args: &BenchArgs) -> anyhow::Result<()> {
    calm::needs_a_start(args, args.toggle.is_some())?;
    heap_needs_a_start(args)?;
    refuse_process(&args.command, "pagelift bench --toggle")?;
    let record = match (&args.from, args.toggle, &args.servers.server) {
        (Some(path), ..) => kept(path)?,
        (None, Some(pid), _) => toggle::run(args, pid)?,
        (None, None, Some(server)) => servers::run(args, server)?,
        (None, None, None) => whole_runs(args)?,
    };
    // The samples may be on the standard output.
    let is_taken = args.output.as_deref().is_some_and(is_standard_output);
    let out = if is_taken { Output::Error } else { Output::Standard };
    match args.json {
        true => out.print_whole(&text::json(&record)?)?,
        false => out.print(&text::answer(&record))?,
    }
    if let Some(why) = text::failure(&record) {
        bail!("{why}");
    }
    Ok(())
}

/// Refuses a heap for a running process, and for commands that `--against` names whole.
fn heap_needs_a_start(args: &BenchArgs) -> anyhow::Result<()> {
    let is_started = args.toggle.is_none() && args.against.is_empty();
    ensure!(
        is_started || args.heap.words().is_empty(),
        "--heap is for starts of a command or a server, found --toggle or --against; fix: pagelift bench --heap=auto -- CMD, \
         or --server CMD"
    );
    Ok(())
}

/// Reads a record in a thread that has no other rights: it may come from anybody.
fn kept(path: &Path) -> anyhow::Result<Record> {
    let file = open_record(path)?;
    let reading = std::thread::spawn(move || {
        confine_to(Reads::Own);
        read(&file)
    });
    let record = reading.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    record.with_context(|| process_view::printable(&path.display().to_string()))
}

/// Names the program that does the work of a driver, which the command itself does not show.
fn unlifted_worker(args: &BenchArgs) -> Option<String> {
    let driver = args.command.first().filter(|_| args.only.is_empty() && args.against.is_empty())?;
    let worker = worker_of(driver)?;
    say!("pagelift: {worker} does the work of this command, and is not lifted; fix: --only {worker}");
    Some(worker)
}

fn whole_runs(args: &BenchArgs) -> anyhow::Result<Record> {
    let worker = unlifted_worker(args);
    let plain = words_of(&args.command)?;
    let compared = Arms::of(args, &plain)?;
    let program = plain.join(" ");
    let (names, options) = (compared.names.clone(), compared.options());
    let header =
        Header { options, worker, ..header(args, Design::Runs, program, names, "runs".to_owned(), Per::Second) };
    let own = session::parts::program()?;
    let mut command = |arm: Option<usize>, report: Option<&Path>| {
        let mut command = match arm {
            Some(arm) => started(&own, compared.lift(arm), &args.only, report, &compared.commands[arm]),
            None => started(&own, None, &[], None, &args.command),
        };
        command.stdin(Stdio::null()).stdout(Stdio::null()).envs(compared.variables(arm));
        command
    };
    let observed = Observed { only: &args.only, cold_plain: args.cold_plain };
    let interrupted = interruptions()?;
    measured(args, &interrupted, |limits, file, tell| {
        bench::whole_runs::run(&mut command, observed, header, limits, file, tell)
    })
}

/// Words for a record, and for an arm made from them.
fn words_of(command: &[OsString]) -> anyhow::Result<Vec<String>> {
    let word = |word: &OsString| {
        word.to_str().map(str::to_owned).with_context(|| format!("{}: needed: words in UTF-8", word.display()))
    };
    command.iter().map(word).collect()
}

/// The command, lifted if there are words for it.
fn started<T: AsRef<OsStr>>(
    own: &Path,
    lift: Option<&[String]>,
    only: &[String],
    report: Option<&Path>,
    words: &[T],
) -> Command {
    let mut command = match lift {
        Some(lift) => {
            let mut lifted = Command::new(own);
            lifted.args(["run", "--quiet"]).args(lift);
            if !only.is_empty() {
                lifted.arg("--only").arg(only.join(","));
            }
            if let Some(path) = report {
                lifted.arg("--report").arg(path);
            }
            lifted.arg("--").arg(&words[0]);
            lifted
        }
        None => Command::new(&words[0]),
    };
    command.args(&words[1..]);
    command
}

/// The names of the arms and their policies.
fn arms(args: &BenchArgs) -> Vec<(String, Policy)> {
    let policy = args.policy.policy();
    let word = |pages: Pages| pages.word().to_owned();
    match &args.arms[..] {
        [] if args.policy.pages == Pages::default() => vec![("lifted".to_owned(), policy)],
        [] => vec![(word(args.policy.pages), policy)],
        arms => {
            let lifted = arms.iter().filter_map(|arm| match arm {
                ArmArg::Lifted(pages) => Some(*pages),
                ArmArg::Plain | ArmArg::Calm => None,
            });
            lifted.map(|pages| (word(pages), Policy { pages, ..policy.clone() })).collect()
        }
    }
}

fn header(args: &BenchArgs, design: Design, program: String, arms: Vec<String>, unit: String, usual: Per) -> Header {
    let per = match args.per {
        Some(PerArg::Cpu) => Per::CpuSecond,
        Some(PerArg::Time) => Per::Second,
        None => usual,
    };
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let seed = args.seed.unwrap_or(now.as_nanos() as u64);
    let mut machine = look_at_machine(WATCH);
    if design == Design::Toggle {
        // The load of the program and of its clients has begun already.
        machine.other_load = None;
    }
    let shown = |word: OsString| bench::work::without_password(&word.to_string_lossy());
    Header {
        machine,
        counters: args.counters,
        probe: args.probe.then(|| Box::new(translation::measured())),
        command: std::env::args_os().skip(1).map(shown).collect(),
        pagelift: Some(env!("CARGO_PKG_VERSION").to_owned()),
        started: Some(now.as_secs()),
        ..Header::new(design, program, arms, unit, per, seed)
    }
}

/// Runs the experiment with a bar, and ends it with the answer so far once it is interrupted.
fn measured(
    args: &BenchArgs,
    interrupted: &AtomicBool,
    run: impl FnOnce(Limits<'_>, Option<File>, &mut dyn FnMut(&Progress<'_>)) -> Result<Record, bench::ExperimentError>,
) -> anyhow::Result<Record> {
    let create =
        |path: &PathBuf| linux::written_file::create(path).with_context(|| format!("writing {}", path.display()));
    let file = args.output.as_ref().map(create).transpose()?;
    let bar = ProgressBar::new(1000);
    bar.set_style(ProgressStyle::with_template("{bar:30} {msg}")?);
    let limits = Limits { time: args.time, resolution: args.resolution, interrupted };
    let record = run(limits, file, &mut |progress| {
        bar.set_position((progress.elapsed * 1000.0) as u64);
        bar.set_message(text::progress(progress));
    });
    bar.finish_and_clear();
    Ok(record?)
}
