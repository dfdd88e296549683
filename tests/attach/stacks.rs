//! Programs that use their whole stack are lifted and restored, and the stack is not written: while they go deeper than
//! before, if they have reached the bottom before, on stacks that they have made, and while they wait. No part of a
//! lift remains.

use address_space::{Mapping, MappingName};
use anyhow::{Context as _, Result, ensure};
use std::fs;
use std::process::{Command, ExitCode, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};
use test_support::{
    Context, Ending, Kind, Need, Program, Session, View, check_lifted, check_unlifted, default_huge_page, main_of,
    source_of, test_case,
};

const PROGRAM: &str = "attach/uses_all_its_stack.c";
/// Number of lifts that are killed. More lifts follow if no kill came at the right moment.
const ROUNDS: u64 = 120;
const MOST_ROUNDS: u64 = 10 * ROUNDS;
/// Time of a lift on an idle machine.
const LIFT_MICROSECONDS: u64 = 16_000;
/// Computes, so that a lift borrows a thread in the middle of a computation.
const COMPUTES: &str = "attach/keeps_its_registers.c";

fn main() -> ExitCode {
    let needs = || vec![Need::Root, Need::Thp];
    let mut tests = Vec::new();
    for stack in ["deeper", "bottom", "elsewhere"] {
        tests.push(test_case(format!("back_and_forth/{stack}"), needs(), move |t| back_and_forth(t, stack)));
        tests.push(test_case(format!("killed_at_any_moment/{stack}"), needs(), move |t| killed(t, stack)));
    }
    let needs_registers = vec![Need::Root, Need::Thp, Need::Machine("x86_64".into())];
    tests.push(test_case("killed_at_any_moment/computing", needs_registers, |t| killed(t, COMPUTES)));
    tests.push(test_case("a_page_that_an_earlier_lift_used", needs(), page_of_an_earlier_lift));
    tests.push(test_case("no_room_for_the_page", needs(), no_room));
    tests.push(test_case("main_thread_has_ended", needs(), main_thread_has_ended));
    tests.push(test_case("waits_on_full_stacks/back_and_forth", needs(), |t| waits(t, false)));
    tests.push(test_case("waits_on_full_stacks/killed_at_any_moment", needs(), |t| waits(t, true)));
    main_of(tests)
}

/// Starts the program with this stack, or [`COMPUTES`].
fn begin(t: &Context, stack: &str) -> Result<Session> {
    let mut command = match stack {
        COMPUTES => Program::named(COMPUTES)?.command()?,
        _ => Program::named(PROGRAM)?.command()?,
    };
    command.arg(stack);
    let mut session = t.session(command)?;
    session.wait_for_line("ready")?;
    session.send("go on\n")?;
    Ok(session)
}

fn end(t: &Context, mut session: Session) -> Result<()> {
    session.send("\n")?;
    let output = session.finish()?;
    t.keep(&output);
    t.note(output.stdout.lines().last().unwrap_or_default());
    ensure!(output.stdout.contains("\n0 of the "), "{}\n{}", output.stdout, output.stderr);
    ensure!(!output.stdout.contains("differs"), "{}", output.stdout);
    output.success().map(drop)
}

fn pagelift(t: &Context, words: &[&str]) -> Result<String> {
    Ok(t.run(t.pagelift(words)?)?.success()?.stderr)
}

/// Pagelift's own mappings: one separate page of anonymous memory with Pagelift's mark, and code.
fn leftovers(pid: u32) -> Result<Vec<String>> {
    use std::os::unix::fs::FileExt;
    let memory = fs::File::open(format!("/proc/{pid}/mem"))?;
    let view = View::of(pid)?;
    let mut found = Vec::new();
    for mapping in view.space.mappings().iter().filter(|m| m.protection.read && m.range.len() <= 64 << 10) {
        let mut start = [0; 16];
        if memory.read_exact_at(&mut start, mapping.range.start().0).is_ok() && start == *b"pageliftcallpage" {
            found.push(format!("a call page at {}", mapping.range));
        }
    }
    Ok(found)
}

/// Lifts and restores in enough rounds that each part of the stack is in use in one round.
fn back_and_forth(t: &Context, stack: &str) -> Result<()> {
    let session = begin(t, stack)?;
    let pid = session.pid().to_string();
    for round in 0..20 {
        pagelift(t, &["attach", "--pages", "thp", &pid])?;
        if round == 0 {
            let view = View::of(session.pid())?;
            check_lifted(&view, view.executable()?, &[Kind::Text], default_huge_page()?, |writable| {
                source_of("thp", writable)
            })?;
        }
        let left = leftovers(session.pid())?;
        ensure!(left.is_empty(), "left behind by attach: {left:?}");
        pagelift(t, &["detach", &pid])?;
    }
    let view = View::of(session.pid())?;
    check_unlifted(&view, view.executable()?)?;
    let left = leftovers(session.pid())?;
    ensure!(left.is_empty(), "left behind: {left:?}");
    end(t, session)
}

/// Kills lifts at moments spread over their duration; the next lift takes over and removes their remains.
fn killed(t: &Context, stack: &str) -> Result<()> {
    let session = begin(t, stack)?;
    let pid = session.pid().to_string();
    let mut left_behind = 0;
    for round in 0..MOST_ROUNDS {
        if round >= ROUNDS && left_behind > 0 {
            break;
        }
        kill_within(t, &pid, round)?;
        let left = leftovers(session.pid())?;
        ensure!(left.len() <= 1, "round {round}: {left:?}");
        left_behind += left.len();
    }
    pagelift(t, &["attach", "--pages", "thp", &pid])?;
    pagelift(t, &["detach", &pid])?;
    let left = leftovers(session.pid())?;
    ensure!(left.is_empty(), "never removed: {left:?}");
    ensure!(left_behind > 0, "no lift was killed while the program had a page for calls");
    t.note(format!("{left_behind} pages were left behind and removed later"));
    end(t, session)
}

/// The bottom page of the stack was free when the program was lifted and restored. Then a frame covers the page except
/// a few hundred unwritten bytes.
fn page_of_an_earlier_lift(t: &Context) -> Result<()> {
    let mut session = begin(t, "block")?;
    let pid = session.pid().to_string();
    let back_and_forth = || -> Result<()> {
        pagelift(t, &["attach", "--pages", "thp", &pid])?;
        pagelift(t, &["detach", &pid]).map(drop)
    };
    back_and_forth()?;
    session.send("more\n")?;
    session.wait_for_line("all but the end of the stack is used")?;
    back_and_forth()?;
    back_and_forth()?;
    end(t, session)
}

/// A program that may map nothing more is left as it is, with the reason and the fix.
fn no_room(t: &Context) -> Result<()> {
    let session = begin(t, "elsewhere")?;
    let pid = session.pid().to_string();
    let limit = |words: &[&str]| -> Result<()> {
        let mut command = Command::new("prlimit");
        command.args(["--pid", &pid]).args(words);
        t.run(command)?.success().map(drop)
    };
    limit(&["--as=1000000:unlimited"])?;
    let attach = t.run(t.pagelift(&["attach", "--pages", "thp", &pid])?)?;
    ensure!(attach.ending != Ending::Exit(0), "lifted without room");
    let fix = format!("fix: `prlimit --pid {pid} --as=unlimited");
    ensure!(
        attach.stderr.contains("a page for calls cannot be mapped") && attach.stderr.contains(&fix),
        "{}",
        attach.stderr
    );
    limit(&["--as=unlimited"])?;
    pagelift(t, &["attach", "--pages", "thp", &pid])?;
    pagelift(t, &["detach", &pid])?;
    ensure!(leftovers(session.pid())?.is_empty());
    end(t, session)
}

/// The kernel shows no memory of a process whose main thread has ended: the process is left alone.
fn main_thread_has_ended(t: &Context) -> Result<()> {
    let session = begin(t, "ended")?;
    let pid = session.pid().to_string();
    for command in ["attach", "detach"] {
        let refused = t.run(t.pagelift(&[command, &pid])?)?;
        ensure!(refused.ending != Ending::Exit(0), "{command} has worked");
        ensure!(refused.stderr.contains("its main thread has ended"), "{}", refused.stderr);
    }
    end(t, session)
}

/// Threads wait for a time that they give by address. It is changed to the remaining time, and not on their stacks.
fn waits(t: &Context, is_killed: bool) -> Result<()> {
    let mut session = t.session(Program::named("attach/waits_on_full_stacks.c")?.command()?)?;
    session.wait_for_line("ready")?;
    let pid = session.pid().to_string();
    let started = Instant::now();
    // At the end half of the waiting time is over. A restart with the original time would end late.
    for round in 0.. {
        if is_killed {
            kill_within(t, &pid, round)?;
        } else {
            pagelift(t, &["attach", "-q", "--pages", "thp", &pid])?;
            pagelift(t, &["detach", "-q", &pid])?;
        }
        if started.elapsed() > Duration::from_secs(6) {
            break;
        }
    }
    pagelift(t, &["attach", "-q", "--pages", "thp", &pid])?;
    pagelift(t, &["detach", "-q", &pid])?;
    session.send("\n")?;
    session.wait_for_line("all right")?;
    // No thread uses its time any more. Times stay until the end of a lift at which no thread is awake.
    let unused = vdso_of(std::process::id())?;
    for attempts in 1.. {
        pagelift(t, &["attach", "-q", "--pages", "thp", &pid])?;
        pagelift(t, &["detach", "-q", &pid])?;
        if vdso_of(session.pid())? == unused {
            break;
        }
        ensure!(attempts < 20, "something is left after the vDSO");
    }
    ensure!(leftovers(session.pid())?.is_empty());
    session.send("\n")?;
    let output = session.finish()?.success()?;
    t.keep(&output);
    ensure!(output.stdout.contains("\n0 bytes of the stacks have changed"), "{}", output.stdout);
    let shows_sleep = fs::exists("/proc/self/sched")?;
    let ended: Vec<&str> = output.stdout.lines().filter(|line| line.contains(" ended ")).collect();
    // If a lift is killed before it has changed the result of a call, the program sees the EINTR.
    let is_as_plain = |line: &&str| {
        line.contains(" ended in time,")
            || !shows_sleep && line.contains(" late,")
            || is_killed && line.contains(" with an error,")
    };
    ensure!(ended.len() >= 3 && ended.iter().all(is_as_plain), "{}", output.stdout);
    let unchecked = output.stdout.lines().filter(|line| line.ends_with(" is over before the check")).count();
    ensure!(unchecked == 0 || is_killed, "{}", output.stdout);
    t.note(format!("{} of {} stacks were checked", ended.len() - unchecked, ended.len()));
    Ok(())
}

/// Kills a lift, or every third time a `detach`, at a moment of its duration that the number of the round chooses.
fn kill_within(t: &Context, pid: &str, round: u64) -> Result<()> {
    let words: &[&str] = if round % 3 == 2 { &["detach", "-q"] } else { &["attach", "-q", "--pages", "thp"] };
    let mut command = t.pagelift(words)?;
    command.arg(pid).stderr(Stdio::null());
    let mut child = command.spawn()?;
    // A multiplicative sequence reaches every part of the time that a lift takes: longer if other programs use the CPUs.
    let longest = LIFT_MICROSECONDS * (1 + round / ROUNDS);
    sleep(Duration::from_micros(round * 7919 % longest));
    child.kill().ok();
    child.wait()?;
    ensure!(fs::exists(format!("/proc/{pid}/maps"))?, "the program has ended after round {round}");
    Ok(())
}

/// The bytes of a process's vDSO, and of the padding after it.
fn vdso_of(pid: u32) -> Result<Vec<u8>> {
    use std::os::unix::fs::FileExt;
    let view = View::of(pid)?;
    let is_vdso = |m: &&Mapping| m.name == MappingName::Special("[vdso]".into());
    let range = view.space.mappings().iter().find(is_vdso).context("it has no vDSO")?.range;
    let mut bytes = vec![0; range.len() as usize];
    fs::File::open(format!("/proc/{pid}/mem"))?.read_exact_at(&mut bytes, range.start().0)?;
    Ok(bytes)
}
