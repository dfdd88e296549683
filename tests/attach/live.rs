//! Running programs are lifted and restored: they notice nothing, whatever they do, and the lifter may be killed at any
//! moment.

use anyhow::{Context as _, Result, ensure};
use nix::libc;
use nix::sys::signal::Signal;
use std::fs;
use std::process::{Command, ExitCode, Stdio};
use std::thread::sleep;
use std::time::Duration;
use test_support::{
    Context, Kind, Need, Program, Session, Test, View, check_lifted, check_unlifted, copy_program, default_huge_page,
    main_of, poll_until, process_field, source_of, test_case,
};

const PROGRAM: &str = "attach/sleeps_in_many_calls.c";
/// Last output of the program if it has noticed nothing.
const UNHARMED: &str = "0 faults";
const POOL: u64 = 96 << 20;
/// The system calls that epoll_wait(2) and pause(2) of the C library make.
#[cfg(target_arch = "x86_64")]
const CALLS: [i64; 2] = [libc::SYS_epoll_wait, libc::SYS_pause];
#[cfg(target_arch = "aarch64")]
const CALLS: [i64; 2] = [libc::SYS_epoll_pwait, libc::SYS_ppoll];

fn main() -> ExitCode {
    let mut tests: Vec<Test> = Vec::new();
    for pages in ["thp", "hugetlb"] {
        let needs = || match pages {
            "thp" => vec![Need::Root, Need::Thp],
            _ => vec![Need::Root, Need::Pool(POOL)],
        };
        tests.push(test_case(format!("lifted_and_put_back_while_it_waits/{pages}"), needs(), move |t| {
            alternate(t, pages)
        }));
        tests.push(test_case(format!("killed_at_any_moment/{pages}"), needs(), move |t| killed(t, pages)));
    }
    for program in ["waits_beside_children", "is_woken_by_signals"] {
        tests.push(test_case(program, vec![Need::Root, Need::Thp], move |t| interrupted(t, program)));
    }
    for call in ["epoll_wait", "pause", "read"] {
        let needs = vec![Need::Root, Need::Thp];
        tests.push(test_case(format!("signals_during_a_lift/{call}"), needs, move |t| signalled(t, call)));
    }
    tests.push(test_case("waits_of_a_relative_time", vec![Need::Root, Need::Thp], timed));
    let needs = vec![Need::Root, Need::Thp];
    tests.push(test_case("waits_by_a_function_that_keeps_its_registers", needs, own_wait));
    tests.push(test_case("waits_beside_ending_children", vec![Need::Root, Need::Thp], beside_ending_children));
    tests.push(test_case("one_thread_that_sleeps", vec![Need::Root, Need::Thp], single_thread));
    tests.push(test_case("a_worker_of_the_kernel", vec![Need::Root, Need::Thp], kernel_worker));
    let needs = vec![Need::Root, Need::Thp];
    tests.push(test_case("a_choice_that_a_killed_lift_suspended", needs, kernel_worker_of_a_killed_lift));
    tests.push(test_case("refused_with_a_reason", vec![Need::Root, Need::Command("strace".into())], refused));
    let needs = vec![Need::Root, Need::Thp, Need::Machine("x86_64".into())];
    tests.push(test_case("the_code_of_the_lift_lies_in_the_range", needs, over_own_code));
    tests.push(test_case("a_heap_that_shrinks_meanwhile", vec![Need::Root, Need::Thp], shrinking_heap));
    tests.push(test_case("all_of_a_name", vec![Need::Root, Need::Thp], all_of_a_name));
    tests.push(test_case("lifted_twice", vec![Need::Root, Need::Thp], twice));
    tests.push(test_case("plan_only", vec![Need::Root, Need::Thp], plan_only));
    main_of(tests)
}

fn start(t: &Context) -> Result<Session> {
    begin(t, Program::named(PROGRAM)?.command()?)
}

fn begin(t: &Context, command: Command) -> Result<Session> {
    let session = t.session(command)?;
    session.wait_for_line("ready")?;
    Ok(session)
}

fn end(t: &Context, mut session: Session) -> Result<()> {
    session.send("\n")?;
    let output = session.finish()?;
    t.keep(&output);
    let last = output.stdout.lines().last().unwrap_or_default().to_owned();
    ensure!(last == UNHARMED, "the program has seen something:\n{}\n{}", output.stdout, output.stderr);
    output.success().map(drop)
}

fn pagelift(t: &Context, words: &[&str]) -> Result<String> {
    Ok(t.run(t.pagelift(words)?)?.success()?.stderr)
}

/// Moves code and read-only data to huge pages and back to the file, many times.
fn alternate(t: &Context, pages: &str) -> Result<()> {
    let session = start(t)?;
    let pid = session.pid().to_string();
    let before = View::of(session.pid())?;
    let protections = before.protections(before.executable()?);
    for round in 0..8 {
        pagelift(t, &["attach", "--pages", pages, &pid])?;
        let view = View::of(session.pid())?;
        let lifted =
            check_lifted(&view, view.executable()?, &[Kind::Text, Kind::Rodata], default_huge_page()?, |writable| {
                source_of(pages, writable)
            })?;
        ensure!(view.protections(view.executable()?) == protections, "protections differ after the lift");
        pagelift(t, &["detach", &pid])?;
        let view = View::of(session.pid())?;
        ensure!(view.protections(view.executable()?) == protections, "protections differ after it was put back");
        let executable = view.executable()?;
        let files = |view: &View| {
            let mine = view.space.mappings().iter().filter(|m| m.path() == Some(&executable.path));
            mine.map(|m| m.range.len()).sum::<u64>()
        };
        ensure!(files(&view) == files(&before), "round {round}: not all of the file is mapped again");
        view.check_read_only_contents(executable)?;
        if round == 0 {
            t.note(format!("{} MiB lifted", lifted >> 20));
        }
    }
    ensure!(process_field(session.pid(), "TracerPid").as_deref() == Some("0"), "it is still traced");
    end(t, session)
}

/// If the program itself unmaps memory during a lift, the lift reports no fault.
fn shrinking_heap(t: &Context) -> Result<()> {
    let session = begin(t, Program::named("attach/shrinks_its_heap.c")?.command()?)?;
    for _ in 0..25 {
        let said = pagelift(t, &["attach", "--pages", "thp", &session.pid().to_string()])?;
        ensure!(!said.contains("FAULT"), "{said}");
    }
    end(t, session)
}

/// Kills lifts at moments spread over their duration.
fn killed(t: &Context, pages: &str) -> Result<()> {
    let mut command = Program::named(PROGRAM)?.command()?;
    command.env("FORGIVE_EINTR", "1");
    let session = begin(t, command)?;
    let resident = || process_field(session.pid(), "VmRSS").and_then(|kb| kb.split(' ').next()?.parse::<u64>().ok());
    let before = resident().context("its size")?;
    let pid = session.pid().to_string();
    for round in 0..120u64 {
        let words: &[&str] = if round % 3 == 2 { &["detach", "-q"] } else { &["attach", "-q", "--pages", pages] };
        let mut command = t.pagelift(words)?;
        command.arg(&pid).stderr(Stdio::null());
        let mut child = command.spawn()?;
        // A multiplicative sequence reaches every part of the time that a lift takes.
        sleep(Duration::from_micros(round * 7919 % 16000));
        child.kill().ok();
        child.wait()?;
        ensure!(fs::exists(format!("/proc/{pid}"))?, "the program has ended after round {round}");
    }
    pagelift(t, &["attach", "--pages", "thp", &pid])?;
    pagelift(t, &["detach", &pid])?;
    // A lift removes the staging copies that killed lifts have noted; each takes several MiB.
    let grown = resident().context("its size")?.saturating_sub(before) >> 10;
    ensure!(grown < 40, "{grown} MiB were left behind");
    end(t, session)
}

/// Calls end only for the program's own signals.
fn interrupted(t: &Context, program: &str) -> Result<()> {
    let session = begin(t, Program::named(&format!("attach/{program}.c"))?.command()?)?;
    let pid = session.pid().to_string();
    for _ in 0..20 {
        pagelift(t, &["attach", "--pages", "thp", &pid])?;
        pagelift(t, &["detach", &pid])?;
    }
    end(t, session)
}

/// A signal that arrives while the only thread makes calls for Pagelift has its usual effect on the thread's own call:
/// the call ends, or continues.
fn signalled(t: &Context, call: &str) -> Result<()> {
    const SIGNALS: usize = 8;
    // Beside other work, most stops are over before they are seen.
    const ATTEMPTS: usize = 4000;
    let limit = Duration::from_secs(120);
    let number = match call {
        "epoll_wait" => CALLS[0],
        "pause" => CALLS[1],
        _ => libc::SYS_read,
    };
    for signal in [Signal::SIGUSR1, Signal::SIGUSR2] {
        let mut command = Program::named("attach/waits_for_signals.c")?.command()?;
        command.arg(call).stdin(Stdio::piped());
        let mut session = t.session_within(command, Duration::from_secs(1800))?;
        session.wait_for_line("ready")?;
        let goes_on = call == "read" && signal == Signal::SIGUSR1;
        let mut sent = 0;
        for attempt in 0.. {
            // A signal that arrives before the call does not end it: its handler runs first.
            poll_until(limit, "its call", || sleeps_in(session.pid(), number))?;
            let words: &[&str] = if attempt % 2 == 0 { &["attach", "-q", "--pages", "thp"] } else { &["detach", "-q"] };
            sent += usize::from(signal_while_stopped(t, &session, words, signal)?);
            let count = |line: &str| session.stdout_so_far().lines().filter(|found| *found == line).count();
            poll_until(limit, "its handlers", || count(&format!("handled {signal}")) == sent)?;
            let ended = format!("{call} ended: -1, Interrupted system call");
            if goes_on {
                ensure!(count(&ended) == 0, "a read has ended although its signal restarts it");
            } else {
                let is_over = poll_until(limit, "the end of its call", || count(&ended) == sent);
                is_over.with_context(|| format!("{signal} number {sent} has not ended {call}"))?;
            }
            if sent == SIGNALS {
                break;
            }
            ensure!(attempt < ATTEMPTS, "{sent} of {ATTEMPTS} signals came while it was stopped; needed: {SIGNALS}");
        }
        if goes_on {
            session.send("x")?;
            session.wait_for_line("read ended: 1, no error")?;
            ensure!(!session.stdout_so_far().contains("-1"), "{}", session.stdout_so_far());
        }
        session.signal(Signal::SIGTERM)?;
        let output = session.finish()?.success()?;
        ensure!(output.stdout.ends_with("the end\n"), "{}", output.stdout);
    }
    Ok(())
}

/// Runs `pagelift` with these words, and sends the signal once the program is stopped. Returns false if no stop was
/// seen.
fn signal_while_stopped(t: &Context, session: &Session, words: &[&str], signal: Signal) -> Result<bool> {
    let mut command = t.pagelift(words)?;
    let mut lift = command.arg(session.pid().to_string()).spawn()?;
    let stat = format!("/proc/{}/stat", session.pid());
    let mut sent = false;
    while lift.try_wait()?.is_none() {
        if !sent && fs::read_to_string(&stat)?.contains(") t ") {
            session.signal(signal)?;
            sent = true;
        }
    }
    ensure!(lift.wait()?.success(), "{words:?} has failed");
    Ok(sent)
}

/// True if the only thread of a process sleeps in this call.
fn sleeps_in(pid: u32, number: i64) -> bool {
    fs::read_to_string(format!("/proc/{pid}/syscall")).is_ok_and(|call| call.starts_with(&format!("{number} ")))
}

/// A wait of a relative time continues with the remaining time, however often it is stopped. One program waits in each
/// call by a thread, the others by their only thread; all wait at the same time.
fn timed(t: &Context) -> Result<()> {
    let start = |words: &[&str]| {
        let mut command = Program::named("attach/waits_for_twelve_seconds.c")?.command()?;
        command.args(words);
        t.session(command)
    };
    let programs = [&[][..], &["epoll_wait"], &["semtimedop"], &["sigtimedwait"]];
    let sessions = programs.into_iter().map(start).collect::<Result<Vec<_>>>()?;
    for session in &sessions {
        session.wait_for_line("eight seconds are over")?;
        let pid = session.pid().to_string();
        pagelift(t, &["attach", "--pages", "thp", &pid])?;
        pagelift(t, &["detach", &pid])?;
    }
    for (session, words) in sessions.into_iter().zip(programs) {
        let output = session.finish()?.success()?;
        t.keep(&output);
        let waits: Vec<&str> = output.stdout.lines().filter(|line| line.contains(" ended ")).collect();
        ensure!(!waits.is_empty() && output.stdout.ends_with("all right\n"), "{words:?}: {}", output.stdout);
        // If the kernel does not show when a thread fell asleep, a wait takes its whole time again after a stop.
        let shows_sleep = fs::exists("/proc/self/sched")?;
        let is_as_plain = |line: &&str| line.contains(" in time,") || !shows_sleep && line.contains(" late,");
        ensure!(waits.iter().all(is_as_plain), "{words:?}: {}", output.stdout);
    }
    Ok(())
}

/// A wait does not end early if its thread wakes up during an attach.
fn beside_ending_children(t: &Context) -> Result<()> {
    let mut session = begin(t, Program::named("attach/waits_beside_ending_children.c")?.command()?)?;
    let pid = session.pid().to_string();
    // The program may end before the last round.
    while !session.has_ended()? {
        for words in [&["attach", "--pages", "thp", &pid][..], &["detach", &pid]] {
            t.run(t.pagelift(words)?)?;
        }
    }
    let output = session.finish()?.success()?;
    t.keep(&output);
    ensure!(output.stdout.ends_with("all right\n"), "{}", output.stdout);
    Ok(())
}

/// The register with the argument for the time is unchanged after the wait.
fn own_wait(t: &Context) -> Result<()> {
    let session = begin(t, Program::named("attach/waits_by_a_function_of_its_own.c")?.command()?)?;
    let pid = session.pid().to_string();
    pagelift(t, &["attach", "--pages", "thp", &pid])?;
    let output = session.finish()?.success()?;
    t.keep(&output);
    ensure!(output.stdout.ends_with("all right\n"), "{}", output.stdout);
    Ok(())
}

/// The only thread waits in a call with a timeout: the call ends on time.
fn single_thread(t: &Context) -> Result<()> {
    let mut command = Program::named("start/pie_by_default.c")?.command()?;
    command.stdin(Stdio::piped());
    let mut session = t.session(command)?;
    session.wait_for_line("ready")?;
    let pid = session.pid().to_string();
    for _ in 0..10 {
        pagelift(t, &["attach", "--pages", "thp", &pid])?;
        pagelift(t, &["detach", &pid])?;
    }
    session.send("\n")?;
    session.finish()?.success()?;
    let mut sleeper = Command::new("sleep");
    // Longer than a lift can take on a busy machine.
    sleeper.arg("8");
    let session = t.session(sleeper)?;
    let pid = session.pid().to_string();
    poll_until(Duration::from_secs(120), "its sleep", || sleeps_in(session.pid(), libc::SYS_clock_nanosleep))?;
    pagelift(t, &["attach", "--objects", "all", &pid])?;
    let output = session.finish()?.success()?;
    // No upper bound: the session has its own time limit, and the delay depends on the machine.
    ensure!(output.took.as_secs_f64() > 7.99, "slept {:?} instead of 8 s", output.took);
    Ok(())
}

/// A kernel worker cannot make calls for Pagelift. The program's own PR_SET_THP_DISABLE is only suspended.
fn kernel_worker(t: &Context) -> Result<()> {
    let mut session = begin(t, Program::named("attach/has_a_kernel_worker.c")?.command()?)?;
    let pid = session.pid().to_string();
    let tasks = fs::read_dir(format!("/proc/{pid}/task"))?.count();
    ensure!(tasks == 2, "{tasks} threads; needed: the program's own and one of the kernel");
    for _ in 0..20 {
        pagelift(t, &["attach", "--pages", "thp", &pid])?;
        let view = View::of(session.pid())?;
        check_lifted(&view, view.executable()?, &[Kind::Text], default_huge_page()?, |_| source_of("thp", false))?;
        let thp = process_field(session.pid(), "THP_enabled");
        ensure!(thp.as_deref().is_none_or(|thp| thp == "0"), "THP_enabled: {thp:?}");
        pagelift(t, &["detach", &pid])?;
    }
    session.send("\n")?;
    let output = session.finish()?.success()?;
    ensure!(output.stdout.ends_with("read x by 1, transparent huge pages off\n"), "{}", output.stdout);
    Ok(())
}

/// Kills a lift while the program's own PR_SET_THP_DISABLE is suspended: restoring the program restores that, too.
fn kernel_worker_of_a_killed_lift(t: &Context) -> Result<()> {
    const ROUNDS: u32 = 300;
    let mut session = begin(t, Program::named("attach/has_a_kernel_worker.c")?.command()?)?;
    let pid = session.pid().to_string();
    let is_suspended = || process_field(session.pid(), "THP_enabled").as_deref() == Some("1");
    let mut killed = 0;
    for _ in 0..ROUNDS {
        let mut lift = t.pagelift(&["attach", "-q", "--pages", "thp", &pid])?.spawn()?;
        while !is_suspended() && lift.try_wait()?.is_none() {}
        lift.kill()?;
        lift.wait()?;
        killed += u32::from(is_suspended());
        pagelift(t, &["detach", &pid])?;
        ensure!(!is_suspended(), "the program's own PR_SET_THP_DISABLE is lost after {killed} killed lifts");
        if killed == 5 {
            break;
        }
    }
    ensure!(killed > 0, "none of {ROUNDS} lifts was killed in the moments that are meant");
    session.send("\n")?;
    let output = session.finish()?.success()?;
    ensure!(output.stdout.ends_with("read x by 1, transparent huge pages off\n"), "{}", output.stdout);
    Ok(())
}

fn refused(t: &Context) -> Result<()> {
    let gone = t.run(t.pagelift(&["attach", "4194000"])?)?;
    ensure!(gone.stderr.contains("no process"), "{}", gone.stderr);
    let session = start(t)?;
    let pid = session.pid().to_string();
    let worker = fs::read_dir(format!("/proc/{pid}/task"))?.flatten().map(|thread| thread.file_name());
    let worker = worker.filter_map(|name| name.into_string().ok()).find(|name| *name != pid).context("a worker")?;
    for traced in [["-f", &pid], ["-q", &worker]] {
        let mut strace = Command::new("strace");
        strace.args(["-o", "/dev/null", traced[0], "-p", traced[1]]);
        let strace = t.session(strace)?;
        let tracer = strace.pid().to_string();
        let thread = traced[1].parse()?;
        let is_there = || process_field(thread, "TracerPid").as_deref() == Some(&tracer);
        poll_until(Duration::from_secs(120), "strace", is_there)?;
        // Writable memory is collapsed without a stop.
        let refused = t.run(t.pagelift(&["attach", "--pages", "thp", "--lift=text", &pid])?)?;
        let why = format!("process {tracer} (strace) traces it already");
        ensure!(refused.stderr.contains(&why), "{}", refused.stderr);
        strace.signal(Signal::SIGINT)?;
        strace.finish()?;
    }
    let view = View::of(session.pid())?;
    check_unlifted(&view, view.executable()?)?;
    drop(session);
    Ok(())
}

/// A static program has one executable segment, and the lifter's code follows it; with merged read-only data, the page
/// of that code is part of the range. The lifter writes a return address there for each call; this is not a change by
/// the program.
fn over_own_code(t: &Context) -> Result<()> {
    let mut command = Program::named("measuring/uses_known_pages.c")?.command()?;
    command.arg("500");
    let session = begin(t, command)?;
    let (pid, huge_page) = (session.pid().to_string(), default_huge_page()?);
    for _ in 0..3 {
        let words = ["attach", "--pages=thp", "--lift=text,rodata", "--edges=merge-read-only", &pid];
        let line = pagelift(t, &words)?;
        let view = View::of(session.pid())?;
        let code = || view.usages.iter().filter(|usage| usage.mapping.protection.execute);
        let whole: u64 = code().map(|usage| usage.mapping.range.whole_pages(huge_page).len()).sum();
        let huge: u64 = code().map(|usage| usage.huge()).sum();
        ensure!(whole > 0 && huge == whole, "{huge} of {whole} bytes of code are on huge pages: {line}");
        let line = pagelift(t, &["detach", &pid])?;
        ensure!(View::of(session.pid())?.huge_bytes() == 0, "{line}");
    }
    session.finish()?.success().map(drop)
}

fn all_of_a_name(t: &Context) -> Result<()> {
    // A name that no other test has: these would find their programs lifted, or restored.
    let name = "sleeping_twins";
    let program = t.folder().join(name);
    copy_program(t, &Program::named(PROGRAM)?.build()?, &program)?;
    let sessions = [begin(t, Command::new(&program))?, begin(t, Command::new(&program))?];
    pagelift(t, &["attach", "--pages", "thp", "--all", name])?;
    for session in &sessions {
        let view = View::of(session.pid())?;
        check_lifted(&view, view.executable()?, &[Kind::Text], default_huge_page()?, |_| source_of("thp", false))?;
    }
    pagelift(t, &["detach", "--all", name])?;
    sessions.into_iter().try_for_each(|session| end(t, session))
}

/// The second line has the memory that the first lift has put on huge pages.
fn twice(t: &Context) -> Result<()> {
    let session = start(t)?;
    let pid = session.pid().to_string();
    let words = ["attach", "--pages", "thp", "--lift", "text,rodata", "--objects", "exe", &pid];
    let first = pagelift(t, &words)?;
    ensure!(first.contains(" pages (thp)"), "{first}");
    let again = pagelift(t, &words)?;
    ensure!(!again.contains(" pages (thp)"), "lifted again: {again}");
    // Since Linux 6.7 the kernel reports which pages are huge.
    let is_reported = Need::Kernel(6, 7).missing().is_none();
    ensure!(again.contains(" on huge pages before, nothing new") || !is_reported, "{again}");
    pagelift(t, &["detach", &pid])?;
    let restored = pagelift(t, &words)?;
    ensure!(restored.contains(" pages (thp)") && !restored.contains("nothing new"), "{restored}");
    end(t, session)
}

fn plan_only(t: &Context) -> Result<()> {
    let session = start(t)?;
    let pid = session.pid().to_string();
    let output = t.run(t.pagelift(&["attach", "--dry-run", "--pages", "thp", &pid])?)?.success()?;
    ensure!(output.stdout.contains("To be lifted"), "{}", output.stdout);
    let view = View::of(session.pid())?;
    check_unlifted(&view, view.executable()?)
}
