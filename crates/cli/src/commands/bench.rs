//! `pagelift bench`: does it pay?

mod servers;
pub mod switchers;

use crate::arguments::policy::{PolicyArgs, choice, words};
use crate::text::bench as text;
use anyhow::{Context, bail, ensure};
use clap::{ArgGroup, Args};
use experiment::record::{Design, Header, Record, Windows, read};
use experiment::toggle::{Subject, Switcher, Timing};
use experiment::work::WorkSource;
use experiment::{Limits, Progress};
use indicatif::{ProgressBar, ProgressStyle};
use measure::machine_check::look_at_machine;
use measure::toggle::Per;
use options::{Choice, Kind, Kinds, Pages, Policy};
use servers::{Arms, ServerArgs};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use switchers::{CommandSwitcher, LiftSwitcher};

/// How long others' use of the CPUs is watched before it begins.
const WATCH: Duration = Duration::from_millis(500);

/// `pagelift bench`.
#[derive(Args, Clone)]
#[command(group = ArgGroup::new("bursts").args(["toggle", "server"]))]
pub struct BenchArgs {
    /// What to lift and from where.
    #[command(flatten)]
    pub policy: PolicyArgs,
    /// Compare these sources of huge pages, separated by commas, each with plain.
    #[arg(long, value_parser = choice::<Pages>(), value_delimiter = ',', value_name = "PAGES", conflicts_with = "pages")]
    pub arms: Vec<Pages>,
    /// Lift only programs of these names, separated by commas, that the command or the server starts or becomes: cc1plus of
    /// g++, postgres of setpriv.
    #[arg(long, value_name = "NAMES", value_delimiter = ',', conflicts_with_all = ["toggle", "from"])]
    pub only: Vec<String>,
    /// Instead of lifting, compare this command, or this server, with the plain one. CMD, or NAME: CMD; can be given several
    /// times.
    #[arg(long, value_name = "CMD", conflicts_with_all = ["arms", "toggle", "from"])]
    pub against: Vec<String>,
    /// Lift this process and put it back, in random blocks, under its own load: its code and read-only data, since huge
    /// pages below writable memory cannot be taken back.
    #[arg(long, value_name = "PID", conflicts_with = "command", value_parser = clap::value_parser!(i32).range(1..))]
    pub toggle: Option<i32>,
    /// Instead of lifting, switch by shell commands: to the state that is compared, and back to plain.
    #[arg(long, num_args = 2, value_names = ["ON", "OFF"], requires = "toggle", conflicts_with = "arms")]
    pub toggle_with: Vec<String>,
    /// What counts as work: auto (system calls of the process), a shell command that prints a growing number,
    /// http://HOST/metrics#NAME, mysql://USER@HOST#Questions, postgres://USER@HOST#xact_commit,
    /// redis://HOST#total_commands_processed.
    #[arg(long, value_name = "WORK", default_value = "auto", requires = "toggle")]
    pub work: String,
    /// Servers side by side.
    #[command(flatten)]
    pub servers: ServerArgs,
    /// What work is divided by: CPU time of the process, or time [default: cpu with --toggle and --server, else time].
    #[arg(long, value_enum)]
    pub per: Option<PerArg>,
    /// Time for all of it: 90, 90s, 5m.
    #[arg(long = "for", value_name = "TIME", default_value = "5m", value_parser = duration)]
    pub time: Duration,
    /// End as soon as the interval reaches no further than this to either side: 0.5%.
    #[arg(long, value_name = "PERCENT", value_parser = share)]
    pub resolution: Option<f64>,
    /// Length of a window or a burst, of which a block has four.
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 400, requires = "bursts", value_parser = clap::value_parser!(u64).range(10..=600_000))]
    pub window: u64,
    /// What is dropped after each switch, from one state or server to another.
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 100, requires = "bursts", value_parser = clap::value_parser!(u64).range(0..=600_000))]
    pub settle: u64,
    /// Count pauses and copies of each lift in the window behind it; else they are measured apart.
    #[arg(long, requires = "toggle")]
    pub with_switches: bool,
    /// Count page walks in each state, by the CPU's PMU; where there is none the reason is kept and shown.
    #[arg(long, conflicts_with = "from")]
    pub counters: bool,
    /// Keep every sample, as JSON lines.
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Answer from such a file, without measuring.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["toggle", "server", "command", "output"])]
    pub from: Option<PathBuf>,
    /// Print the answer as JSON.
    #[arg(long)]
    pub json: bool,
    /// Seed of the order of the blocks [default: one of this moment].
    #[arg(long, value_name = "NUMBER")]
    pub seed: Option<u64>,
    /// The command to run plain and lifted in turn. What it prints is dropped.
    #[arg(trailing_var_arg = true, value_name = "CMD", required_unless_present_any = ["toggle", "server", "from"])]
    pub command: Vec<OsString>,
}

/// `--per`.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum PerArg {
    /// CPU time: what a unit of work costs, at whatever load.
    Cpu,
    /// Time: throughput of a program that is always busy.
    Time,
}

fn duration(text: &str) -> Result<Duration, String> {
    let (number, factor) = match text.strip_suffix(['s', 'm', 'h']) {
        Some(number) if text.ends_with('m') => (number, 60.0),
        Some(number) if text.ends_with('h') => (number, 3600.0),
        Some(number) => (number, 1.0),
        None => (text, 1.0),
    };
    let seconds = number.parse::<f64>().ok().map(|number| number * factor);
    let seconds = seconds.filter(|seconds| (1.0..=1e6).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| "needed: a time of one second or more: 90, 90s, 5m".to_owned())
}

fn share(text: &str) -> Result<f64, String> {
    let percent = text.strip_suffix('%').unwrap_or(text).trim().parse::<f64>().ok();
    let share = percent.map(|percent| percent / 100.0).filter(|share| (1e-5..=1.0).contains(share));
    share.ok_or_else(|| "needed: a part of one hundred: 0.5%".to_owned())
}

/// Measures, or reads what was measured, and prints the answer.
pub fn run(args: &BenchArgs) -> anyhow::Result<()> {
    let record = match (&args.from, args.toggle, &args.servers.server) {
        (Some(path), ..) => {
            let record = File::open(path).and_then(|file| read(&file));
            record.with_context(|| path.display().to_string())?
        }
        (None, Some(pid), _) => toggle(args, pid)?,
        (None, None, Some(server)) => servers::run(args, server)?,
        (None, None, None) => whole_runs(args)?,
    };
    let text = if args.json { text::json(&record)? } else { text::answer(&record) };
    std::io::stdout().write_all(text.as_bytes())?;
    if let Some(why) = text::failure(&record) {
        bail!("{why}");
    }
    Ok(())
}

fn toggle(args: &BenchArgs, pid: i32) -> anyhow::Result<Record> {
    // From before the process is changed.
    let interrupted = interruptions()?;
    let source: WorkSource = args.work.parse()?;
    ensure!(
        Path::new(&format!("/proc/{pid}")).exists(),
        "process {pid} is not there; `pagelift status` lists lifted ones, `ps -e` all"
    );
    let mut work = source.open(pid)?;
    if let Some(note) = work.note() {
        eprintln!("pagelift: note: {note}");
    }
    let program = session::program_name(pid);
    let (names, options, mut switcher): (Vec<String>, _, Box<dyn Switcher>) = match &args.toggle_with[..] {
        [on, off] => (vec!["switched".to_owned()], Vec::new(), Box::new(CommandSwitcher::new(on, off))),
        _ => {
            let arms = arms(args);
            let names = arms.iter().map(|(name, _)| name.clone()).collect();
            let policies: Vec<Policy> =
                arms.into_iter().map(|(_, policy)| reversible(policy)).collect::<anyhow::Result<_>>()?;
            (names, policies.iter().map(words).collect(), Box::new(LiftSwitcher::new(pid, policies)?))
        }
    };
    let windows = Windows {
        length: args.window as f64 / 1e3,
        settle: args.settle as f64 / 1e3,
        with_switches: args.with_switches,
    };
    let header = Header {
        options,
        windows: Some(windows),
        ..header(args, Design::Toggle, program, names, work.unit(), Per::CpuSecond)
    };
    let timing = Timing {
        window: Duration::from_millis(args.window),
        settle: Duration::from_millis(args.settle),
        with_switches: args.with_switches,
    };
    let subject = Subject { pid, work: work.as_mut(), switcher: switcher.as_mut(), timing };
    measured(args, &interrupted, |limits, file, tell| experiment::toggle::run(subject, header, limits, file, tell))
}

fn whole_runs(args: &BenchArgs) -> anyhow::Result<Record> {
    let plain = words_of(&args.command)?;
    let compared = Arms::of(args, &plain)?;
    let program = plain.join(" ");
    let (names, options) = (compared.names.clone(), compared.options());
    let header = Header { options, ..header(args, Design::Runs, program, names, "runs".to_owned(), Per::Second) };
    let own = std::env::current_exe().context("finding pagelift's own file")?;
    let mut command = |arm: Option<usize>, report: Option<&Path>| {
        let mut command = match arm {
            Some(arm) => started(&own, compared.lift(arm), &args.only, report, &compared.commands[arm]),
            None => started(&own, None, &[], None, &args.command),
        };
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command
    };
    let interrupted = interruptions()?;
    measured(args, &interrupted, |limits, file, tell| {
        experiment::whole_runs::run(&mut command, header, limits, file, tell)
    })
}

/// Words for a record, and for an arm that is made of them.
fn words_of(command: &[OsString]) -> anyhow::Result<Vec<String>> {
    let word = |word: &OsString| {
        word.to_str().map(str::to_owned).with_context(|| format!("{}: needed: words in UTF-8", word.display()))
    };
    command.iter().map(word).collect()
}

/// The command, which is lifted where words say how.
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

/// The names of the arms and what each lifts.
fn arms(args: &BenchArgs) -> Vec<(String, Policy)> {
    let policy = args.policy.policy();
    let word = |pages: Pages| pages.word().to_owned();
    match &args.arms[..] {
        [] if args.policy.pages == Pages::default() => vec![("lifted".to_owned(), policy)],
        [] => vec![(word(args.policy.pages), policy)],
        arms => arms.iter().map(|&pages| (word(pages), Policy { pages, ..policy.clone() })).collect(),
    }
}

/// What can be taken back while the program runs: writable memory is collapsed in place, and stays so.
fn reversible(policy: Policy) -> anyhow::Result<Policy> {
    const WRITABLE: [Kind; 3] = [Kind::Data, Kind::Bss, Kind::Heap];
    ensure!(!policy.seal, "sealed memory cannot be put back; fix: leave out --seal");
    if policy.kinds == Kinds::ALL {
        return Ok(Policy { kinds: Kinds::of(&[Kind::Text, Kind::Rodata]), ..policy });
    }
    if let Some(kind) = WRITABLE.into_iter().find(|&kind| policy.kinds.contains(kind)) {
        bail!(
            "{kind} stays on huge pages as long as the program runs, and cannot be compared in one process; fix: --lift \
             text,rodata, or whole runs: pagelift bench -- CMD"
        );
    }
    Ok(policy)
}

/// Set by SIGINT, SIGTERM and SIGHUP: the answer so far is wanted, and the program as it was.
pub(super) fn interruptions() -> anyhow::Result<Arc<AtomicBool>> {
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, interrupted.clone()).context("handling signals")?;
    }
    Ok(interrupted)
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
        // The program and whoever gives it work are at it already.
        machine.other_load = None;
    }
    let shown = |word: OsString| experiment::work::without_password(&word.to_string_lossy());
    Header {
        machine,
        counters: args.counters,
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
    run: impl FnOnce(Limits<'_>, Option<File>, &mut dyn FnMut(&Progress<'_>)) -> Result<Record, experiment::ExperimentError>,
) -> anyhow::Result<Record> {
    let create = |path: &PathBuf| File::create(path).with_context(|| format!("writing {}", path.display()));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_shares() {
        assert_eq!(duration("90").unwrap(), Duration::from_secs(90));
        assert_eq!(duration("5m").unwrap(), Duration::from_secs(300));
        assert_eq!(duration("1.5s").unwrap(), Duration::from_millis(1500));
        assert!(duration("m").is_err() && duration("0").is_err() && duration("-5").is_err());
        assert_eq!(share("0.5%").unwrap(), 0.005);
        assert_eq!(share("2").unwrap(), 0.02);
        assert!(share("0").is_err() && share("half").is_err());
    }
}
