//! `pagelift agent verdicts`: which programs a lift pays for, on this machine.

use crate::arguments::policy::choice;
use crate::arguments::process::process_number;
use crate::arguments::time::{DAY, SECOND, seconds};
use crate::output::Output;
use crate::say;
use crate::text::number::counted;
use crate::text::table::{table, trimmed};
use agent::decision::{ExecutedFile, Identity};
use agent::discovery::{Machine, Sampler, executed_file, program_of};
use agent::measurement::{Running, words};
use agent::verdicts::{Key, Measurement, Scope, Store, StoreError, Summary, VerdictRecord, decision_text, gain_text};
use agent::worker::{lock_process, not_locked};
use anyhow::{Context, bail, ensure};
use clap::{Args, Subcommand};
use linux::bounded::VERDICTS;
use linux::lock_file::{LockError, PassingLock};
use machine_facts::System;
use options::{Choice, Pages};
use process_view::{open_regular_file, printable};
use serde::Serialize;
use std::collections::BTreeSet;
use std::io::stdin;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// `pagelift agent verdicts`.
#[derive(Args, Clone)]
pub struct VerdictsArgs {
    #[command(subcommand)]
    command: Option<VerdictsCommand>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Folder of the verdicts.
    #[arg(long, global = true, value_name = "FOLDER", default_value = super::VERDICTS)]
    verdicts: PathBuf,
}

#[derive(Subcommand, Clone)]
enum VerdictsCommand {
    /// Measure now whether a lift of a running program pays, and keep the result.
    ///
    /// Its code and read-only data are lifted and restored in blocks under its own load, until a sequential test
    /// decides: keep, put back, harm, or undecided after 100 blocks. The program is plain afterwards, or lifted again
    /// if it was before.
    Measure {
        /// Number of the process, or the name of its program.
        #[arg(value_name = "PID|NAME", value_parser = process_number)]
        pid: i32,
        /// Source of huge pages.
        #[arg(long, value_parser = choice::<Pages>(), default_value = "auto")]
        pages: Pages,
        /// Time after which the measurement ends undecided.
        #[arg(long = "for", value_name = "TIME", default_value = "10m", value_parser = seconds(SECOND, DAY))]
        time: Duration,
    },
    /// Print all measurements, one JSON document per line, for import on other machines.
    Export,
    /// Add the measurements of an exported file. Known measurements are not added twice.
    Import {
        /// The file; standard input if it is -.
        file: PathBuf,
    },
    /// Remove the measurements of a program: they no longer count.
    Forget {
        /// Name of the program, or its build ID, of which eight digits are enough.
        #[arg(required_unless_present = "all", conflicts_with = "all", value_name = "NAME|BUILD")]
        program: Option<String>,
        /// The measurements of all programs.
        #[arg(long)]
        all: bool,
    },
}

/// Runs one of the commands.
///
/// # Errors
/// A file cannot be read or written, or is not a list of verdicts.
pub fn run(args: &VerdictsArgs, state: &Path) -> anyhow::Result<()> {
    let folder = args.verdicts.as_path();
    match &args.command {
        None => show(&Store::load(folder)?, args.json),
        Some(_) if args.json => bail!("--json is for the list; fix: leave it out"),
        Some(VerdictsCommand::Measure { pid, pages, time }) => measure_now((folder, state), *pid, *pages, *time),
        Some(VerdictsCommand::Export) => Ok(Output::Standard.print_whole(&Store::load(folder)?.export())?),
        Some(VerdictsCommand::Import { file }) => import(folder, file),
        Some(VerdictsCommand::Forget { program, .. }) => forget(folder, program.as_deref()),
    }
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// Kinds of memory that a measurement lifts: those that can be restored.
const MEASURED: [&str; 2] = ["text", "rodata"];

/// Time for which the worker of an agent is waited for: most lifts take less than a second.
const LONGEST_WAIT: Duration = Duration::from_secs(5);

/// The lock that keeps an agent from the process meanwhile. `None` if no agent has run since the boot, or if the agent is another
/// user's.
fn lock_of(state: &Path, pid: i32) -> anyhow::Result<Option<PassingLock>> {
    match lock_process(state, pid, LONGEST_WAIT) {
        Ok(lock) => Ok(Some(lock)),
        Err(error @ LockError::Held(_)) => bail!("{}", not_locked(pid, &error)),
        Err(LockError::OfAnotherUser(_) | LockError::Refused(_)) => Ok(None),
    }
}

/// Measures one process, says the decision, and keeps it.
fn measure_now((folder, state): (&Path, &Path), pid: i32, pages: Pages, most: Duration) -> anyhow::Result<()> {
    let lock = lock_of(state, pid)?;
    let identity = identity_of(pid)?;
    let program = program_of(pid, &BTreeSet::new()).map_err(|error| anyhow::anyhow!("{error}"))?;
    let options = ["--pages", pages.word(), "--lift", &MEASURED.join(",")].map(str::to_owned);
    let own = std::env::current_exe().context("finding the file of this program")?;
    // A folder that cannot be written fails here, not after the measurement.
    Store::update(folder, |_| Ok::<_, StoreError>(()))?;
    let running = Running::start(&own, &words(pid, &options, most), lock.as_ref()).map_err(anyhow::Error::msg)?;
    let result = running.result().map_err(anyhow::Error::msg)?;
    ensure!(identity_of(pid).ok() == Some(identity), "process {pid} has ended or executed another program meanwhile");
    let key = Scope::read().key(&program.build_of_user(), &MEASURED, pages, None);
    let (name, at) = (printable(program.file_name()), now());
    let measurement = Measurement::of(&result, &Machine::read(&System).boot, at);
    Store::update(folder, |store| {
        store.add(key, &name, measurement, at);
        Ok::<_, StoreError>(())
    })?;
    let gain = result.gain.map_or_else(|| "unknown".to_owned(), gain_text);
    let (ending, blocks) = (decision_text(result.decision), result.blocks);
    Ok(Output::Standard
        .print(&format!("{name}[{pid}]: {ending}; gain {gain}, {}\n", counted(blocks as u64, "block")))?)
}

/// The process and its executable: another exec makes it another one.
fn identity_of(pid: i32) -> anyhow::Result<(Identity, Option<ExecutedFile>)> {
    let sample = Sampler::now()?.sample(pid);
    let sample = sample.with_context(|| format!("no process has the number {pid}, or it has ended"))?;
    Ok((sample.identity, executed_file(pid)))
}

fn import(folder: &Path, path: &Path) -> anyhow::Result<()> {
    let name = printable(&path.to_string_lossy());
    let bytes = bytes_of(path).with_context(|| format!("reading {name}"))?;
    let number =
        Store::update(folder, |store| store.import(&bytes, now())).with_context(|| format!("importing {name}"))?;
    say!("pagelift: imported the measurements of {}", builds(number));
    Ok(())
}

/// The bytes of a file, or of standard input if it is `-`.
fn bytes_of(path: &Path) -> anyhow::Result<Vec<u8>> {
    if path == Path::new("-") {
        return Ok(VERDICTS.read_rest(stdin())?);
    }
    let file = open_regular_file(path)?.context("found a non-regular file, needed a regular file")?;
    Ok(VERDICTS.read_rest(file)?)
}

fn forget(folder: &Path, program: Option<&str>) -> anyhow::Result<()> {
    let forgotten = Store::update(folder, |store| {
        Ok::<_, StoreError>(match program {
            Some(program) => store.forget(program),
            None => store.forget_all(),
        })
    })?;
    if let Some(program) = program {
        ensure!(
            forgotten > 0,
            "nothing is known about {}; needed: a name or a build ID of `pagelift agent verdicts`",
            printable(program)
        );
    }
    say!("pagelift: forgot the measurements of {}", builds(forgotten));
    Ok(())
}

fn builds(number: usize) -> String {
    format!("{number} build{}", if number == 1 { "" } else { "s" })
}

/// One record as JSON, with its verdict.
#[derive(Serialize)]
struct Shown<'a> {
    #[serde(flatten)]
    key: &'a Key,
    program: &'a str,
    verdict: &'static str,
    gain: Option<[f64; 3]>,
    measurements: &'a [Measurement],
}

fn show(store: &Store, as_json: bool) -> anyhow::Result<()> {
    for problem in store.problems() {
        say!("pagelift: note: line {} of the verdicts is left out: {}", problem.line, problem.found);
    }
    let now = now();
    if as_json {
        let shown = |record| shown(record, now);
        return Output::Standard.print_json(&store.records().iter().map(shown).collect::<Vec<_>>());
    }
    let counting: Vec<_> = store.records().iter().filter(|record| record.counts(now)).collect();
    if counting.is_empty() {
        return Ok(Output::Standard.print("No program has been measured yet.\n")?);
    }
    let mut table = table(&["program", "build", "verdict", "gain", "kept", "put back", "undecided", "kernel, options"]);
    counting.into_iter().for_each(|record| table.add_row(row(record, now)));
    Ok(Output::Standard.print(&format!("{}\n", trimmed(&table)))?)
}

fn shown(record: &VerdictRecord, now: u64) -> Shown<'_> {
    let verdict = record.standing(now).word();
    let (key, program, measurements) = (&record.key, record.program.as_str(), &record.measurements[..]);
    Shown { key, program, verdict, gain: record.gain(now), measurements }
}

fn row(record: &VerdictRecord, now: u64) -> [String; 8] {
    let (key, known) = (&record.key, Summary::of(record, "", now));
    // An owner other than root follows the ID.
    let (id, owner) = key.build.split_once(' ').unwrap_or((&key.build, ""));
    let build = format!("{} {owner}", id.chars().take(12).collect::<String>()).trim_end().to_owned();
    [
        record.program.clone(),
        build,
        record.standing(now).word().replace('-', " "),
        record.gain(now).map_or_else(|| "unknown".to_owned(), gain_text),
        known.kept.to_string(),
        (known.put_back + known.harms).to_string(),
        known.undecided.to_string(),
        format!("{}, {}", key.kernel, key.options),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use measure::sequential::Decision;

    fn record() -> VerdictRecord {
        let text = |text: &str| text.to_owned();
        let key = Key {
            build: text("0123456789abcdef"),
            cpu: text("c"),
            kernel: text("6.18"),
            thp: text("madvise"),
            options: text("text,rodata auto"),
        };
        let measurement = |decision, boot: &str| Measurement {
            decision,
            boot: text(boot),
            at: 1000,
            blocks: 12,
            log_evidence: 6.4,
            gain: Some([0.009, 0.021, 0.033]),
        };
        let mut record = VerdictRecord::new(key, "server");
        record.measurements = vec![
            measurement(Decision::Keep, "a"),
            measurement(Decision::Keep, "b"),
            measurement(Decision::Keep, "a"),
            measurement(Decision::PutBack, "a"),
        ];
        record
    }

    #[test]
    fn a_row_has_the_verdict_and_its_measurements() {
        let expected =
            ["server", "0123456789ab", "pays", "+2.1 % (+0.9 to +3.3)", "3", "1", "0", "6.18, text,rodata auto"];
        assert_eq!(row(&record(), 1000), expected);
    }

    #[test]
    fn json_has_the_key_and_the_verdict() {
        let record = record();
        let json = serde_json::to_value(shown(&record, 1000)).unwrap();
        assert_eq!((&json["verdict"], &json["build"]), (&"pays".into(), &"0123456789abcdef".into()));
        assert_eq!(json["measurements"].as_array().map(Vec::len), Some(4));
    }
}
