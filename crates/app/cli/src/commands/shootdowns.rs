//! `pagelift shootdowns`.

use super::reading::confine_to;
use crate::arguments::process::{needs_option, process_number};
use crate::arguments::time::{DAY, SECOND, seconds};
use crate::exit::interruptions;
use crate::output::Output;
use crate::text::shootdowns::{live, overrun, text};
use anyhow::ensure;
use clap::Args;
use confinement::Reads;
use serde::Serialize;
use shootdowns::summary::Others;
use shootdowns::{Diagnosis, Evidence, Summary, Watch};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// `pagelift shootdowns`.
#[derive(Args, Clone)]
pub struct ShootdownsArgs {
    /// Show only this process: its number, or the name of its program.
    #[arg(short, long, value_name = "PID|NAME", value_parser = process_number)]
    pub pid: Option<i32>,
    /// Only for a message that names the option.
    #[arg(hide = true, value_name = "PID|NAME", value_parser = needs_option)]
    pub process: Option<i32>,
    /// Time to watch: 10s, 5m [default: until Ctrl-C on a terminal, otherwise 10s]. The result is shown up to two seconds
    /// later, and later if the CPUs are busy; rates are of the watched time.
    #[arg(long = "for", value_name = "TIME", value_parser = seconds(SECOND, DAY))]
    pub time: Option<Duration>,
    /// Print JSON, with all processes, threads and call paths.
    #[arg(long)]
    pub json: bool,
}

/// Time to watch without a terminal, since there is no Ctrl-C.
const USUAL: Duration = Duration::from_secs(10);
/// Width of a terminal that does not report its own.
const USUAL_COLUMNS: usize = 80;
/// Longer than any machine runs.
const FOR_EVER: Duration = Duration::from_secs(1 << 32);
/// Interval between two updates of the live view.
const REDRAWN: Duration = Duration::from_secs(1);
/// Processes that are diagnosed.
const MOST_DIAGNOSED: usize = 5;
/// A process with a smaller share of the sent shootdowns is not diagnosed, unless it was requested.
const SMALLEST_SHARE: f64 = 0.02;

/// All that is printed.
#[derive(Serialize)]
struct Report {
    #[serde(flatten)]
    summary: Summary,
    diagnoses: Vec<Diagnosis>,
}

/// Watches, and prints the result.
pub fn run(args: &ShootdownsArgs) -> anyhow::Result<()> {
    if let Some(pid) = args.pid {
        let threads = Path::new("/proc").join(pid.to_string()).join("task");
        ensure!(threads.exists(), "there is no process {pid}");
    }
    let stop = interruptions()?;
    let mut watch = Watch::start(args.pid);
    confine_to(Reads::Processes);
    let is_live = args.time.is_none() && !args.json && Output::Standard.is_terminal();
    let time = args.time.unwrap_or(if is_live { FOR_EVER } else { USUAL });
    let end = Instant::now() + time;
    let mut before = selected(watch.counts(), args.pid);
    while is_live && watch.evidence() != Evidence::Nothing && !stop.load(Ordering::Relaxed) {
        watch.until(Instant::now() + REDRAWN, &stop);
        let now = selected(watch.counts(), args.pid);
        let width = Output::Standard.width().unwrap_or(USUAL_COLUMNS);
        Output::Standard.print_screen(&live(&now.clone().since(&before), width))?;
        before = now;
    }
    if !is_live && watch.evidence() != Evidence::Nothing {
        watch.until(end, &stop);
    }
    watch.finish();
    print_report(args, &mut watch)
}

/// The results, of one process only if one was requested.
fn selected(mut summary: Summary, pid: Option<i32>) -> Summary {
    summary.processes.retain(|process| pid.is_none_or(|pid| process.pid == pid));
    // The only watched process is not one of the others.
    if pid.is_some() {
        summary.others = Others::default();
    }
    summary
}

fn print_report(args: &ShootdownsArgs, watch: &mut Watch) -> anyhow::Result<()> {
    let summary = selected(watch.summary(), args.pid);
    let all = summary.others.sent + summary.processes.iter().map(|process| process.sent).sum::<f64>();
    let counts = |sent: f64| sent > 0.0 && (args.pid.is_some() || sent >= all * SMALLEST_SHARE);
    let processes = summary.processes.iter().filter(|process| counts(process.sent)).take(MOST_DIAGNOSED);
    let diagnoses = processes.map(|process| watch.diagnose(process)).collect();
    let report = Report { summary, diagnoses };
    let out = Output::Standard;
    if args.json {
        out.print_json(&report)?;
    } else {
        let late = args.time.and_then(|time| overrun(time, report.summary.seconds)).unwrap_or_default();
        out.print(&(text(&report.summary, &report.diagnoses, out.width()) + &late))?;
    }
    Ok(())
}
