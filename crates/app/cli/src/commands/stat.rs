//! `pagelift stat`.

mod calibration;
mod command;
mod counters;
mod lifted;
mod machine;
mod process;
pub mod report;
pub mod rounds;

use crate::arguments::policy::choice;
use crate::arguments::process::{process_number, refuse_process};
use crate::arguments::time::{DAY, SECOND, milliseconds, seconds};
use crate::exit::{OWN_FAILURE, interruptions};
use crate::output;
use crate::text::{comparison, stat};
use anyhow::bail;
use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use command::{End, Ran, Runs};
use linux::written_file::is_standard_output;
use options::{Kind, Pages};
use report::{Comparison, Marks, Outcome, Report, VERSION};
use serde::Serialize;
use std::ffi::OsString;
use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

/// The default duration of a measurement.
const USUAL: Duration = Duration::from_secs(5);

/// `pagelift stat`.
#[derive(Args, Clone)]
pub struct StatArgs {
    /// Number of the process, or the name of its program.
    #[arg(short, long, value_name = "PID|NAME", value_parser = process_number, conflicts_with_all = ["all", "command"])]
    pub pid: Option<i32>,
    /// The whole machine.
    #[arg(short, long, conflicts_with = "command", required_unless_present_any = ["pid", "command"])]
    pub all: bool,
    /// Time to measure: 5s, 2m [default: 5s; with CMD until it ends]. A command that takes longer continues after the
    /// report.
    #[arg(long = "for", value_name = "TIME", value_parser = seconds(SECOND / 10, DAY))]
    pub time: Option<Duration>,
    /// Maximum time for which the process may wait for the lock of its memory map while its accessed marks are cleared.
    /// Memory that would take longer is skipped; with 0, no marks are cleared.
    #[arg(long, value_name = "TIME", default_value = rounds::USUAL_STALL_WORD, value_parser = milliseconds(0, 60_000))]
    pub stall: Duration,
    /// Measure twice, plain and lifted, and show both side by side. A process is lifted between the two and then
    /// restored; a command is run twice. Without kinds, code and read-only data are lifted [kinds: text, rodata, data,
    /// bss, heap].
    #[arg(
        long, value_name = "KINDS", conflicts_with = "all", num_args = 0..=1, require_equals = true,
        default_missing_value = "text,rodata", value_delimiter = ',', value_parser = choice::<Kind>(), hide_possible_values = true
    )]
    pub lift: Option<Vec<Kind>>,
    /// Examine the memory of the first program with one of these names, separated by commas, that CMD starts or executes:
    /// cc1plus for g++. With --lift, lift only programs with these names. Time and page walks are counted for all
    /// processes of CMD.
    #[arg(
        long, value_name = "NAMES", value_delimiter = ',', value_parser = NonEmptyStringValueParser::new(), requires = "command",
        conflicts_with_all = ["pid", "all"]
    )]
    pub only: Vec<String>,
    /// With --lift, the source of huge pages [default: auto].
    #[arg(long, value_parser = choice::<Pages>(), requires = "lift")]
    pub pages: Option<Pages>,
    /// With --lift, leave the process lifted.
    #[arg(long, requires = "lift", conflicts_with = "command")]
    pub keep: bool,
    /// If the PMU counts page walks but not their time, as on AMD and most Arm CPUs, measure the cost of a page walk
    /// for four seconds afterwards, and estimate the share of CPU time.
    #[arg(long, conflicts_with = "lift")]
    pub calibrate: bool,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
    /// Write to a file; - is the standard output, also with CMD [default: standard output; with CMD standard error].
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// The command and its arguments.
    #[arg(trailing_var_arg = true, value_name = "CMD")]
    pub command: Vec<OsString>,
}

/// Measures and prints. Returns the status to exit with.
pub fn run(args: &StatArgs) -> anyhow::Result<u8> {
    refuse_process(&args.command, "pagelift stat -p")?;
    let output = Output::open(args)?;
    if !args.command.is_empty() {
        return of_command(args, output);
    }
    let time = args.time.unwrap_or(USUAL);
    let interrupted = interruptions()?;
    let report = match (args.pid, &args.lift) {
        (Some(pid), Some(kinds)) => {
            let comparison = lifted::process(pid, kinds, args, &interrupted)?;
            output.write(&comparison, comparison::text)?;
            return Ok(status_of(&comparison));
        }
        (Some(pid), None) => kept_free(args, || process::measure(pid, time, args.stall, &interrupted))?,
        (None, _) => kept_free(args, || machine::measure(time, &interrupted))?,
    };
    output.write(&with_estimate(report, args), stat::text)?;
    Ok(0)
}

fn of_command(args: &StatArgs, output: Output) -> anyhow::Result<u8> {
    if let Some(kinds) = &args.lift {
        let (comparison, end) = lifted::command(kinds, args)?;
        let written = comparison.map_or(Ok(()), |comparison| output.write(&comparison, comparison::text));
        return ended(end, written);
    }
    let Ran { report, end } = Runs::prepare()?.measure(&args.command, args)?;
    let written = report.map_or(Ok(()), |report| output.write(&with_estimate(report, args), stat::text));
    ended(end, written)
}

/// The status of a command, once it has ended and its report was written.
fn ended(end: End, written: anyhow::Result<()>) -> anyhow::Result<u8> {
    let status = end.wait()?;
    written.map(|()| status)
}

/// Measures in this thread, which drops all rights except to read, or in a separate one if this thread has to measure
/// the cost of a page walk.
fn kept_free(args: &StatArgs, measure: impl FnOnce() -> anyhow::Result<Report> + Send) -> anyhow::Result<Report> {
    if args.calibrate { in_a_thread(measure) } else { measure() }
}

/// Measures in a separate thread, which drops all rights except to read. This thread keeps its rights.
fn in_a_thread(measure: impl FnOnce() -> anyhow::Result<Report> + Send) -> anyhow::Result<Report> {
    let measured = thread::scope(|scope| scope.spawn(measure).join());
    measured.unwrap_or_else(|_| bail!("the thread that measures has failed"))
}

fn with_estimate(report: Report, args: &StatArgs) -> Report {
    if args.calibrate { calibration::estimated(report) } else { report }
}

/// A refused lift is a failure; a lift that was not made because of an end or an interruption is not.
fn status_of(comparison: &Comparison) -> u8 {
    let refused = comparison.plain.ended_early.is_none() && matches!(comparison.lifted, Outcome::NotMeasured(_));
    if refused { OWN_FAILURE } else { 0 }
}

/// The destination of the report. A file is opened before the measurement: later there may be no right to.
enum Output {
    File(fs::File, bool),
    Standard(bool),
    Error(bool),
}

impl Output {
    fn open(args: &StatArgs) -> anyhow::Result<Self> {
        Ok(match &args.output {
            Some(path) if is_standard_output(path) => Self::Standard(args.json),
            Some(path) => {
                let file = linux::written_file::create(path)
                    .map_err(|error| anyhow::anyhow!("{} cannot be written: {error}", path.display()))?;
                Self::File(file, args.json)
            }
            None if args.command.is_empty() => Self::Standard(args.json),
            None => Self::Error(args.json),
        })
    }

    fn write<T: Serialize>(self, report: &T, text: impl Fn(&T) -> String) -> anyhow::Result<()> {
        match self {
            Self::File(mut file, true) => file.write_all(output::json(report)?.as_bytes())?,
            Self::File(mut file, false) => file.write_all(text(report).as_bytes())?,
            Self::Standard(json) => output::Output::Standard.print_either(json, report, text)?,
            Self::Error(json) => output::Output::Error.print_either(json, report, text)?,
        }
        Ok(())
    }
}
