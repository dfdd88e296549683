//! The lifter of a start may be killed at any moment: the program starts unharmed.
//!
//! `PAGELIFT_ROUNDS=1000 cargo test -p pagelift-tests --test killed_helpers` tries this number of moments of each kind
//! of start.

use anyhow::{Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};
use test_support::{Context, Need, Output, Program, Session, Test, copy_program, main_of, test_case, tracer_of};

/// Number of moments of each kind of start; `PAGELIFT_ROUNDS` replaces it.
const ROUNDS: u64 = 30;
/// Maximum number of starts for each moment: a start may be over before its moment.
const MOST_TRIES: u64 = 2;
/// Limit for a program that hangs.
const LIMIT: Duration = Duration::from_secs(120);
const LINKER: &str = "/lib64/ld-linux-x86-64.so.2";

fn main() -> ExitCode {
    let needs = || vec![Need::Command("gcc".into()), Need::Thp];
    let mut tests: Vec<Test> = Vec::new();
    for (kind, name) in [
        ("dynamic", "start/pie_by_default.c"),
        ("fixed_address", "start/fixed_address_executable.c"),
        ("static_and_moved", "start/static_pie.c"),
        ("static", "start/static_glibc.c"),
        ("threads_before_the_entry", "start/threads_of_a_constructor.c"),
        ("children_before_the_entry", "start/forks_before_its_entry.c"),
        ("sandboxed_before_the_entry", "start/sandboxed_by_a_constructor.c"),
    ] {
        tests.push(test_case(kind, needs(), move |t| killed(t, &[], || Program::named(name)?.command())));
    }
    let go = [needs(), vec![Need::Command("go".into())]].concat();
    tests.push(test_case("go", go, |t| killed(t, &[], || Program::named("start/go_is_soon_over.go")?.command())));
    let linker = [needs(), vec![Need::File(LINKER.into())]].concat();
    tests.push(test_case("by_the_dynamic_linker", linker, |t| {
        killed(t, &[], || {
            let mut command = Command::new(LINKER);
            command.arg(Program::named("start/pie_by_default.c")?.build()?);
            Ok(command)
        })
    }));
    tests.push(test_case("descendants", needs(), |t| {
        let place = t.folder().join("pie_by_default");
        copy_program(t, &Program::named("start/pie_by_default.c")?.build()?, &place)?;
        killed(t, &["--only", "pie_by_default"], || {
            let mut shell = Command::new("bash");
            shell.args(["-c", "for i in 1 2 3 4 5 6 7 8 9 10 11 12; do \"$0\" & done; wait"]).arg(&place);
            Ok(shell)
        })
    }));
    main_of(tests)
}

fn rounds() -> u64 {
    std::env::var("PAGELIFT_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(ROUNDS)
}

/// The output and the ending of a program; the lines are sorted, because several processes may write in any order.
fn behaviour(output: &Output) -> (String, Vec<String>) {
    let mut lines: Vec<String> = output.stdout.lines().map(str::to_owned).collect();
    lines.sort();
    (format!("{:?} {}", output.ending, output.foreign_stderr()), lines)
}

/// Starts a program and sends it a line: programs wait for one when they are ready, or not at all in a shell's
/// background.
fn started(t: &Context, command: Command) -> Result<Session> {
    let mut session = t.session(command)?;
    // A program that has ended reads nothing.
    let _ = session.send("go on\n");
    Ok(session)
}

/// The helper, as soon as it traces the process; `None` if the process ends before.
fn helper_of(session: &mut Session) -> Result<Option<Pid>> {
    let started = Instant::now();
    while !session.has_ended()? {
        ensure!(started.elapsed() < LIMIT, "it neither is traced nor ends");
        if let Some(tracer) = tracer_of(session.pid()) {
            return Ok(Some(Pid::from_raw(tracer)));
        }
    }
    Ok(None)
}

fn killed(t: &Context, options: &[&str], program: impl Fn() -> Result<Command>) -> Result<()> {
    let expected = behaviour(&started(t, program()?)?.finish()?.success()?);
    let lifted = || t.lifted(&[&["--pages", "thp"], options].concat(), &program()?);
    let lasts = how_long_it_is_traced(t, &lifted)?;
    let (rounds, mut kills) = (rounds(), 0);
    // Some helpers finish before their moment, especially if other processes take the CPUs.
    for round in 0..rounds * MOST_TRIES {
        let mut session = started(t, lifted()?)?;
        let since = Instant::now();
        let moment = lasts * (round * 7919 % rounds) as u32 / rounds as u32;
        if let Some(helper) = helper_of(&mut session)? {
            while since.elapsed() < moment {
                std::hint::spin_loop();
            }
            kills += u64::from(tracer_of(session.pid()).is_some());
            // A helper that has just ended traces nobody.
            let _ = kill(helper, Signal::SIGKILL);
        }
        let output = session.finish()?;
        ensure!(behaviour(&output) == expected, "killed {moment:?} after the start of {lasts:?}: {output:?}");
        if kills >= rounds {
            break;
        }
    }
    t.note(format!("{kills} helpers killed"));
    ensure!(kills > 0, "no helper was there to be killed");
    Ok(())
}

/// The longest duration of a few starts from the start of a process to the end of its tracing.
fn how_long_it_is_traced(t: &Context, lifted: &impl Fn() -> Result<Command>) -> Result<Duration> {
    let mut longest = Duration::ZERO;
    for _ in 0..5 {
        let mut session = started(t, lifted()?)?;
        let since = Instant::now();
        if helper_of(&mut session)?.is_some() {
            while tracer_of(session.pid()).is_some() && !session.has_ended()? {
                ensure!(since.elapsed() < LIMIT, "it is traced for ever");
            }
            longest = longest.max(since.elapsed());
        }
        session.finish()?.success()?;
    }
    ensure!(!longest.is_zero(), "nobody traced it");
    Ok(longest)
}
