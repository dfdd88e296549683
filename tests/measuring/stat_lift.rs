//! `pagelift stat --lift`: plain and lifted side by side, and the process left as it was found; `inspect --used`: the
//! same verdict.

use anyhow::{Context as _, Result, bail, ensure};
use nix::sys::signal::Signal;
use serde_json::Value;
use std::process::{Command, ExitCode};
use std::time::Duration;
use test_support::{Context, Ending, Need, Program, Session, View, copy_program, main_of, poll_until, test_case};

/// Pages of code that the program uses, as in `uses_known_pages.c`, less 10 %: if nothing flushes the TLB, pages whose
/// translations stay there get no mark.
const CODE: u64 = 3000 - 300;
/// CPU time in which the program uses all of its pages, in seconds, as in `stat.rs`.
const CPU_SECONDS: f64 = 0.05;
/// Limit of measurements until the program has had that time during one.
const ATTEMPTS: u32 = 30;

fn main() -> ExitCode {
    let gcc = || vec![Need::Command("gcc".into())];
    let lifts = || [gcc(), vec![Need::Thp]].concat();
    main_of(vec![
        test_case("a_process_is_measured_plain_and_lifted_and_put_back", lifts(), process),
        test_case("an_interruption_puts_it_back", lifts(), interrupted),
        test_case("one_that_was_lifted_is_left_lifted", lifts(), lifted_before),
        test_case("it_is_kept_lifted_on_request", lifts(), kept),
        test_case("one_in_vfork_is_switched_when_it_can_be_stopped", lifts(), in_vfork),
        test_case("a_command_is_run_twice", lifts(), command),
        test_case("what_cannot_be_put_back_is_refused", gcc(), refused),
        test_case("inspect_gives_the_verdict_of_stat", gcc(), inspected),
        test_case("inspect_counts_no_file", vec![], no_process),
    ])
}

/// Starts a separate copy: the end of another process that maps the file would mark its pages.
fn started(t: &Context) -> Result<Session> {
    let program = t.folder().join("uses_known_pages");
    copy_program(t, &Program::named("measuring/uses_known_pages.c")?.build()?, &program)?;
    let mut command = Command::new(program);
    command.arg("1000");
    let session = t.session(command)?;
    session.wait_for_line("ready")?;
    Ok(session)
}

fn lifting(t: &Context, session: &Session, more: &[&str]) -> Result<Command> {
    let pid = session.pid().to_string();
    t.pagelift(&[&["stat", "--lift", "--pages=thp", "-p", &pid], more].concat())
}

fn is_plain(session: &Session) -> Result<()> {
    let huge = View::of(session.pid())?.huge_bytes();
    ensure!(huge == 0, "{huge} bytes are on huge pages still");
    Ok(())
}

/// The longest time of a report.
fn longest(report: &Value) -> Result<&Value> {
    let curve = report["marks"]["measured"]["working_set"]["curve"].as_array();
    curve.and_then(|curve| curve.last()).with_context(|| format!("no curve: {report}"))
}

/// Pages of code with page walks during the longest time of a report.
fn code(report: &Value) -> Result<u64> {
    let last = longest(report)?;
    last["parts"]["code"]["pages"]["most"].as_u64().with_context(|| format!("no code: {last}"))
}

/// Runs a command until the program has had enough CPU time in these reports of its output: on a busy machine it may get
/// no CPU between a clear and a reading.
fn while_it_runs<const N: usize>(
    t: &Context,
    command: impl Fn() -> Result<Command>,
    reports: impl Fn(&Value) -> [&Value; N],
) -> Result<Value> {
    for _ in 0..ATTEMPTS {
        let printed: Value = serde_json::from_str(&t.run(command()?)?.success()?.stdout)?;
        let mut has_run = true;
        for report in reports(&printed) {
            let cpu = longest(report)?["cpu"].as_f64().context("no CPU time")?;
            t.note(format!("the program had {cpu} s of CPU time"));
            has_run &= cpu >= CPU_SECONDS;
        }
        if has_run {
            return Ok(printed);
        }
    }
    bail!("in {ATTEMPTS} measurements the program never had {CPU_SECONDS} s of CPU time")
}

/// The reports of both sides.
fn sides(compared: &Value) -> [&Value; 2] {
    [&compared["plain"], &compared["lifted"]["measured"]["report"]]
}

fn process(t: &Context) -> Result<()> {
    let session = started(t)?;
    let compared = while_it_runs(t, || lifting(t, &session, &["--for", "1.2", "--json"]), sides)?;
    is_plain(&session)?;
    let [plain, lifted] = sides(&compared);
    let (before, after) = (code(plain)?, code(lifted)?);
    // Both edges, which fill no whole huge page, stay on base pages.
    ensure!(before >= CODE && after < before / 2, "{before} pages plain, {after} lifted");
    let huge = |report: &Value| report["coverage"]["measured"]["huge"].as_array().map(|sizes| sizes.len());
    ensure!(huge(plain) == Some(0) && huge(lifted) == Some(1), "{compared:#}");
    ensure!(compared["left"] == "plain", "{}", compared["left"]);
    let output = t.run(lifting(t, &session, &["--for", "0.5"])?)?.success()?;
    for wanted in ["lifted   change", "pages walked to within", "  code  ", "It is plain again.", "on huge pages"] {
        ensure!(output.stdout.contains(wanted), "no {wanted:?} in:\n{}", output.stdout);
    }
    session.finish()?.success()?;
    Ok(())
}

fn interrupted(t: &Context) -> Result<()> {
    let session = started(t)?;
    let plainly = t.session(lifting(t, &session, &["--for", "3600"])?)?;
    // The counters and marks are opened after the process is found plain.
    poll_until(Duration::from_secs(120), "the first window", || watches(&plainly, &session))?;
    plainly.signal(Signal::SIGINT)?;
    let output = plainly.finish()?.success()?;
    ensure!(output.stdout.contains("Not measured lifted: interrupted"), "{}", output.stdout);
    is_plain(&session)?;
    let measuring = t.session(lifting(t, &session, &["--for", "5"])?)?;
    let is_lifted = || View::of(session.pid()).is_ok_and(|view| view.huge_bytes() > 0);
    poll_until(Duration::from_secs(120), "the lift", is_lifted)?;
    measuring.signal(Signal::SIGTERM)?;
    let output = measuring.finish()?.success()?;
    ensure!(output.stdout.contains("It is plain again."), "{}", output.stdout);
    is_plain(&session)?;
    session.finish()?.success()?;
    Ok(())
}

/// True once the measuring process has opened the other process's `clear_refs`.
fn watches(measuring: &Session, session: &Session) -> bool {
    let wanted = format!("/proc/{}/clear_refs", session.pid());
    let open = std::fs::read_dir(format!("/proc/{}/fd", measuring.pid())).into_iter().flatten().flatten();
    open.filter_map(|entry| std::fs::read_link(entry.path()).ok()).any(|path| path.to_string_lossy() == wanted)
}

fn lifted_before(t: &Context) -> Result<()> {
    let session = started(t)?;
    let pid = session.pid().to_string();
    t.run(t.pagelift(&["attach", "--pages=thp", "--lift=text,rodata", &pid])?)?.success()?;
    let before = View::of(session.pid())?.huge_bytes();
    let output = t.run(lifting(t, &session, &["--for", "0.3"])?)?.success()?;
    ensure!(output.stdout.contains("It remains lifted"), "{}", output.stdout);
    let after = View::of(session.pid())?.huge_bytes();
    ensure!(before > 0 && after == before, "{before} bytes before, {after} after");
    session.finish()?.success()?;
    Ok(())
}

fn kept(t: &Context) -> Result<()> {
    let session = started(t)?;
    let output = t.run(lifting(t, &session, &["--keep", "--for", "0.3"])?)?.success()?;
    ensure!(output.stdout.contains("It remains lifted"), "{}", output.stdout);
    ensure!(View::of(session.pid())?.huge_bytes() > 0, "it is plain");
    session.finish()?.success()?;
    Ok(())
}

/// `attach` gives up before the child of vfork ends (`live_limits/in_vfork`).
fn in_vfork(t: &Context) -> Result<()> {
    let mut session = t.session(Program::named("attach/vforks.c")?.command()?)?;
    session.wait_for_line("ready")?;
    session.send("go on\n")?;
    let measuring = t.session(lifting(t, &session, &["--for", "0.1"])?)?;
    let is_lifted = || View::of(session.pid()).is_ok_and(|view| view.huge_bytes() > 0);
    poll_until(Duration::from_secs(120), "the lift", is_lifted)?;
    let output = measuring.finish()?.success()?;
    ensure!(output.stdout.contains("It is plain again."), "{}", output.stdout);
    is_plain(&session)?;
    session.send("\n")?;
    let output = session.finish()?.success()?;
    ensure!(output.stdout.ends_with("all right\n"), "{}", output.stdout);
    Ok(())
}

/// The program ends with its input, which is empty: both runs are short.
fn command(t: &Context) -> Result<()> {
    let program = Program::named("measuring/uses_known_pages.c")?.build()?;
    let mut command = t.pagelift(&["stat", "--lift", "--pages=thp", "--"])?;
    command.arg(&program).arg("1000").stdin(std::process::Stdio::null());
    let output = t.run(command)?.success()?;
    ensure!(output.stdout == "ready\nready\n", "{output:?}");
    ensure!(output.stderr.contains(" on 2 MiB pages (thp)") || !cfg!(target_arch = "x86_64"), "{}", output.stderr);
    ensure!(output.stderr.contains("CPU seconds") && output.stderr.contains("change"), "{}", output.stderr);
    let failing = t.run(t.pagelift(&["stat", "--lift", "--", "sh", "-c", "exit 7"])?)?;
    ensure!(failing.ending == Ending::Exit(7), "{failing:?}");
    let missing = t.run(t.pagelift(&["stat", "--lift", "--", "/no/such/program"])?)?;
    ensure!(missing.ending == Ending::Exit(127) && missing.stdout.is_empty(), "{missing:?}");
    Ok(())
}

fn refused(t: &Context) -> Result<()> {
    let session = started(t)?;
    let pid = session.pid().to_string();
    let output = t.run(t.pagelift(&["stat", "--lift=text,data", "-p", &pid])?)?;
    ensure!(output.ending == Ending::Exit(125) && output.stderr.contains("data cannot be restored"), "{output:?}");
    is_plain(&session)?;
    session.finish()?.success()?;
    Ok(())
}

fn inspected(t: &Context) -> Result<()> {
    let session = started(t)?;
    let pid = session.pid().to_string();
    let inspected = while_it_runs(t, || t.pagelift(&["inspect", "--json", "--used", &pid]), |inspected| [inspected])?;
    ensure!(inspected["format"] == "pagelift-plan" && inspected["plan"].is_object(), "{inspected:#}");
    ensure!(code(&inspected)? >= CODE, "{}", inspected["marks"]);
    ensure!(inspected["marks"]["measured"]["working_set"]["cost"]["clears"] == 1, "{}", inspected["marks"]);
    let is_known = inspected["tlb"]["levels"] != Value::Array(Vec::new());
    let is_complete = |text: &str| !is_known || text.contains("huge pages for code may gain");
    let mut text = String::new();
    for _ in 0..ATTEMPTS {
        text = t.run(t.pagelift(&["inspect", "--used", &pid])?)?.success()?.stdout;
        if is_complete(&text) {
            break;
        }
    }
    ensure!(text.contains("cost: its memory map was held once") && text.contains("500 ms"), "{text}");
    ensure!(is_complete(&text), "{text}");
    let plain: Value = serde_json::from_str(&t.run(t.pagelift(&["inspect", "--json", &pid])?)?.success()?.stdout)?;
    ensure!(plain["marks"].is_null() && plain["tlb"].is_null(), "looked at without being asked to: {plain:#}");
    ensure!(plain["probe"].is_null(), "measured without being asked to: {plain:#}");
    for (command, hint) in [("inspect", "inspect --used"), ("doctor", "doctor --probe")] {
        let text = t.run(t.pagelift(&[command, &pid])?)?.stdout;
        ensure!(text.contains(&format!("`pagelift {hint} {pid}`")), "{text}");
    }
    probed(t, &pid)?;
    session.finish()?.success()?;
    Ok(())
}

/// The machine is measured, too. If that shows the TLB's reach, the verdict on the pages in use is based on it.
fn probed(t: &Context, pid: &str) -> Result<()> {
    let inspected = while_it_runs(t, || t.pagelift(&["inspect", "--json", "--probe", pid]), |inspected| [inspected])?;
    ensure!(code(&inspected)? >= CODE, "{}", inspected["marks"]);
    if let Some(why) = inspected["probe"]["not_measured"].as_str() {
        ensure!(why.contains("MiB") && inspected["tlb"]["measured"].is_null(), "{why}");
        return Ok(());
    }
    for side in ["data", "code"] {
        let measured = &inspected["probe"]["measured"][side];
        let base = measured["series"][0]["levels"].clone();
        let shows = base["walk"].is_number() && base["second_reach"].is_number();
        let held = &inspected["tlb"]["measured"][side];
        ensure!(held.is_number() == shows, "{held} of {base}");
    }
    let verdicts = inspected["marks"]["measured"]["verdicts"].as_array().context("no verdicts")?;
    let of_code = verdicts.iter().find(|verdict| verdict["part"] == "code").context("no verdict on code")?;
    ensure!(of_code["is_measured"] == inspected["tlb"]["measured"]["code"].is_number(), "{of_code}");
    Ok(())
}

fn no_process(t: &Context) -> Result<()> {
    let output = t.run(t.pagelift(&["inspect", "--used", "/bin/ls"])?)?;
    ensure!(output.ending == Ending::Exit(125), "{output:?}");
    ensure!(output.stderr.contains("/bin/ls is not a process") && output.stdout.is_empty(), "{output:?}");
    Ok(())
}
