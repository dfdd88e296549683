//! `pagelift doctor`.

use super::reading::confine_to;
use super::stat::report::Outcome;
use super::stat::rounds::{Rounds, USUAL_STALL, Watch};
use crate::arguments::process::{NONE_RUNS, process_number};
use crate::output::Output;
use crate::say;
use crate::text::doctor::{Style, WIDTH, text};
use anyhow::{Context, bail};
use clap::Args;
use confinement::Reads;
use foreign_text::quoted;
use health::gather::{Subject, gather, try_features};
use health::{HealthReport, examine};
use options::Policy;
use process_view::open_regular_file;
use session::inspect::KnownFile;
use session::start::CommandFiles;
use std::ffi::OsString;
use translation::working_set::{PartVerdict, Reach};

/// `pagelift doctor`.
#[derive(Args, Clone)]
pub struct DoctorArgs {
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
    /// Measure how the host of a virtual machine backs huge pages, the reach of the TLB, and the pages that a process
    /// uses within half a second, as `stat` does. Takes some seconds.
    #[arg(long)]
    pub probe: bool,
    /// Also show checks that passed.
    #[arg(short, long)]
    pub all: bool,
    /// The number of a process, or the name of its program.
    #[arg(value_name = "PID|NAME", value_parser = process_to_check, conflicts_with = "command")]
    pub pid: Option<i32>,
    /// A program to check before its start, and its arguments; it is not started.
    #[arg(last = true, value_name = "CMD")]
    pub command: Vec<OsString>,
}

/// Returns the process that a word names. The program may not run yet.
fn process_to_check(word: &str) -> Result<i32, String> {
    let start = format!("; before its start: pagelift doctor -- {}", quoted(word));
    process_number(word).map_err(|why| if why.starts_with(NONE_RUNS) { why + &start } else { why })
}

/// Examines and prints. Returns the exit status.
pub fn run(args: &DoctorArgs) -> u8 {
    let printed = report(args).and_then(|report| print(args, &report).map(|()| report.exit_status()));
    printed.unwrap_or_else(|error| {
        if crate::exit::is_broken_pipe(&error) {
            return 0;
        }
        say!("pagelift: {error:#}");
        crate::exit::OWN_FAILURE
    })
}

fn report(args: &DoctorArgs) -> anyhow::Result<HealthReport> {
    // All that needs more rights than reading, before anything of others is read.
    let tried = try_features(args.probe);
    let subject = subject(args)?;
    let reach = tried.reach();
    let watch = match subject {
        Subject::Process(pid) if args.probe => {
            Some(Watch::start(Rounds::open_for_one("doctor --probe", pid, USUAL_STALL)))
        }
        _ => None,
    };
    confine_to(if matches!(subject, Subject::Process(_)) { Reads::Processes } else { Reads::Own });
    Ok(examine(&gather(tried, &subject, watch.map_or_else(Vec::new, |watch| in_use(watch, &reach)))?))
}

/// The parts of a process that are in use, by its accessed marks.
fn in_use(watch: Watch, reach: &Reach) -> Vec<PartVerdict> {
    match watch.finish(reach) {
        Outcome::Measured(marks) => marks.verdicts,
        Outcome::NotMeasured(why) => {
            say!("pagelift: note: which pages are in use was not measured: {why}");
            Vec::new()
        }
    }
}

fn subject(args: &DoctorArgs) -> anyhow::Result<Subject> {
    let Some(command) = args.command.first() else {
        return Ok(args.pid.map_or(Subject::Machine, Subject::Process));
    };
    let files = CommandFiles::of(command);
    let Some(path) = files.executed() else {
        bail!("{} is not found; needed: a program in PATH, or its path", command.display());
    };
    let Some(file) = open_regular_file(path).with_context(|| format!("opening {}", path.display()))? else {
        bail!("{} is no regular file; needed: a program", path.display());
    };
    let words = args.command.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    // Processes that map the file are found before rights are given up.
    let known = KnownFile::foresee(&file, path, &Policy::default()).map(Box::new);
    Ok(Subject::Command { words, path: path.to_owned(), file, known, is_script: files.is_script() })
}

fn print(args: &DoctorArgs, report: &HealthReport) -> anyhow::Result<()> {
    let out = Output::Standard;
    if args.json {
        out.print_json(report)?;
    } else {
        let width = out.width().map_or(WIDTH, |columns| columns.min(WIDTH));
        let style = Style { is_coloured: is_coloured(out.is_terminal()), all: args.all, width };
        let is_root = nix::unistd::geteuid().is_root();
        out.print_coloured(&text(report, is_root, style))?;
        if let Some(pid) = args.pid.filter(|_| !args.probe && report.heap.is_some()) {
            writeln!(out, "\nWhich pages are in use, and how far the TLB reaches: `pagelift doctor --probe {pid}`.")?;
        }
    }
    Ok(())
}

/// NO_COLOR (no-color.org) and terminals that cannot are respected.
fn is_coloured(is_terminal: bool) -> bool {
    let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    is_terminal && !is_set("NO_COLOR") && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_does_not_run_can_be_checked_before_its_start() {
        let why = process_to_check("no-such-program").unwrap_err();
        assert!(why.starts_with(NONE_RUNS) && why.ends_with("; before its start: pagelift doctor -- no-such-program"));
        assert!(!process_to_check("0").unwrap_err().contains("doctor"));
    }
}
