//! `pagelift measure-lift`: a decision after any block, on programs whose gain is known.

use crate::LONG;
use anyhow::{Context as _, Result, bail, ensure};
use nix::sys::signal::Signal;
use serde_json::Value;
use std::fs;
use test_support::{Context, Need, Output, Program, Session, Skipped, Test, View, poll_until, test_case};

/// Measurements of a program, if the hypervisor or other processes disturb them.
const TRIES: usize = 4;

/// Decisions about neither side.
const OPEN: [&str; 2] = ["undecided", "control-differs"];

pub fn tests() -> Vec<Test> {
    let needs = || vec![Need::Command("gcc".into())];
    vec![
        test_case("sequence/ten_percent_more_are_kept", needs(), |t| {
            decides(t, Known { plain: 55_000, lifted: 50_000 })
        }),
        test_case("sequence/what_is_equal_is_not_kept", needs(), |t| {
            decides(t, Known { plain: 50_000, lifted: 50_000 })
        }),
        test_case("sequence/ten_percent_less_are_put_back", needs(), |t| {
            decides(t, Known { plain: 50_000, lifted: 55_000 })
        }),
        test_case("sequence/an_interruption_is_undecided", needs(), interrupted),
        test_case("sequence/what_fails_is_said", needs(), failures),
        test_case("sequence/forks_are_plain", [needs(), vec![Need::Root, Need::Thp]].concat(), forks),
    ]
}

/// CPU time of a unit of work in nanoseconds.
#[derive(Clone, Copy)]
struct Known {
    plain: u32,
    lifted: u32,
}

fn started(t: &Context, known: Known) -> Result<Session> {
    let mut command = Program::named("measuring/costs_more_on_a_signal.c")?.command()?;
    command.arg(t.folder().join("units")).args([known.plain, known.lifted].map(|price| price.to_string()));
    let session = t.session(command)?;
    session.wait_for_line("ready")?;
    Ok(session)
}

/// The words of a measurement that switches the program by signals.
fn words(t: &Context, pid: u32) -> Vec<String> {
    let switches = ["--toggle-with", "kill -USR1 {pid}", "kill -USR2 {pid}", "--window", "60ms", "--settle", "5ms"];
    let work = format!("cat '{}'", t.folder().join("units").display());
    let all = ["measure-lift"].into_iter().chain(switches).chain(["--work", &work]);
    all.map(str::to_owned).chain([pid.to_string()]).collect()
}

fn lines(text: &str) -> Result<Vec<Value>> {
    text.lines().map(|line| serde_json::from_str(line).with_context(|| line.to_owned())).collect()
}

/// True of a measurement that was given up since the hypervisor took CPU time in block after block.
fn is_disturbed(result: &Value, blocks: &[Value]) -> bool {
    let is_dropped = |line: &Value| !line["dropped"].is_null();
    let is_stolen = |line: &Value| line["dropped"]["reason"] == "steal";
    result["decision"] == "undecided" && blocks.last().is_some_and(is_dropped) && blocks.iter().any(is_stolen)
}

fn decides(t: &Context, known: Known) -> Result<()> {
    let program = started(t, known)?;
    let words = words(t, program.pid());
    let mut open = Vec::new();
    for _ in 0..TRIES {
        let output = t.run(t.pagelift(&words.iter().map(String::as_str).collect::<Vec<_>>())?)?.success()?;
        let lines = lines(&output.stdout)?;
        let (last, blocks) = lines.split_last().context("no line")?;
        if is_disturbed(&last["result"], blocks) {
            continue;
        }
        if is_as_known(known, last, blocks, &output)? {
            return Ok(());
        }
        open.push(last["result"].to_string());
    }
    ensure!(open.is_empty(), "nothing was decided in {TRIES} measurements: {open:?}");
    bail!(Skipped("the hypervisor takes more than 1 % of the CPUs' time".to_owned()))
}

/// Checks that the last line has a decision that the known prices permit, and that the other lines have its blocks. Returns
/// false if a difference was not decided on, as beside other processes.
fn is_as_known(known: Known, last: &Value, blocks: &[Value], output: &Output) -> Result<bool> {
    let result = &last["result"];
    let decision = result["decision"].as_str().with_context(|| last.to_string())?;
    let is_open = OPEN.contains(&decision);
    let permitted: &[&str] = if known.plain > known.lifted { &["keep"] } else { &["harm", "put-back"] };
    let is_permitted = is_open || permitted.contains(&decision);
    ensure!(is_permitted, "{decision}, needed one of {permitted:?}:\n{}", output.stdout);
    let of = |is_control: bool| blocks.iter().filter(|line| line["block"]["is_control"] == is_control).count();
    let dropped = blocks.iter().filter(|line| !line["dropped"].is_null()).count();
    ensure!(result["blocks"] == of(false) && result["controls"] == of(true), "{last}");
    ensure!(result["dropped"] == dropped && of(false) + of(true) + dropped == blocks.len(), "{last}");
    if decision == "keep" {
        let gain = result["gain"].as_array().context("no interval")?;
        let share = |index: usize| gain.get(index).and_then(Value::as_f64).unwrap_or(f64::NAN);
        ensure!(share(0) <= share(1) && share(1) <= share(2) && share(0) > 0.005, "{gain:?}");
        ensure!(result["log_evidence"].as_f64() >= Some(400_f64.ln()), "{last}");
    }
    Ok(known.plain == known.lifted || !is_open)
}

/// A supervisor without remaining time ends the measurement: the program is plain, and the last line reports no
/// decision.
fn interrupted(t: &Context) -> Result<()> {
    let program = started(t, Known { plain: 50_000, lifted: 50_000 })?;
    let words = [&["measure-lift", "--toggle-with", "touch on", "rm -f on"][..], &["--work", "date +%s%N"]].concat();
    let pid = program.pid().to_string();
    let mut command = t.pagelift(&[&words[..], &[&pid]].concat())?;
    command.current_dir(t.folder());
    let measuring = t.session(command)?;
    let (on, written) = (t.folder().join("on"), || measuring.stdout_so_far().lines().count() > 0);
    poll_until(LONG, "a block", written)?;
    measuring.signal(Signal::SIGTERM)?;
    let output = measuring.finish()?.success()?;
    let last = lines(&output.stdout)?.pop().context("no line")?;
    ensure!(last["result"]["decision"] == "undecided" && fs::metadata(on).is_err(), "{last}");
    Ok(())
}

/// A child forked while the process is lifted has its copies. It is restored, although it was forked after the start.
fn forks(t: &Context) -> Result<()> {
    let program = t.session(Program::named("measuring/forks_while_it_works.c")?.command()?)?;
    program.wait_for_line("ready")?;
    let pid = program.pid();
    let lift = ["measure-lift", "--pages", "thp", "--lift", "text,rodata", "--window", "50ms", "--settle", "5ms"];
    t.run(t.pagelift(&[&lift[..], &["--for", "3", &pid.to_string()]].concat())?)?.success()?;
    // From now on, children are forked from a plain process.
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))?;
    let forks = children.split_whitespace().map(str::parse).collect::<Result<Vec<u32>, _>>()?;
    ensure!(forks.len() > 5, "{} forks", forks.len());
    for pid in forks.into_iter().chain([pid]) {
        ensure!(View::of(pid)?.huge_bytes() == 0, "process {pid} has huge pages");
    }
    Ok(())
}

fn failures(t: &Context) -> Result<()> {
    let program = started(t, Known { plain: 50_000, lifted: 50_000 })?;
    let pid = program.pid().to_string();
    let run = |words: &[&str]| t.run(t.pagelift(&[&["measure-lift"], words].concat())?);
    let output = run(&["--toggle-with", "false", "true", "--work", "date +%s%N", &pid])?;
    let last = lines(&output.stdout)?.pop().context("no line")?;
    ensure!(last["failed"].as_str().is_some_and(|why| why.starts_with("false: ")), "{last}");
    ensure!(output.own_lines().iter().any(|line| line.contains("false: exit status: 1")), "{}", output.stderr);
    let output = run(&["--lift", "heap", "--work", "date +%s%N", &pid])?;
    ensure!(output.stderr.contains("stays on huge pages") && output.stdout.is_empty(), "{}", output.stderr);
    let output = run(&["--work", "date +%s%N", "2147483647"])?;
    ensure!(output.stderr.contains("process 2147483647 does not exist"), "{}", output.stderr);
    Ok(())
}
