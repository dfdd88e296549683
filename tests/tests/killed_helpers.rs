//! Whoever lifts a start may be killed at any moment of it: the program starts as if nobody had been there.
//!
//! `PAGELIFT_ROUNDS=1000 cargo test -p pagelift-tests --test killed_helpers` tries so many moments of each kind of start.

use anyhow::{Context as _, Result, ensure};
use libtest_mimic::Trial;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use pagelift_tests::{Context, Need, Output, Program, Session, main_of, process_field, trial};
use std::process::{Command, ExitCode, Stdio};
use std::thread::sleep;
use std::time::Instant;

/// Moments that are tried of each kind of start, unless `PAGELIFT_ROUNDS` says otherwise.
const ROUNDS: u64 = 60;
const LINKER: &str = "/lib64/ld-linux-x86-64.so.2";

fn main() -> ExitCode {
    let needs = || vec![Need::Command("gcc".into()), Need::Thp];
    let mut trials: Vec<Trial> = Vec::new();
    for (kind, name) in [
        ("dynamic", "pie_by_default.c"),
        ("fixed_address", "fixed_address_executable.c"),
        ("static_and_moved", "static_pie.c"),
        ("threads_before_the_entry", "threads_of_a_constructor.c"),
    ] {
        trials.push(trial(kind, needs(), move |t| killed(t, &[], || Program::named(name)?.command())));
    }
    let linker = [needs(), vec![Need::File(LINKER.into())]].concat();
    trials.push(trial("by_the_dynamic_linker", linker, |t| {
        killed(t, &[], || {
            let mut command = Command::new(LINKER);
            command.arg(Program::named("pie_by_default.c")?.build()?);
            Ok(command)
        })
    }));
    trials.push(trial("descendants", needs(), |t| {
        let place = t.folder().join("pie_by_default");
        std::fs::copy(Program::named("pie_by_default.c")?.build()?, &place)?;
        killed(t, &["--only", "pie_by_default"], || {
            let mut shell = Command::new("bash");
            shell.args(["-c", "for i in 1 2 3 4 5 6 7 8 9 10 11 12; do \"$0\" & done; wait"]).arg(&place);
            Ok(shell)
        })
    }));
    main_of(trials)
}

fn rounds() -> u64 {
    std::env::var("PAGELIFT_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(ROUNDS)
}

/// What a program does, in whatever order several of them do it.
fn behaviour(output: &Output) -> (String, Vec<String>) {
    let mut lines: Vec<String> = output.stdout.lines().map(str::to_owned).collect();
    lines.sort();
    (format!("{:?} {}", output.ending, output.foreign_stderr()), lines)
}

fn started(t: &Context, mut command: Command) -> Result<Session> {
    command.stdin(Stdio::null());
    t.session(command)
}

/// Who traces the process now; 0: nobody.
fn tracer_of(session: &Session) -> i32 {
    process_field(session.pid(), "TracerPid").and_then(|tracer| tracer.parse().ok()).unwrap_or(0)
}

/// The helper, as soon as it traces the process; `None` where that has ended before.
fn helper_of(session: &mut Session) -> Result<Option<Pid>> {
    while !session.has_ended()? {
        let tracer = tracer_of(session);
        if tracer != 0 {
            return Ok(Some(Pid::from_raw(tracer)));
        }
    }
    Ok(None)
}

fn killed(t: &Context, options: &[&str], program: impl Fn() -> Result<Command>) -> Result<()> {
    let expected = behaviour(&started(t, program()?)?.finish()?.success()?);
    let lifted = || t.lifted(&[&["--pages", "thp"], options].concat(), &program()?);
    // How long a helper is there: moments are spread over that.
    let mut session = started(t, lifted()?)?;
    helper_of(&mut session)?.context("nobody traced it")?;
    let since = Instant::now();
    while tracer_of(&session) != 0 && !session.has_ended()? {}
    let lasts = since.elapsed();
    session.finish()?.success()?;
    let (rounds, mut kills) = (rounds(), 0);
    for round in 0..rounds {
        let mut session = started(t, lifted()?)?;
        let moment = lasts * (round * 7919 % rounds) as u32 / rounds as u32;
        if let Some(helper) = helper_of(&mut session)? {
            sleep(moment);
            kills += u64::from(tracer_of(&session) != 0);
            // One that has just ended is nobody's any more.
            let _ = kill(helper, Signal::SIGKILL);
        }
        let output = session.finish()?;
        ensure!(behaviour(&output) == expected, "killed {moment:?} after the start of {lasts:?}: {output:?}");
    }
    t.note(format!("{kills} helpers killed"));
    ensure!(kills > rounds / 3, "only {kills} of {rounds} helpers were there to be killed");
    Ok(())
}
