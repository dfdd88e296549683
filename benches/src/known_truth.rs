//! `pagelift-bench known-truth`: checks that `pagelift bench` finds known differences.
//!
//! A server with a fixed CPU time for each request is compared with itself made slower by an exact percentage: switched
//! by a signal while it runs, and as another server beside it. Each run is a record; the table of docs/RESULTS.md is
//! made from all records, of this call and of earlier ones.

use crate::page::Marks;
use anyhow::{Context, Result, bail, ensure};
use bench::record::read;
use clap::Args;
use measure::record::Record;
use measure::statistics::median;
use measure::toggle::Finding;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use nix::unistd::{SysconfVar, sysconf};
use std::fmt::Write;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;
use test_support::Program;

const MARKS: Marks = Marks {
    begin: "<!-- begin: written by `pagelift-bench known-truth` from its records -->\n",
    end: "<!-- end: written by `pagelift-bench known-truth` -->\n",
};
/// CPU time of a request, in microseconds.
const PRICE: &str = "100";
const PERCENTS: [u32; 4] = [0, 1, 3, 10];
/// A run counts as quiet if other processes used less than this share of all CPUs.
const QUIET: f64 = 0.1;

/// Options of `known-truth`.
#[derive(Args)]
pub(crate) struct KnownTruth {
    /// Runs of each cell; 0 only writes the page.
    #[arg(long, default_value_t = 100)]
    rounds: u32,
    /// Seconds of each run.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(2..))]
    time: u32,
    /// Only these cells: toggle-0 to toggle-10, servers-0 to servers-10.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Programs that compute beside each run, for a load of one's own.
    #[arg(long, default_value_t = 0)]
    busy: u32,
    /// The `pagelift` to measure with.
    #[arg(long, value_name = "FILE", default_value = "target/release/pagelift")]
    pagelift: PathBuf,
    /// Where the records are kept.
    #[arg(long, value_name = "FOLDER", default_value = "target/known-truth")]
    folder: PathBuf,
    /// The page whose table is written.
    #[arg(long, value_name = "FILE", default_value = "docs/RESULTS.md")]
    page: PathBuf,
}

/// How the server is made slower.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Design {
    Toggle,
    Servers,
}

#[derive(Clone, Copy)]
struct Cell {
    design: Design,
    percent: u32,
}

impl Cell {
    fn all() -> impl Iterator<Item = Self> {
        let of = |design| PERCENTS.map(|percent| Self { design, percent });
        [Design::Toggle, Design::Servers].into_iter().flat_map(of)
    }

    fn name(self) -> String {
        let design = if self.design == Design::Toggle { "toggle" } else { "servers" };
        format!("{design}-{}", self.percent)
    }

    /// The slower server's number of requests in the same CPU time, relative to the plain server.
    fn truth(self) -> f64 {
        1.0 / (1.0 + f64::from(self.percent) / 100.0)
    }

    fn words(self, server: &str) -> Vec<String> {
        let percent = self.percent.to_string();
        let load =
            ["--load", "redis://127.0.0.1:{port}?query=PING", "--clients", "2", "--settle", "5ms", "--window", "30ms"];
        match self.design {
            Design::Toggle => {
                let switches = ["--toggle", "--steady", "--toggle-with", "kill -USR1 {pid}", "kill -USR2 {pid}"];
                let server = ["--", server, "{port}", PRICE, "0", &percent];
                [&switches[..], &load, &server].concat().into_iter().map(str::to_owned).collect()
            }
            Design::Servers => {
                let of = |percent: &str| format!("'{server}' {{port}} {PRICE} {percent}");
                let (plain, slower) = (of("0"), of(&percent));
                let servers = ["--server", &plain, "--against", &slower, "--starts", "4"];
                [&servers[..], &load].concat().into_iter().map(str::to_owned).collect::<Vec<_>>()
            }
        }
    }
}

/// Makes the runs, and writes the page.
pub(crate) fn run(options: &KnownTruth) -> Result<()> {
    let cells: Vec<Cell> =
        Cell::all().filter(|cell| options.only.is_empty() || options.only.contains(&cell.name())).collect();
    ensure!(!cells.is_empty(), "--only names no cell; needed: {}", names());
    if options.rounds > 0 {
        let server = Program::named("measuring/answers_at_a_price.c")?.build()?.display().to_string();
        for round in 1..=options.rounds {
            // All cells in turn, so that changes of the machine affect all of them.
            for cell in &cells {
                let seconds = one_run(options, *cell, &server).with_context(|| cell.name())?;
                println!("{round}/{}: {} in {seconds:.1} s", options.rounds, cell.name());
            }
        }
    }
    let text = fs::read_to_string(&options.page).with_context(|| options.page.display().to_string())?;
    let table = table(&options.folder)?;
    fs::write(&options.page, MARKS.replaced(&text, &table)?)?;
    println!("{}: {}", options.page.display(), options.folder.display());
    Ok(())
}

fn names() -> String {
    Cell::all().map(Cell::name).collect::<Vec<_>>().join(", ")
}

/// Makes a run and keeps its record, with the share of the CPUs that other processes used; returns its seconds.
fn one_run(options: &KnownTruth, cell: Cell, server: &str) -> Result<f64> {
    let folder = options.folder.join(cell.name());
    fs::create_dir_all(&folder)?;
    let seed = 1 + numbers_in(&folder)?.into_iter().max().unwrap_or(0);
    let part = folder.join("part");
    let _beside = Busy::start(options.busy)?;
    let (before, started) = (CpuUse::now()?, Instant::now());
    let mut command = Command::new(&options.pagelift);
    command.args(["bench", "--for", &options.time.to_string(), "--seed", &seed.to_string(), "-o"]).arg(&part);
    command.args(cell.words(server)).stdout(Stdio::null());
    let status = command.status().with_context(|| options.pagelift.display().to_string())?;
    let others = CpuUse::now()?.others_since(before);
    ensure!(status.success(), "{command:?}: {status}");
    fs::write(folder.join(format!("{seed}.others")), format!("{others:.4}\n"))?;
    fs::rename(part, folder.join(format!("{seed}.jsonl")))?;
    Ok(started.elapsed().as_secs_f64())
}

/// The numbers of the records of a folder.
fn numbers_in(folder: &Path) -> Result<Vec<u64>> {
    let mut numbers = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let is_record = path.extension().is_some_and(|extension| extension == "jsonl");
        numbers.extend(path.file_stem().and_then(|stem| stem.to_str()?.parse::<u64>().ok()).filter(|_| is_record));
    }
    numbers.sort_unstable();
    Ok(numbers)
}

/// Programs that compute until they are dropped.
struct Busy(Vec<Child>);

impl Busy {
    fn start(count: u32) -> Result<Self> {
        let mut all = Self(Vec::new());
        for _ in 0..count {
            all.0.push(Command::new("sh").args(["-c", "while :; do :; done"]).spawn()?);
        }
        Ok(all)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Seconds of CPU time: of the machine, and of this process's ended children with their descendants.
#[derive(Clone, Copy)]
struct CpuUse {
    busy: f64,
    all: f64,
    children: f64,
}

impl CpuUse {
    fn now() -> Result<Self> {
        let text = fs::read_to_string("/proc/stat")?;
        let ticks = sysconf(SysconfVar::CLK_TCK)?.context("no CLK_TCK")? as f64;
        let usage = getrusage(UsageWho::RUSAGE_CHILDREN)?;
        let children = (usage.user_time() + usage.system_time()).num_microseconds() as f64 / 1e6;
        let (busy, all) = busy_and_all(&text).context("/proc/stat has no line `cpu`")?;
        Ok(Self { busy: busy / ticks, all: all / ticks, children })
    }

    /// The share of all CPUs that other processes have used.
    fn others_since(self, before: Self) -> f64 {
        let others = (self.busy - before.busy) - (self.children - before.children);
        (others / (self.all - before.all)).clamp(0.0, 1.0)
    }
}

/// Ticks of all CPUs: in use, including time that the host gave to others, and in all (proc_stat(5)).
fn busy_and_all(stat: &str) -> Option<(f64, f64)> {
    let line = stat.lines().next()?.strip_prefix("cpu ")?;
    let ticks: Vec<f64> = line.split_whitespace().take(8).map_while(|word| word.parse().ok()).collect();
    let [.., idle, waits, _, _, _] = ticks[..] else { return None };
    let all: f64 = ticks.iter().sum();
    Some((all - idle - waits, all))
}

/// The result of a run.
struct Seen {
    others: f64,
    /// The interval; absent if there were too few blocks.
    interval: Option<(f64, f64)>,
    finding: Finding,
}

impl Seen {
    fn of(record: &Record, others: f64) -> Self {
        let answer = record.answer();
        let interval = answer.arms.first().and_then(|arm| arm.ratio).map(|ratio| (ratio.low, ratio.high));
        Self { others, interval, finding: answer.finding(0) }
    }

    fn read(path: &Path) -> Result<Self> {
        let record = read(&File::open(path)?)?;
        let others = fs::read_to_string(path.with_extension("others"))?.trim().parse()?;
        Ok(Self::of(&record, others))
    }
}

/// The part of the page, from all records of the folder.
fn table(folder: &Path) -> Result<String> {
    let mut text = format!(
        "\n## Is it right?\n\n`pagelift bench` compares a server that uses exactly {PRICE} µs of CPU time for a request with a slower one. Either a \
         signal makes the\nrunning server slower (`--toggle -- SERVER --steady`), or another server is slower (`--server`, 4 starts). \
         Intervals are at 95 %.\nA difference is claimed if the answer is \"it pays\" or \"it costs\". A run is quiet if others used less \
         than {:.0} % of the CPUs.\nThe command is `pagelift-bench known-truth --rounds 100` (`--busy 2` for a load).\n\n\
         | slower | by | others' share of the CPUs | runs | interval holds the truth | difference claimed | in the wrong direction | half of the interval |\n\
         |---|---|---|---|---|---|---|---|\n",
        QUIET * 100.0
    );
    let mut rows = 0;
    for cell in Cell::all() {
        let mut runs = Vec::new();
        let of_cell = folder.join(cell.name());
        for number in if of_cell.exists() { numbers_in(&of_cell)? } else { Vec::new() } {
            let path = of_cell.join(format!("{number}.jsonl"));
            runs.push(Seen::read(&path).with_context(|| path.display().to_string())?);
        }
        let (quiet, loaded): (Vec<Seen>, Vec<Seen>) = runs.into_iter().partition(|seen| seen.others < QUIET);
        for runs in [quiet, loaded].iter().filter(|runs| !runs.is_empty()) {
            text += &row(cell, runs);
            rows += 1;
        }
    }
    if rows == 0 {
        bail!("{} holds no record; fix: pagelift-bench known-truth", folder.display());
    }
    Ok(text + "\n")
}

fn row(cell: Cell, runs: &[Seen]) -> String {
    let how = if cell.design == Design::Toggle { "by a signal" } else { "server beside" };
    let shares: Vec<f64> = runs.iter().map(|seen| seen.others * 100.0).collect();
    let (least, most) = (shares.iter().copied().fold(100.0, f64::min), shares.iter().copied().fold(0.0, f64::max));
    let truth = cell.truth();
    let holds = runs.iter().filter(|seen| seen.interval.is_some_and(|(low, high)| low <= truth && truth <= high));
    let claims = |finding: Finding| runs.iter().filter(|seen| seen.finding == finding).count();
    let (better, worse) = (claims(Finding::Better), claims(Finding::Worse));
    let wrong = if cell.percent == 0 { better + worse } else { better };
    let widths: Vec<f64> =
        runs.iter().filter_map(|seen| seen.interval).map(|(low, high)| (high - low) * 50.0).collect();
    let width = median(&widths).map_or_else(|| "none".to_owned(), |width| format!("±{width:.2} %"));
    let mut text = String::new();
    let _ = writeln!(
        text,
        "| {how} | {} % | {least:.0} to {most:.0} %, median {:.0} % | {} | {} | {} | {wrong} | {width} |",
        cell.percent,
        median(&shares).unwrap_or(0.0),
        runs.len(),
        holds.count(),
        better + worse,
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(interval: (f64, f64), finding: Finding) -> Seen {
        Seen { others: 0.5, interval: Some(interval), finding }
    }

    #[test]
    fn a_row_counts_what_the_runs_have_shown() {
        let cell = Cell { design: Design::Toggle, percent: 3 };
        let runs = [
            seen((0.96, 0.98), Finding::Worse),
            seen((0.98, 1.02), Finding::NoDifference),
            seen((1.01, 1.03), Finding::Better),
            Seen { others: 0.9, interval: None, finding: Finding::TooFew },
        ];
        let expected = "| by a signal | 3 % | 50 to 90 %, median 50 % | 4 | 1 | 2 | 1 | ±1.00 % |\n";
        assert_eq!(row(cell, &runs), expected);
        let equal = Cell { design: Design::Servers, percent: 0 };
        let expected = "| server beside | 0 % | 50 to 50 %, median 50 % | 2 | 1 | 1 | 1 | ±1.50 % |\n";
        assert_eq!(row(equal, &[runs_of(0.96, 0.98), seen((0.98, 1.02), Finding::NoDifference)]), expected);
    }

    fn runs_of(low: f64, high: f64) -> Seen {
        seen((low, high), Finding::Worse)
    }

    #[test]
    fn the_share_of_others_is_what_the_children_have_not_used() {
        assert_eq!(busy_and_all("cpu  10 1 5 80 4 0 0 0 0 0\ncpu0 1"), Some((16.0, 100.0)));
        assert_eq!(busy_and_all("intr 5"), None);
        let before = CpuUse { busy: 0.0, all: 0.0, children: 1.0 };
        let after = CpuUse { busy: 5.0, all: 10.0, children: 4.0 };
        assert!((after.others_since(before) - 0.2).abs() < 1e-9);
    }

    #[test]
    fn each_cell_is_a_command_of_its_own() {
        let words = |design, percent| Cell { design, percent }.words("/a b").join(" ");
        assert!(words(Design::Toggle, 3).ends_with("-- /a b {port} 100 0 3"));
        assert!(words(Design::Servers, 10).contains("--against '/a b' {port} 100 10 "));
        assert!((Cell { design: Design::Toggle, percent: 10 }.truth() - 0.909).abs() < 1e-3);
    }
}
