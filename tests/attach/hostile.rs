//! Programs that attack the lifter, and programs that constantly change the facts on which a lift relies: the attacker
//! gains nothing, nothing breaks, and no lift exceeds its time limit.
//!
//! `PAGELIFT_ROUNDS` sets the number of rounds, for long runs:
//!
//!     PAGELIFT_ROUNDS=1000 cargo test -p pagelift-tests --test hostile -- changes/exec

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;
use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;
use test_support::{
    Context, Ending, Kind, Need, Output, Program, Session, Test, View, check_lifted, check_unlifted, copy_program,
    default_huge_page, main_of, poll_until, process_field, source_of, test_case,
};

/// Number of the user and the group `nobody`.
const NOBODY: u32 = 65534;
const ROUNDS: &str = "PAGELIFT_ROUNDS";
/// Time limit of a lift or a restore: one call that does not return, and all other waits.
const BOUND: Duration = Duration::from_secs(90);
/// Time limit of a program, from its start to its end.
const LIFETIME: Duration = Duration::from_secs(3600);
const SIGKILL: i32 = Signal::SIGKILL as i32;
/// Output of a hostile program that has succeeded.
const GAINED: &str = "gained";

fn main() -> ExitCode {
    let needs = || vec![Need::Root, Need::Thp, Need::Command("gcc".into()), Need::Machine("x86_64".into())];
    let mut tests: Vec<Test> = Vec::new();
    for when in ["call", "between", "thread"] {
        tests.push(test_case(format!("executes_a_set_user_id_program/{when}"), needs(), move |t| steers(t, when)));
    }
    tests.push(test_case("executes_a_set_user_id_program/start", needs(), steers_its_start));
    tests.push(test_case("gives_its_number_on", needs(), gives_its_number_on));
    tests.push(test_case("escapes_its_sandbox", needs(), escapes));
    tests.push(test_case("killed_under_a_filter", needs(), killed_under_a_filter));
    for what in ["exec", "fork", "maps", "patches", "mounts", "credentials", "filters"] {
        tests.push(test_case(format!("changes/{what}"), needs(), move |t| changes(t, what)));
    }
    for what in ["dispatch", "unload", "unmap", "executable"] {
        tests.push(test_case(format!("defends_itself/{what}"), needs(), move |t| defends_itself(t, what)));
    }
    tests.push(test_case("defends_itself/before_the_start", needs(), defends_before_the_start));
    main_of(tests)
}

fn rounds(otherwise: usize) -> Result<usize> {
    std::env::var(ROUNDS).map_or(Ok(otherwise), |text| text.parse().with_context(|| format!("{ROUNDS} is no number")))
}

/// True if another round is due after `round` rounds: up to ten times as many as requested until one has had the effect, without
/// which nothing was tested.
fn goes_on(round: usize, requested: usize, effects: usize) -> bool {
    round < requested || effects == 0 && round < 10 * requested
}

/// Runs pagelift, which may refuse, but may not crash, find a fault or take longer than [`BOUND`]. The output is not
/// stored, since there may be very many attempts.
fn attempt(t: &Context, words: &[&str]) -> Result<Output> {
    let output = Session::start(t.pagelift(words)?, BOUND)?.finish().with_context(|| format!("{words:?}"))?;
    let said = !output.stderr.contains("FAULT") && !output.stderr.contains("panicked");
    let ended = matches!(output.ending, Ending::Exit(0) | Ending::Exit(125));
    ensure!(said && ended, "{words:?}: {:?}: {}", output.ending, output.stderr);
    Ok(output)
}

/// A copy of a program under a name that no other test uses.
fn installed(t: &Context, program: &str, name: &str, mode: u32) -> Result<PathBuf> {
    let path = t.folder().join(name);
    copy_program(t, &Program::named(program)?.build()?, &path)?;
    fs::set_permissions(&path, Permissions::from_mode(mode))?;
    Ok(path)
}

/// The program shares its memory with another process, so that the memory remains when the program executes a
/// set-user-ID program. The lift must not touch the new program.
fn steers(t: &Context, when: &str) -> Result<()> {
    let victim = installed(t, "attach/set_user_id.c", "victim", 0o4755)?;
    let mut alone = Command::new(&victim);
    alone.uid(NOBODY).gid(NOBODY).current_dir("/");
    let alone = t.run(alone)?.success()?.stdout;
    ensure!(alone.contains("of user 0 ended as it should"), "set-user-ID has no effect where it lies: {alone}");
    let mut executed = 0;
    let count = rounds(12)?;
    for round in 0..count {
        let output = steer(t, &victim, when).with_context(|| format!("round {round}"))?;
        if output.ending != Ending::Signal(SIGKILL) {
            ensure!(output.ending == Ending::Exit(0) && output.stdout.contains(&alone), "{output:?}");
            executed += 1;
        }
        ensure!(!output.stdout.contains(GAINED), "{}", output.stdout);
    }
    t.note(format!("executed in {executed} of {count} rounds"));
    Ok(())
}

/// Lifts the program once during its attempt, and kills it if it is still the first program afterwards.
fn steer(t: &Context, victim: &Path, when: &str) -> Result<Output> {
    let mut command = Program::named("attach/executes_set_user_id.c")?.command()?;
    command.arg(victim).arg(when).uid(NOBODY).gid(NOBODY).current_dir("/");
    let session = Session::start(command, LIFETIME)?;
    session.wait_for_line("ready")?;
    attempt(t, &["attach", "--pages", "thp", &session.pid().to_string()])?;
    let is_victim = fs::read_link(format!("/proc/{}/exe", session.pid())).is_ok_and(|exe| exe == victim);
    if !is_victim {
        // If the program has just ended by itself, the signal has no effect.
        session.signal(Signal::SIGKILL)?;
    }
    session.finish()
}

/// A process that shares the program's memory writes to the code by which the program makes calls at its start.
fn steers_its_start(t: &Context) -> Result<()> {
    let victim = installed(t, "attach/set_user_id.c", "victim-of-start", 0o4755)?;
    let program = Program::named("attach/steers_its_start.c")?.build()?;
    let name = program.file_name().and_then(OsStr::to_str).context("a name")?;
    let (mut executed, mut round, count) = (0, 0, rounds(12)?);
    while goes_on(round, count, executed) {
        let mut command = t.pagelift(&["run", "--pages", "thp", "--only", name, "--"])?;
        command.arg(&program).arg(&victim).current_dir("/");
        let output = Session::start(command, BOUND)?.finish().with_context(|| format!("round {round}"))?;
        let said = !output.stderr.contains("FAULT") && !output.stderr.contains("panicked");
        ensure!(said && output.ending == Ending::Exit(0), "round {round}: {output:?}");
        ensure!(output.stdout.ends_with("ended as it should\n") && !output.stdout.contains(GAINED), "{output:?}");
        executed += usize::from(output.stdout.contains("set-user-ID program of user 0"));
        round += 1;
    }
    ensure!(executed > 0, "no code was replaced in {round} rounds");
    t.note(format!("executed in {executed} of {round} rounds"));
    Ok(())
}

/// The program to be lifted ends, and another program gets its PID.
fn gives_its_number_on(t: &Context) -> Result<()> {
    let named = |name: &str| installed(t, "attach/gives_its_number_on.c", name, 0o755);
    let mut command = Command::new(named("number-giver")?);
    command.arg(named("number-first")?).arg(named("number-second")?);
    let mut session = t.session_within(command, LIFETIME)?;
    session.wait_for_line("ready")?;
    let (mut lifted, count) = (0, rounds(60)?);
    for round in 0..count {
        let context = || format!("round {round}; it says: {}", session.stdout_so_far());
        let output = attempt(t, &["attach", "--pages", "thp", "--all", "number-first"]).with_context(context)?;
        lifted += usize::from(output.stderr.contains(" MiB on "));
    }
    session.send("\n")?;
    let output = session.finish()?;
    ensure!(output.stdout.ends_with("none was touched\n"), "{:?}: {}", output.ending, output.stdout);
    ensure!(lifted > 0, "none of the others was lifted either");
    t.note(format!("lifted in {lifted} of {count} rounds: {}", output.stdout));
    output.success().map(drop)
}

/// One thread replaces the calls that another is to make.
fn escapes(t: &Context) -> Result<()> {
    let (mut replaced, mut round, count) = (0, 0, rounds(15)?);
    while goes_on(round, count, replaced) {
        let folder = t.folder().join(format!("made-{round}"));
        let mut command = Program::named("attach/escapes_its_sandbox.c")?.command()?;
        command.arg(&folder);
        let mut session = Session::start(command, LIFETIME)?;
        session.wait_for_line("ready")?;
        attempt(t, &["attach", "--pages", "thp", &session.pid().to_string()])?;
        session.send("\n")?;
        let output = session.finish()?.success()?;
        ensure!(!folder.exists() && output.stdout.ends_with("still confined\n"), "round {round}: {}", output.stdout);
        replaced += usize::from(!output.stdout.contains("\n0 calls replaced"));
        round += 1;
    }
    ensure!(replaced > 0, "no call was replaced in {round} rounds");
    t.note(format!("a call was replaced in {replaced} of {round} rounds"));
    Ok(())
}

/// Kills lifts at moments spread over their duration; the program then makes the pending call itself.
fn killed_under_a_filter(t: &Context) -> Result<()> {
    let mut command = Program::named("attach/under_seccomp.c")?.command()?;
    command.arg("lift");
    let mut session = t.session_within(command, LIFETIME)?;
    session.wait_for_line("ready")?;
    let pid = session.pid().to_string();
    for round in 0..rounds(60)? as u64 {
        let words: &[&str] = if round % 3 == 2 { &["detach", "-q"] } else { &["attach", "-q", "--pages", "thp"] };
        let mut command = t.pagelift(words)?;
        command.arg(&pid).stderr(Stdio::null());
        let mut child = command.spawn()?;
        // A multiplicative sequence reaches every part of the time that a lift takes.
        std::thread::sleep(Duration::from_micros(round * 7919 % 16000));
        child.kill().ok();
        child.wait()?;
        ensure!(!session.has_ended()?, "the program has ended in round {round}: {:?}", session.finish()?);
    }
    attempt(t, &["attach", "--pages", "thp", &pid])?.success()?;
    let view = View::of(session.pid())?;
    check_lifted(&view, view.executable()?, &[Kind::Text], default_huge_page()?, |_| source_of("thp", false))?;
    attempt(t, &["detach", &pid])?.success()?;
    let view = View::of(session.pid())?;
    check_unlifted(&view, view.executable()?)?;
    session.send("\n")?;
    let output = session.finish()?.success()?;
    ensure!(output.stdout.ends_with("all right\n"), "{}", output.stdout);
    Ok(())
}

/// The program is lifted and restored while it changes: it finds no fault, and is not traced afterwards.
fn changes(t: &Context, what: &str) -> Result<()> {
    let name = format!("changes-{what}");
    let mut command = Command::new(installed(t, "attach/changes_all_the_time.c", &name, 0o755)?);
    command.arg(what);
    let mut session = t.session_within(command, LIFETIME)?;
    session.wait_for_line("ready")?;
    let pid = session.pid().to_string();
    // If the program has children, they are lifted too.
    let whom: &[&str] = if ["fork", "filters"].contains(&what) { &["--all", &name] } else { &[&pid] };
    let (mut lifted, mut longest) = (0, Duration::ZERO);
    let count = rounds(30)?;
    for round in 0..count {
        let context = || format!("round {round}; it says: {}", session.stdout_so_far());
        let attached = attempt(t, &[&["attach", "--pages", "thp"], whom].concat()).with_context(context)?;
        let detached = attempt(t, &[&["detach"], whom].concat()).with_context(context)?;
        lifted += usize::from(attached.stderr.contains(" MiB on "));
        longest = longest.max(attached.took).max(detached.took);
    }
    ensure!(lifted > 0, "it was never lifted");
    t.note(format!("lifted in {lifted} of {count} rounds; the longest took {longest:.1?}"));
    if std::env::var_os(ROUNDS).is_some() {
        println!("{what}: lifted in {lifted} of {count} rounds; the longest took {longest:.1?}");
    }
    poll_until(Duration::from_secs(120), "the end of its tracing", || {
        process_field(session.pid(), "TracerPid").as_deref() == Some("0")
    })?;
    session.send("\n")?;
    let output = session.finish()?;
    ensure!(output.stdout.ends_with("nothing was wrong\n"), "{:?}: {}", output.ending, output.stdout);
    output.success().map(drop)
}

/// The handlers of signals of a process, and the number of its mappings without a file.
fn signals_and_mappings(pid: u32) -> Result<(String, usize)> {
    let handled = process_field(pid, "SigCgt").context("no SigCgt")?;
    let maps = fs::read_to_string(format!("/proc/{pid}/maps"))?;
    Ok((handled, maps.lines().filter(|line| !line.contains('/')).count()))
}

/// The program has the handlers and mappings that it had, and runs on.
fn defends_itself(t: &Context, what: &str) -> Result<()> {
    let program = Program::named("attach/defends_itself.c")?;
    let mut command = program.command()?;
    command.arg(what).args(program.build()?.parent());
    let mut session = Session::start(command, LIFETIME)?;
    session.wait_for_line("ready")?;
    let pid = session.pid().to_string();
    let before = signals_and_mappings(session.pid())?;
    let mut lifted = 0;
    // A lift of a program that handles its own calls is refused after two seconds; the others take milliseconds.
    for _ in 0..rounds(if what == "dispatch" { 5 } else { 20 })? {
        let attached = attempt(t, &["attach", "--pages", "thp", &pid])?;
        lifted += usize::from(attached.ending == Ending::Exit(0));
        let reason = match what {
            "dispatch" => "Syscall User Dispatch",
            "executable" => "READ_IMPLIES_EXEC",
            _ => "",
        };
        ensure!(attached.stderr.contains(reason), "it said {}", attached.stderr);
        attempt(t, &["detach", &pid])?;
    }
    ensure!((lifted > 0) == (what == "unload") || what == "unmap", "lifted {lifted} times");
    let mut after = before.clone();
    poll_until(BOUND, "the handlers and mappings of before", || {
        after = signals_and_mappings(session.pid()).unwrap_or_default();
        // Without the page for calls, which the program unmaps, nothing can be removed.
        after == before || what == "unmap" && after.0 == before.0
    })
    .with_context(|| format!("before {before:?}, now {after:?}"))?;
    session.send("\n")?;
    let output = session.finish()?.success()?;
    ensure!(output.stdout.contains("all right"), "{output:?}");
    Ok(())
}

/// A preloaded library handles the calls of the program from its constructor on.
fn defends_before_the_start(t: &Context) -> Result<()> {
    let program = Program::named("attach/defends_itself.c")?;
    let library = program.build()?.with_file_name("libdefends.so");
    for pages in ["auto", "thp"] {
        let mut plain = program.command()?;
        plain.arg("preloaded").env("LD_PRELOAD", &library).env("DEFENDS_BEFORE_START", "1").stdin(Stdio::null());
        let output = t.run(t.lifted(&["--pages", pages], &plain)?)?.success()?;
        ensure!(output.stdout.contains("all right"), "{output:?}");
    }
    Ok(())
}
