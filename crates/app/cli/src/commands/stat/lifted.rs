//! Plain and lifted, one after the other: a process that is lifted for the time and restored, or a command that is run
//! twice.

use super::command::{End, Ran, Runs};
use super::report::{Comparison, Lifted};
use super::{Outcome, StatArgs, USUAL, VERSION, in_a_thread, process};
use crate::arguments::policy::words;
use crate::commands::lift_switcher::{FoundLifted, LiftSwitcher, RetryLimit};
use crate::text::pause::pause;
use anyhow::bail;
use options::{Kind, Kinds, Pages, Policy};
use session::running::Attached;
use std::ffi::OsString;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// The requested lift.
fn policy(args: &StatArgs, kinds: &[Kind]) -> Policy {
    Policy { kinds: Kinds::of(kinds), pages: args.pages.unwrap_or(Pages::Auto), ..Policy::default() }
}

/// Measures a process plain, lifts it, measures it again, and leaves it as it was found unless it is to stay lifted.
pub fn process(pid: i32, kinds: &[Kind], args: &StatArgs, interrupted: &Arc<AtomicBool>) -> anyhow::Result<Comparison> {
    let writable = |kind: &&Kind| !matches!(kind, Kind::Text | Kind::Rodata);
    if let Some(kind) = kinds.iter().find(writable).filter(|_| !args.keep) {
        bail!("{kind} cannot be restored after a lift; fix: --lift=text,rodata, or --keep, which leaves it lifted");
    }
    let policy = policy(args, kinds);
    let options = words(&policy);
    let time = args.time.unwrap_or(USUAL);
    let measured = || in_a_thread(|| process::measure(pid, time, args.stall, interrupted));
    let mut switcher = LiftSwitcher::new(pid, vec![policy], interrupted, FoundLifted::LiftAgain)?;
    let plain = measured()?;
    let lifted = match &plain.ended_early {
        Some(why) => Outcome::NotMeasured(why.clone()),
        None => match switcher.lift(0, &RetryLimit::from_now(interrupted)).map(|switched| switched.attached) {
            Err(why) => Outcome::NotMeasured(why),
            Ok(Attached { report, .. }) if report.lift.covered_bytes == 0 => Outcome::NotMeasured(report.line()),
            Ok(Attached { report, pause: paused, .. }) => {
                let lift = Some(format!("{}; {}", report.line(), pause(paused)));
                let measured = measured().map(|report| Lifted { lift, report });
                measured.map_or_else(|error| Outcome::NotMeasured(format!("{error:#}")), Outcome::Measured)
            }
        },
    };
    let left = match &lifted {
        Outcome::Measured(_) if args.keep => switcher.keep(),
        _ => switcher.leave_as_found(),
    };
    Ok(Comparison { version: VERSION, options, plain, lifted, left: Some(left) })
}

/// Runs a command plain and then by `pagelift run`. Returns the end of the last run, too, and no comparison if it could
/// not be started.
pub fn command(kinds: &[Kind], args: &StatArgs) -> anyhow::Result<(Option<Comparison>, End)> {
    let options = words(&policy(args, kinds));
    let own = session::parts::program()?.into_os_string();
    let mut runs = Runs::prepare()?;
    let Ran { report, end } = runs.measure(&args.command, args)?;
    // Both would share the CPUs otherwise.
    let end = End::Status(end.wait()?);
    let Some(plain) = report else { return Ok((None, end)) };
    if runs.is_told_to_end() {
        let lifted = Outcome::NotMeasured("interrupted".to_owned());
        return Ok((Some(Comparison { version: VERSION, options, plain, lifted, left: None }), end));
    }
    let mut start: Vec<OsString> = vec![own, "run".into()];
    start.extend(options.iter().map(OsString::from));
    // The comparison covers the whole run, so everything is lifted at the start.
    start.push("--start-cost=any".into());
    if !args.only.is_empty() {
        start.push(format!("--only={}", args.only.join(",")).into());
    }
    start.push("--".into());
    start.extend(args.command.iter().cloned());
    let Ran { report, end } = runs.measure(&start, args)?;
    let lifted = match report {
        Some(report) => Outcome::Measured(Lifted { lift: None, report }),
        None => Outcome::NotMeasured("it could not be started again".to_owned()),
    };
    Ok((Some(Comparison { version: VERSION, options, plain, lifted, left: None }), end))
}
