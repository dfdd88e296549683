//! Quiet starts: a program that the kernel maps by huge pages by itself is not traced.

use crate::files::{own_copy, prepared};
use crate::{check_all_from_file, end, start};
use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs;
use std::process::Command;
use test_support::{Context, Need, Program, Session, Test, View, make_small, process_field, test_case, tracer_of};

const QUIET: [&str; 5] = ["-q", "--pages", "file", "--lift", "text,rodata"];

/// Moments at which a helper is killed; each is tried twice.
const KILLS: u32 = 40;

/// Programs whose addresses agree with their offsets wherever the kernel maps them.
const CONGRUENT: [&str; 2] = ["fixed_address_executable", "segments_aligned_to_huge_pages"];

pub fn tests(needs: fn() -> Vec<Need>) -> Vec<Test> {
    let with_strace = || [needs(), vec![Need::Command("strace".into())]].concat();
    let mut tests: Vec<Test> = Vec::new();
    for program in CONGRUENT {
        let name = format!("a_quiet_start_of_what_is_congruent_traces_nothing/{program}");
        tests.push(test_case(name, with_strace(), move |t| untraced(t, program)));
    }
    tests.extend([
        test_case("a_start_that_is_to_be_told_of_is_traced", with_strace(), told),
        test_case("a_quiet_start_moves_the_base", needs(), moved),
        test_case("a_quiet_start_whose_helper_is_killed", needs(), killed),
        test_case("programs_that_end_or_execute_again_at_once_after_a_quiet_start", needs(), soon_over),
    ]);
    tests
}

/// Starts a program under strace. Returns it once it is ready, and the calls of the start for tracing and new
/// processes.
fn traced(t: &Context, command: &Command) -> Result<(Session, String)> {
    let log = t.folder().join("strace.log");
    // The tracer is a grandchild, so that the program has the number of the process that was started.
    let mut strace = Command::new("strace");
    strace.args(["-D", "-f", "-qq", "-e", "trace=ptrace,clone,fork,vfork", "-o"]).arg(&log);
    strace.arg(command.get_program()).args(command.get_args());
    let session = t.session(strace)?;
    session.wait_for_line("ready")?;
    Ok((session, fs::read_to_string(log)?))
}

/// A start whose only program needs nothing is a plain exec: no helper, no tracing.
fn untraced(t: &Context, program: &str) -> Result<()> {
    let path = own_copy(t, program)?;
    make_small(&path)?;
    let _held = prepared(t, std::slice::from_ref(&path), 100)?;
    let (session, calls) = traced(t, &t.lifted(&QUIET, &Command::new(&path))?)?;
    ensure!(!calls.contains("ptrace(") && !calls.contains("clone("), "{calls}");
    is_all_of_file_once_read(&session, &path)?;
    end(session)
}

/// A start with output tries to seize the program; here strace already traces it, so the attempt fails.
fn told(t: &Context) -> Result<()> {
    let path = own_copy(t, CONGRUENT[0])?;
    let (session, calls) = traced(t, &t.lifted(&QUIET[1..], &Command::new(&path))?)?;
    ensure!(calls.contains("ptrace(PTRACE_SEIZE"), "{calls}");
    end(session)
}

fn moved(t: &Context) -> Result<()> {
    let path = own_copy(t, "pie_by_default")?;
    let _held = prepared(t, std::slice::from_ref(&path), 100)?;
    for _ in 0..3 {
        let session = start(t, &QUIET, &path)?;
        ensure!(process_field(session.pid(), "TracerPid").as_deref() == Some("0"), "it is traced");
        let copied = copied_of_vdso(&session)?;
        ensure!(copied == "0 kB", "{copied} of the vDSO are its own");
        is_all_of_file_once_read(&session, &path)?;
        end(session)?;
    }
    Ok(())
}

/// Size of the private copies of vDSO pages.
fn copied_of_vdso(session: &Session) -> Result<String> {
    let smaps = fs::read_to_string(format!("/proc/{}/smaps", session.pid()))?;
    let (_, of_vdso) = smaps.split_once("[vdso]").context("no vDSO")?;
    let anonymous = of_vdso.lines().find_map(|line| line.strip_prefix("Anonymous:")).context("no sum")?;
    Ok(anonymous.trim().to_owned())
}

/// The helper may be killed at any moment.
fn killed(t: &Context) -> Result<()> {
    let path = own_copy(t, "pie_by_default")?;
    let _held = prepared(t, std::slice::from_ref(&path), 100)?;
    let (mut kills, mut round) = (0, 0);
    // On a busy machine, each helper may end before it is found.
    while round < KILLS * 2 || kills == 0 && round < KILLS * 20 {
        let session = t.session(t.lifted(&QUIET, &Command::new(&path))?)?;
        let tracer = || tracer_of(session.pid());
        let said = || session.stdout_so_far().contains("ready");
        while tracer().is_none() && !said() {}
        // If the helper has done its work, there is none to kill.
        for _ in 0..round % KILLS {
            tracer();
        }
        if let Some(helper) = tracer() {
            kills += u32::from(kill(Pid::from_raw(helper), Signal::SIGKILL).is_ok());
        }
        session.wait_for_line("ready")?;
        end(session)?;
        round += 1;
    }
    t.note(format!("{kills} helpers killed in {round} starts"));
    ensure!(kills > 0, "no helper was there to be killed");
    Ok(())
}

fn soon_over(t: &Context) -> Result<()> {
    for program in ["exits_at_start", "executes_again_at_start", "crashes_at_start", "killed_at_start"] {
        let path = Program::named(&format!("start/{program}.c"))?.build()?;
        let plain = t.run(Command::new(&path))?;
        let quiet = t.run(t.lifted(&QUIET, &Command::new(&path))?)?;
        ensure!(
            (&quiet.ending, &quiet.stdout) == (&plain.ending, &plain.stdout),
            "{program}: {quiet:?}, plain {plain:?}"
        );
    }
    Ok(())
}

/// Checks the pages after a read from outside, which maps them, too.
fn is_all_of_file_once_read(session: &Session, path: &std::path::Path) -> Result<()> {
    let view = View::of(session.pid())?;
    view.check_read_only_contents(view.executable().context("no executable")?)?;
    check_all_from_file(session, path)
}
