//! Floods of queued signals while a program is started, attached to and detached from: it gets each of the 64 signals
//! as without Pagelift, with number, order and payload.

use anyhow::{Context as _, Result, ensure};
use std::process::{Command, ExitCode, Stdio};
use test_support::{
    Context, Need, Output, Program, Session, Test, View, copy_program, main_of, test_case, until_scheduled,
};

/// The program's output if no signal was lost, added, or out of order.
const COMPLETE: &str = "0 lost, 0 added, 0 faults";

fn main() -> ExitCode {
    let needs = || vec![Need::Command("gcc".into()), Need::Root, Need::Thp];
    let mut tests: Vec<Test> = Vec::new();
    for threads in ["0", "3"] {
        let name = if threads == "0" { "one_thread" } else { "several_threads" };
        tests.push(test_case(format!("handled/run/{name}"), needs(), move |t| at_start(t, threads, &[])));
        tests.push(test_case(format!("handled/only/{name}"), needs(), move |t| {
            at_start(t, threads, &["--only", "takes_floods", "--follow-lifted"])
        }));
        tests.push(test_case(format!("handled/attach_and_detach/{name}"), needs(), move |t| while_it_runs(t, threads)));
    }
    tests.push(test_case("ignored/run", needs(), |t| ignored(t, &[])));
    tests.push(test_case("ignored/only", needs(), |t| ignored(t, &["--only", "pie_by_default"])));
    tests.push(test_case("waits_of_a_relative_time/only", needs(), waits_beside_ends));
    tests.push(test_case("real_time_signal_of_another_program", needs(), another_programs_signal));
    main_of(tests)
}

/// The built program under the name of its source, by which `--only` finds it.
fn program(t: &Context, name: &str) -> Result<Command> {
    let place = t.folder().join(Program::named(name)?.name());
    if !place.exists() {
        copy_program(t, &Program::named(name)?.build()?, &place)?;
    }
    Ok(Command::new(place))
}

fn flooded(t: &Context, threads: &str) -> Result<Command> {
    let mut command = program(t, "start/takes_floods.c")?;
    command.arg(threads);
    Ok(command)
}

/// The ends of children do not restart a wait of their parent, although each is a signal for the follower.
fn waits_beside_ends(t: &Context) -> Result<()> {
    let waits = program(t, "start/waits_beside_ends.c")?;
    let output = t.run(t.lifted(&["--only", "no_such_program"], &waits)?)?.success()?;
    // If the kernel does not show when a thread began to sleep, the wait begins again with its whole time after each
    // stop.
    let may_be_late = !std::fs::exists("/proc/self/sched")? && output.stdout == "late\n";
    ensure!(output.stdout == "in time\n" || may_be_late, "{}", output.stdout);
    Ok(())
}

/// Ends the flood; the program prints the signals that it has received.
fn end(t: &Context, mut session: Session) -> Result<Output> {
    session.send("\n")?;
    let output = session.finish()?;
    t.keep(&output);
    ensure!(
        output.stdout.lines().last() == Some(COMPLETE),
        "{:?}: {}\n{}",
        output.ending,
        output.stdout,
        output.stderr
    );
    output.success()
}

fn ready(t: &Context, command: Command) -> Result<Session> {
    let session = t.session(command)?;
    session.wait_for_line("ready").with_context(|| session.stderr_so_far())?;
    Ok(session)
}

fn at_start(t: &Context, threads: &str, options: &[&str]) -> Result<()> {
    end(t, ready(t, flooded(t, threads)?)?).context("the plain program")?;
    for _ in 0..12 {
        let options = [&["--pages", "thp"], options].concat();
        let output = until_scheduled(t, || end(t, ready(t, t.lifted(&options, &flooded(t, threads)?)?)?))?;
        // If a signal ended the helper, nothing would be lifted and no line printed.
        ensure!(output.own_lines().iter().any(|line| line.contains(" on ")), "not lifted: {}", output.stderr);
    }
    Ok(())
}

fn while_it_runs(t: &Context, threads: &str) -> Result<()> {
    let session = ready(t, flooded(t, threads)?)?;
    let pid = session.pid().to_string();
    for round in 0..30 {
        for words in [&["attach", "--pages", "thp"][..], &["detach"]] {
            let mut command = t.pagelift(words)?;
            command.arg(&pid);
            let output = t.run(command)?.success().with_context(|| format!("{words:?}, round {round}"))?;
            ensure!(!output.stderr.contains("refused"), "{words:?}, round {round}: {}", output.stderr);
        }
    }
    View::of(session.pid())?;
    end(t, session)?;
    Ok(())
}

fn ignored(t: &Context, options: &[&str]) -> Result<()> {
    let plain = program(t, "start/pie_by_default.c")?;
    let flooder = Program::named("start/floods_a_start.c")?.build()?;
    let under_flood = |command: &Command| {
        let mut flooded = Command::new(&flooder);
        flooded.arg(command.get_program()).args(command.get_args());
        flooded
    };
    let run = |command: Command| -> Result<Output> {
        let mut session = ready(t, command)?;
        session.send("go on\n")?;
        session.finish()?.success()
    };
    let expected = run(under_flood(&plain))?;
    for round in 0..30 {
        let lifted = t.lifted(&[&["--pages", "thp"], options].concat(), &plain)?;
        let output = until_scheduled(t, || {
            let output = run(under_flood(&lifted)).with_context(|| format!("round {round}"))?;
            ensure!(output.stdout == expected.stdout, "round {round}: {}", output.stdout);
            Ok(output)
        })?;
        ensure!(output.own_lines().iter().any(|line| line.contains(" on ")), "round {round}: {}", output.stderr);
    }
    Ok(())
}

/// A shell that takes a real-time signal while it is followed: the programs that it starts afterwards are still lifted.
fn another_programs_signal(t: &Context) -> Result<()> {
    let lifted = program(t, "start/pie_by_default.c")?;
    let mut shell = Command::new("bash");
    let script = "trap : RTMIN; kill -RTMIN $$; trap : 40; kill -40 $$; \"$0\" </dev/null";
    shell.args(["-c", script]).arg(lifted.get_program());
    let output = until_scheduled(t, || {
        let mut command = t.lifted(&["--pages", "thp", "--only", "pie_by_default"], &shell)?;
        command.stdin(Stdio::null());
        t.run(command)?.success()
    })?;
    let lines = output.own_lines();
    ensure!(lines.len() == 1 && lines[0].contains("pie_by_default") && lines[0].contains(" on "), "{}", output.stderr);
    Ok(())
}
