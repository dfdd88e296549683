//! `pagelift measure-lift`: blocks in one running program until there is a decision, one JSON document a line.

use super::switchers::{CommandSwitcher, Lifts};
use super::toggle::reversible;
use anyhow::{bail, ensure};
use bench::toggle::{SeenBlock, Subject, Switcher, Timing, run_sequence};
use bench::work::WorkSource;
use bench::{Limits, forks_of, of_one_program};
use cli::arguments::measure_lift::MeasureLiftArgs;
use cli::commands::lift_switcher::FoundLifted;
use cli::exit::interruptions;
use cli::output::Output;
use measure::record::{Design, Ended, Header, Windows};
use measure::sequential::{Line, Measuring, Rule};
use measure::toggle::{Per, Treatment};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::path::Path;

/// Measures until there is a decision. The last line has it, or the reason why there is none.
pub fn run(args: &MeasureLiftArgs) -> anyhow::Result<()> {
    // Interruptions are caught before the program is changed.
    let interrupted = interruptions()?;
    let pid = args.pid;
    ensure!(Path::new(&format!("/proc/{pid}")).exists(), "process {pid} does not exist");
    let source = args.work.replace("{pid}", &pid.to_string()).parse::<WorkSource>()?;
    let per = if source == WorkSource::Instructions { Per::Cycle } else { Per::CpuSecond };
    let mut work = source.open(pid)?;
    let unit = work.unit();
    let mut switcher: Box<dyn Switcher> = match &args.toggle_with[..] {
        [on, off] => Box::new(CommandSwitcher::new(&filled(on, pid), &filled(off, pid))),
        _ => {
            let policies = vec![reversible(args.policy.policy())?];
            let found_lifted = if args.leave_plain { FoundLifted::LeavePlain } else { FoundLifted::LiftAgain };
            let processes = if args.only_forks { forks_of } else { of_one_program };
            Box::new(Lifts::new(pid, processes, policies, &interrupted, found_lifted)?)
        }
    };
    let timing = Timing { window: args.window, settle: args.settle };
    let mut check = || Ok(());
    let (work, switcher) = (work.as_mut(), switcher.as_mut());
    let subject = Subject { pid, work, switcher, timing, check: &mut check };
    let limits = Limits { time: args.time, resolution: None, interrupted: &interrupted };
    let (mut measuring, mut written) = (Measuring::new(Rule::default()), Ok(()));
    let record = run_sequence(subject, header(args, &unit, per), limits, &mut |seen| {
        written = print(&line_of(&mut measuring, &seen));
        // Nobody reads any more: the supervisor has ended.
        written.is_err() || measuring.is_decided()
    })?;
    if written.is_err() {
        return Ok(());
    }
    match record.ended() {
        Some(Ended::Failed(why)) => {
            print(&Line::Failed(why.clone()))?;
            bail!("{why}")
        }
        _ => Ok(print(&Line::Result(measuring.result(&unit)))?),
    }
}

fn line_of(measuring: &mut Measuring, seen: &SeenBlock) -> Line {
    let is_control = seen.block.treatment == Treatment::Control;
    let line = match seen.value {
        Ok(value) => measuring.add(is_control, value),
        Err(disturbance) => measuring.drop_block(is_control, disturbance.word()),
    };
    line.with_pauses(seen.stops.longest, seen.stops.total)
}

fn print(line: &Line) -> io::Result<()> {
    let text = serde_json::to_string(line)?;
    Output::Standard.print_whole(&(text + "\n"))
}

fn filled(command: &str, pid: i32) -> String {
    command.replace("{pid}", &pid.to_string())
}

fn header(args: &MeasureLiftArgs, unit: &str, per: Per) -> Header {
    // The keys of a hasher are the standard library's only source of chance; the program that is measured cannot know them.
    let seed = args.seed.unwrap_or_else(|| RandomState::new().hash_one(args.pid));
    let windows = Windows {
        length: args.window.as_secs_f64(),
        settle: args.settle.as_secs_f64(),
        with_switches: false,
        only_work: true,
    };
    let program = session::program_name(args.pid);
    let arms = vec!["lifted".to_owned()];
    Header { windows: Some(windows), ..Header::new(Design::Toggle, program, arms, unit.to_owned(), per, seed) }
}
