//! `pagelift stat`: its counts for programs with known pages, and its messages about processes that it cannot inspect.

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::fs;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};
use test_support::{Context, Ending, Need, Program, Session, copy_program, main_of, test_case};

/// Number of the user and the group `nobody`.
const NOBODY: u32 = 65534;
/// Pages that the program uses, as in `uses_known_pages.c`: more than TLBs have entries.
const CODE: u64 = 3000;
const HEAP: u64 = 12_000;
const SHARED: u64 = 4000;
/// Limit of measurements until the program has run during one.
const ATTEMPTS: u32 = 30;
/// Pages of libraries, stack and the C library's heap that a loop with one system call may use.
const OTHERS: u64 = 120;

fn main() -> ExitCode {
    let gcc = || vec![Need::Command("gcc".into())];
    main_of(vec![
        test_case("known_pages_are_counted", gcc(), known_pages),
        test_case("an_ordinary_user_sees_his_own_process", [gcc(), vec![Need::Root]].concat(), ordinary_user),
        test_case("what_would_take_too_long_is_left_out", gcc(), left_out),
        test_case("contents_are_untouched_and_no_rights_are_kept", gcc(), untouched),
        test_case("a_process_that_ends_is_said", vec![], ends),
        test_case("processes_that_cannot_be_looked_at", vec![], refusals),
        test_case("a_command_keeps_its_status", vec![], status),
        test_case("a_command_is_measured_for_a_time_and_runs_on", vec![], for_a_time),
        test_case("a_command_gets_signals", vec![], signals),
        test_case("a_command_ignores_what_was_ignored", vec![], ignored_signals),
        test_case("a_command_is_counted", vec![Need::Command("python3".into())], command),
        test_case("the_machine_is_counted", vec![], machine),
        test_case("page_walks_are_counted_or_the_reason_is_said", vec![], page_walks),
    ])
}

fn started(t: &Context) -> Result<Session> {
    // A separate copy: the end of another process that maps the file would mark its pages, and whole large folios.
    let program = t.folder().join("uses_known_pages");
    copy_program(t, &Program::named("measuring/uses_known_pages.c")?.build()?, &program)?;
    let mut command = Command::new(program);
    command.arg(HEAP.to_string());
    let session = t.session(command)?;
    session.wait_for_line("ready")?;
    Ok(session)
}

fn stat(t: &Context, pid: u32, more: &[&str]) -> Result<Value> {
    let pid = pid.to_string();
    let output = t.run(t.pagelift(&[&["stat", "--json", "--for", "1.2", "-p", &pid], more].concat())?)?.success()?;
    serde_json::from_str(&output.stdout).with_context(|| output.stdout.clone())
}

/// Marked pages of a kind at the last point of the curve.
fn marked(report: &Value, part: &str) -> Result<u64> {
    let curve = report["marks"]["measured"]["working_set"]["curve"].as_array();
    let last = curve.and_then(|curve| curve.last()).with_context(|| format!("no curve: {}", report["marks"]))?;
    last["parts"][part]["pages"]["most"].as_u64().with_context(|| format!("no {part}: {last}"))
}

/// Checks a count with a tolerance. Use of a page whose translation stays in the TLB sets no mark: up to 10 % of the
/// pages if nothing flushes the TLB, since the program uses more pages than the TLB holds (2,990 of 3,000 were seen).
fn within(what: &str, pages: u64, expected: u64) -> Result<()> {
    ensure!(
        (expected - expected / 10..=expected + OTHERS).contains(&pages),
        "{what}: {pages} pages instead of {expected}"
    );
    Ok(())
}

/// Measures until the program has run long enough to use all of its pages: on a busy machine it may get no CPU between
/// a clear and a reading.
fn stat_while_it_runs(t: &Context, pid: u32, more: &[&str]) -> Result<Value> {
    const CPU_SECONDS: f64 = 0.05;
    for _ in 0..ATTEMPTS {
        let report = stat(t, pid, more)?;
        let curve = report["marks"]["measured"]["working_set"]["curve"].as_array();
        let last = curve.and_then(|curve| curve.last()).with_context(|| format!("no curve: {}", report["marks"]))?;
        if last["cpu"].as_f64().context("no CPU time")? >= CPU_SECONDS {
            return Ok(report);
        }
        t.note(format!("the program had {} s of CPU time in {} s", last["cpu"], last["longest"]));
    }
    anyhow::bail!("in {ATTEMPTS} measurements the program never had {CPU_SECONDS} s of CPU time")
}

/// As many idle pages as used ones are beside them, and are not counted.
fn known_pages(t: &Context) -> Result<()> {
    let session = started(t)?;
    let report = stat_while_it_runs(t, session.pid(), &[])?;
    within("heap", marked(&report, "anonymous")?, HEAP)?;
    within("code", marked(&report, "code")?, CODE)?;
    within("shared memory", marked(&report, "shared")?, SHARED)?;
    let verdicts = report["marks"]["measured"]["verdicts"].as_array().context("no verdicts")?;
    let heap = verdicts.iter().find(|verdict| verdict["part"] == "anonymous").context("no verdict on the heap")?;
    ensure!(heap["verdict"] == "exceeds" || report["tlb"]["levels"] == Value::Array(Vec::new()), "{heap}");
    if cfg!(target_arch = "x86_64") {
        let bound =
            |report: &Value| report["marks"]["measured"]["working_set"]["walks"]["walks"].as_u64().context("no bound");
        // If others had the CPU during a window, the program used fewer pages.
        let mut walks = bound(&report)?;
        for _ in 1..ATTEMPTS {
            if walks <= HEAP / 2 {
                walks = bound(&stat_while_it_runs(t, session.pid(), &[])?)?;
            }
        }
        ensure!(walks > HEAP / 2, "only {walks} walks");
    }
    ensure!(report["activity"]["measured"]["user_seconds"].as_f64().unwrap_or(0.0) > 0.05, "{}", report["activity"]);
    let verdict = "huge pages for it may gain";
    let mut text = String::new();
    for _ in 0..ATTEMPTS {
        text = t.run(t.pagelift(&["stat", "--for", "1", "-p", &session.pid().to_string()])?)?.success()?.stdout;
        if text.contains(verdict) {
            break;
        }
    }
    for wanted in ["page faults", "heap (mmap), bss", "shared ", "500 ms", verdict, "cost: its memory map was held"] {
        ensure!(text.contains(wanted), "no {wanted:?} in:\n{text}");
    }
    session.finish()?.success()?;
    Ok(())
}

fn ordinary_user(t: &Context) -> Result<()> {
    let mut sleeper = Command::new("sleep");
    sleeper.arg("60").uid(NOBODY).gid(NOBODY).current_dir("/");
    let own = t.session(sleeper)?;
    let as_nobody = |pid: u32| -> Result<_> {
        let pid = pid.to_string();
        let mut command = t.pagelift(&["stat", "--for", "0.5", "--json", "-p", &pid])?;
        command.uid(NOBODY).gid(NOBODY).current_dir("/");
        t.run(command)
    };
    let report: Value = serde_json::from_str(&as_nobody(own.pid())?.success()?.stdout)?;
    ensure!(report["marks"]["measured"].is_object() && report["coverage"]["measured"].is_object(), "{report}");
    let foreign = started(t)?;
    let output = as_nobody(foreign.pid())?;
    let report: Value = serde_json::from_str(&output.success()?.stdout)?;
    let why = report["marks"]["not_measured"].as_str().context("marks of another user's process were cleared")?;
    ensure!(why.contains("sudo pagelift stat -p"), "{why}");
    own.signal(Signal::SIGKILL)?;
    foreign.finish()?.success()?;
    Ok(())
}

fn left_out(t: &Context) -> Result<()> {
    let session = started(t)?;
    let report = stat_while_it_runs(t, session.pid(), &["--stall", "1ms"])?;
    let set = &report["marks"]["measured"]["working_set"];
    ensure!(set["cleared"] == "files" && set["left_out"]["anonymous"].as_u64() > Some(HEAP * 4096), "{set}");
    ensure!(set["walks"].is_null() && set["curve"][0]["parts"]["anonymous"].is_null(), "{set}");
    within("code", marked(&report, "code")?, CODE)?;
    let pid = session.pid().to_string();
    let text = t.run(t.pagelift(&["stat", "--for", "0.5", "--stall", "1ms", "-p", &pid])?)?.success()?.stdout;
    ensure!(text.contains("left out: ") && text.contains("; fix: --stall "), "{text}");
    let none = stat(t, session.pid(), &["--stall", "0"])?;
    ensure!(none["marks"]["not_measured"] == "--stall 0", "{}", none["marks"]);
    session.finish()?.success()?;
    Ok(())
}

/// Soft-dirty bits (bit 55 of a pagemap entry) belong to checkpointing programs; clear_refs has another mode for them.
fn untouched(t: &Context) -> Result<()> {
    let mut session = t.session(Program::named("measuring/uses_known_pages.c")?.command()?)?;
    session.wait_for_line("ready")?;
    session.signal(Signal::SIGSTOP)?;
    let state = |session: &Session| -> Result<(Vec<u64>, Vec<u8>)> {
        let maps = fs::read_to_string(format!("/proc/{}/maps", session.pid()))?;
        let stack = maps.lines().find(|line| line.ends_with("[stack]")).context("no stack")?;
        let (start, end) =
            stack.split_whitespace().next().and_then(|range| range.split_once('-')).context("no range")?;
        let (start, end) = (u64::from_str_radix(start, 16)?, u64::from_str_radix(end, 16)?);
        let read = |file: &str, at: u64, length: u64| -> Result<Vec<u8>> {
            use std::os::unix::fs::FileExt;
            let mut bytes = vec![0; length as usize];
            fs::File::open(format!("/proc/{}/{file}", session.pid()))?.read_exact_at(&mut bytes, at)?;
            Ok(bytes)
        };
        let entries = read("pagemap", start / 4096 * 8, (end - start) / 4096 * 8)?;
        let soft_dirty = |entry: &[u8]| u64::from_le_bytes(entry.try_into().unwrap_or_default()) >> 55 & 1;
        Ok((entries.chunks_exact(8).map(soft_dirty).collect(), read("mem", start, end - start)?))
    };
    let before = state(&session)?;
    stat(t, session.pid(), &[])?;
    ensure!(state(&session)? == before, "the stack or its soft-dirty bits have changed");
    session.signal(Signal::SIGCONT)?;
    ensure!(!session.has_ended()?, "it has ended");
    session.finish()?.success()?;
    Ok(())
}

fn ends(t: &Context) -> Result<()> {
    let mut sleeper = Command::new("sleep");
    sleeper.arg("1");
    let session = t.session(sleeper)?;
    let pid = session.pid().to_string();
    let measuring = t.session(t.pagelift(&["stat", "--for", "60", "-p", &pid])?)?;
    // The program is waited for late: a zombie has no memory, either.
    let slept = session.finish()?.success()?;
    let output = measuring.finish()?;
    let too_late = output.stderr.contains("no process has the number");
    ensure!(too_late || output.stdout.contains("(the process ended)"), "{output:?} after {slept:?}");
    Ok(())
}

fn refusals(t: &Context) -> Result<()> {
    let none = t.run(t.pagelift(&["stat", "-p", "2147483647"])?)?;
    ensure!(none.ending == Ending::Exit(125) && none.stderr.contains("`ps -e` lists them"), "{none:?}");
    // kthreadd.
    let kernel = t.run(t.pagelift(&["stat", "--for", "0.1", "-p", "2"])?)?;
    let said = kernel.stdout.contains("no user memory") || kernel.stderr.contains("no process has the number");
    ensure!(said || kernel.stdout.contains("sudo pagelift stat -p"), "{kernel:?}");
    let nothing = t.run(t.pagelift(&["stat"])?)?;
    ensure!(nothing.ending == Ending::Exit(125) && nothing.stderr.contains("Usage: pagelift stat"), "{nothing:?}");
    Ok(())
}

fn status(t: &Context) -> Result<()> {
    for (script, status) in [("exit 7", 7), ("exit 0", 0), ("kill -TERM $$", 143)] {
        let output = t.run(t.pagelift(&["stat", "--", "sh", "-c", script])?)?;
        ensure!(output.ending == Ending::Exit(status), "{script}: {output:?}");
        ensure!(output.stderr.contains("page faults") && output.stdout.is_empty(), "{script}: {output:?}");
    }
    let missing = t.run(t.pagelift(&["stat", "--", "/no/such/program"])?)?;
    ensure!(missing.ending == Ending::Exit(127) && missing.stderr.contains("cannot be executed"), "{missing:?}");
    Ok(())
}

fn for_a_time(t: &Context) -> Result<()> {
    let sleeper = t.run(t.pagelift(&["stat", "--for", "0.5", "--json", "--", "sleep", "6"])?)?.success()?;
    let report: Value = serde_json::from_str(&sleeper.stderr)?;
    ensure!(report["seconds"].as_f64().is_some_and(|seconds| seconds < 6.0), "{}", report["seconds"]);
    ensure!(report["ended_early"].is_null() && report["coverage"]["measured"].is_object(), "{report}");
    ensure!(report["activity"]["measured"]["minor_faults"].as_u64() > Some(0), "{}", report["activity"]);
    // The command waits for the report, and `stat` exits with the command's status.
    const WAITS: &str = "for i in $(seq 600); do test -s \"$0\" && exit 7; sleep 0.1; done; exit 9";
    let file = t.folder().join("report.json");
    let path = file.to_str().context("path")?;
    for lift in [&[][..], &["--lift"]] {
        let _ = fs::remove_file(&file);
        // The plain run of two has no report to wait for.
        let script = if lift.is_empty() { WAITS } else { "sleep 1; exit 7" };
        let words = [&["stat", "--for", "0.2", "--json", "-o", path], lift, &["--", "sh", "-c", script, path]].concat();
        let output = t.run(t.pagelift(&words)?)?;
        ensure!(output.ending == Ending::Exit(7), "{lift:?}: {output:?}");
    }
    let early = t.run(t.pagelift(&["stat", "--for", "60", "--", "sh", "-c", "exit 3"])?)?;
    ensure!(early.ending == Ending::Exit(3) && early.stderr.contains("(the command ended)"), "{early:?}");
    Ok(())
}

fn signals(t: &Context) -> Result<()> {
    const SCRIPT: &str = "trap 'echo told; exit 9' USR1 TERM; echo ready; while :; do sleep 0.05; done";
    for signal in [Signal::SIGUSR1, Signal::SIGTERM] {
        let session = t.session(t.pagelift(&["stat", "--", "sh", "-c", SCRIPT])?)?;
        session.wait_for_line("ready")?;
        kill(Pid::from_raw(session.pid() as i32), signal)?;
        let output = session.finish()?;
        ensure!(output.ending == Ending::Exit(9) && output.stdout == "ready\ntold\n", "{signal}: {output:?}");
    }
    Ok(())
}

/// Signals that are ignored at the start (nohup) are ignored by the command, too.
fn ignored_signals(t: &Context) -> Result<()> {
    const SCRIPT: &str = "trap '' HUP; exec \"$0\" stat -- grep SigIgn /proc/self/status";
    let mut command = Command::new("sh");
    command.args(["-c", SCRIPT]).arg(test_support::pagelift_binary()?);
    let output = t.run(command)?.success()?;
    let mask = output.stdout.trim().rsplit('\t').next().and_then(|mask| u64::from_str_radix(mask, 16).ok());
    ensure!(mask.is_some_and(|mask| mask & 1 == 1), "SIGHUP is not ignored: {output:?}");
    Ok(())
}

/// Works for four seconds on 32 MiB, with each page faulted in; standard output has only the command's output.
fn command(t: &Context) -> Result<()> {
    const WORK: &str = "import time, sys
memory = bytearray(32 << 20)
end = time.monotonic() + 4
while time.monotonic() < end:
    for at in range(0, len(memory), 4096): memory[at] = 1
print('done')";
    let file = t.folder().join("report.json");
    let path = file.to_str().context("path")?;
    let output = t.run(t.pagelift(&["stat", "--json", "-o", path, "--", "python3", "-c", WORK])?)?.success()?;
    ensure!((output.stdout.as_str(), output.stderr.as_str()) == ("done\n", ""), "{output:?}");
    let report: Value = serde_json::from_str(&fs::read_to_string(file)?)?;
    let activity = &report["activity"]["measured"];
    ensure!(
        activity["minor_faults"].as_u64() > Some(100) && activity["user_seconds"].as_f64() > Some(0.2),
        "{activity}"
    );
    let resident = report["coverage"]["measured"]["resident"].as_u64();
    ensure!(resident > Some(32 << 20), "{}", report["coverage"]);
    // A round after the first, which includes the start; a round that was cut by the end is not shown.
    let set = &report["marks"]["measured"]["working_set"];
    let (rounds, curve) = (set["rounds"].as_array().context("rounds")?, set["curve"].as_array().context("curve")?);
    let most = rounds.iter().filter_map(|round| round["readings"].as_array()).map(Vec::len).max();
    ensure!(rounds.len() >= 2 && curve.len() >= 2 && Some(curve.len()) == most, "{set}");
    ensure!(rounds.iter().any(|round| round["begun"] == set["begun"]), "{set}");
    Ok(())
}

fn machine(t: &Context) -> Result<()> {
    let output = t.run(t.pagelift(&["stat", "-a", "--for", "0.5", "--json"])?)?.success()?;
    let report: Value = serde_json::from_str(&output.stdout)?;
    ensure!(report["activity"]["measured"]["minor_faults"].is_u64() && report["marks"].is_null(), "{report}");
    Ok(())
}

/// No number is printed if there was no count.
fn page_walks(t: &Context) -> Result<()> {
    let output = t.run(t.pagelift(&["stat", "--json", "--", "true"])?)?.success()?;
    let report: Value = serde_json::from_str(&output.stderr)?;
    match report["page_walks"]["not_measured"].as_str() {
        Some(why) => ensure!(why.contains("; needed: ") && why.contains("; fix: ") || why.contains("; fix: "), "{why}"),
        None => {
            let cores = report["page_walks"]["measured"].as_array().context("neither counts nor a reason")?;
            for event in cores.iter().flat_map(|core| core["counts"]["events"].as_array().into_iter().flatten()) {
                ensure!(event["counted"].is_object() || event["not_counted"].is_string(), "{event}");
            }
        }
    }
    Ok(())
}
