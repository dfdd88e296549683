//! Rules with `keep = "if it pays"`, on programs whose gain is known.

use crate::machine::{LONG, Machine, Served};
use anyhow::{Context as _, Result, bail, ensure};
use nix::sys::signal::Signal;
use serde_json::Value;
use std::fs;
use test_support::{Context, CpuTimes, Session, Skipped, poll_until};

/// Steps of a unit of work: about 100 µs.
const STEPS: u32 = 100_000;
const LESS: u32 = 88_000;
/// Share of the CPUs' time that a hypervisor may take. If it takes more, the agent drops block after block.
const MOST_STOLEN: f64 = 0.01;

fn machine(t: &Context) -> Result<Machine<'_>> {
    let machine = Machine::new(t, "act", "")?;
    machine.write_rule_that_keeps("if it pays", "")?;
    Ok(machine)
}

/// Imports three copies of the measurement, as if from other boots, with this decision.
fn confirmed(t: &Context, machine: &Machine<'_>, decision: &str) -> Result<()> {
    let exported = machine.run_verdicts(&["export"])?;
    let mut record: Value = serde_json::from_str(&exported)?;
    let measurements = record["measurements"].as_array_mut().context("no measurements")?;
    let first = measurements.first().cloned().context("no measurement")?;
    measurements.extend(["second", "third", "fourth"].map(|boot| {
        let mut other = first.clone();
        other["boot"] = boot.into();
        other["decision"] = decision.into();
        other
    }));
    let file = t.folder().join("other-machines.jsonl");
    fs::write(&file, format!("{record}\n"))?;
    machine.run_verdicts(&["import", &file.display().to_string()]).map(drop)
}

/// Waits for the end of a program's measurement. Returns the agent's words about it. Skips the test if the measurement has come to
/// nothing while the hypervisor took too much CPU time.
fn measured(agent: &Session, served: &Served, begin: CpuTimes) -> Result<String> {
    let program = format!("costs_less_when_lifted[{}]", served.pid());
    let (decided, refused) = (format!(": measured {program}: "), format!(": not lifted {program}"));
    let words = || {
        let said = agent.stderr_so_far();
        // The last line may not be whole yet.
        let (whole, _) = said.rsplit_once('\n')?;
        let line = whole.lines().find(|line| line.contains(&decided) || line.contains(&refused))?;
        Some(line.split_once(&decided).map_or(line, |(_, words)| words).to_owned())
    };
    poll_until(LONG, "the end of the measurement", || words().is_some())?;
    let words = words().context("the measurement has not ended")?;
    let stolen = CpuTimes::now().stolen_since(begin);
    let is_nothing = words.starts_with("undecided") || words.contains(&refused);
    if is_nothing && stolen > MOST_STOLEN {
        bail!(Skipped(format!("the hypervisor took {:.0} % of the CPUs' time", stolen * 100.0)));
    }
    Ok(words)
}

/// A program that pays is lifted after its measurement; once the verdict is known, others are lifted without one.
pub fn what_pays(t: &Context) -> Result<()> {
    let machine = machine(t)?;
    let served = machine.work(STEPS, LESS)?;
    let explained = machine.explain(served.pid())?;
    ensure!(
        explained.contains("measured first, which takes about") && explained.contains("not been measured here"),
        "{explained}"
    );
    let (agent, begin) = (machine.agent()?, CpuTimes::now());
    agent.wait_for_stderr(&format!("measuring costs_less_when_lifted[{}]", served.pid()))?;
    let decision = measured(&agent, &served, begin)?;
    ensure!(decision.starts_with("the lift pays"), "{decision}");
    agent.wait_for_stderr(&format!(": lifted costs_less_when_lifted[{}]", served.pid()))?;
    ensure!(served.huge_bytes()? > 0, "nothing is on huge pages");
    let status = machine.status()?;
    ensure!(status["ledger"]["lifts"][0]["progress"]["state"] == "kept", "{status}");
    ensure!(status["ledger"]["counts"]["measurements"] == 1, "{status}");
    ensure!(status["ledger"]["counts"]["measured_blocks"].as_u64() >= Some(12), "{status}");
    confirmed(t, &machine, "keep")?;
    // One program of twenty is still measured.
    let another = loop {
        let another = machine.work(STEPS, LESS)?;
        if machine.explain(another.pid())?.contains("ok   lifted without a measurement; a lift pays: 4 measurements") {
            break another;
        }
        another.end()?;
    };
    agent.wait_for_stderr(&format!(": lifted costs_less_when_lifted[{}]", another.pid()))?;
    ensure!(!agent.stderr_so_far().contains(&format!("measured costs_less_when_lifted[{}]", another.pid())));
    machine.stop(agent)?;
    served.end()?;
    another.end()
}

/// A program that gains nothing stays plain, and so do all others of its build once the verdict is known.
pub fn what_is_equal(t: &Context) -> Result<()> {
    let machine = machine(t)?;
    let served = machine.work(STEPS, STEPS)?;
    let (agent, begin) = (machine.agent()?, CpuTimes::now());
    let decision = measured(&agent, &served, begin)?;
    ensure!(decision.ends_with("; left plain"), "{decision}");
    ensure!(served.huge_bytes()? == 0, "it is lifted");
    machine.wait_for_scans(3)?;
    let status = machine.status()?;
    let entry = &status["ledger"]["lifts"][0];
    ensure!(entry["progress"]["state"] == "restored" && entry["refusal"]["reason"] == "no-gain", "{status}");
    let explained = machine.explain(served.pid())?;
    ensure!(explained.contains("state: left plain: measured: "), "{explained}");
    confirmed(t, &machine, "put-back")?;
    let another = machine.work(STEPS, STEPS)?;
    agent.wait_for_stderr(&format!(
        "not lifted costs_less_when_lifted[{}] by rule \"code\": a lift does not pay",
        another.pid()
    ))?;
    let explained = machine.explain(another.pid())?;
    ensure!(explained.contains("no   does-not-pay: a lift does not pay: 4 measurements"), "{explained}");
    let shown = t.run(machine.pagelift(&["status"])?)?.success()?.stdout;
    let expected = format!("costs_less_when_lifted[{}] left plain: a lift does not pay", another.pid());
    ensure!(shown.contains(&expected), "{shown}");
    ensure!(another.huge_bytes()? == 0, "it is lifted");
    another.end()?;
    let said = machine.stop(agent)?;
    ensure!(!said.contains(": lifted "), "{said}");
    served.end()
}

/// Waits for a measurement that has lifted the program at least once.
fn is_measured(machine: &Machine<'_>) -> Result<()> {
    poll_until(LONG, "a block", || {
        machine.status().is_ok_and(|status| status["agent"]["measuring"]["blocks"].as_u64() > Some(0))
    })
}

fn is_plain(served: &Served) -> Result<()> {
    ensure!(served.huge_bytes()? == 0, "it is lifted");
    Ok(())
}

/// The kill switch, the end of the agent and its crash end a measurement. It is begun again after each.
pub fn interrupted(t: &Context) -> Result<()> {
    let machine = machine(t)?;
    let mut served = machine.work(STEPS, LESS)?;
    let agent = machine.agent()?;
    is_measured(&machine)?;
    fs::write(machine.switch(), "")?;
    let has_ended = || machine.status().is_ok_and(|status| status["agent"]["measuring"].is_null());
    poll_until(LONG, "the end of the measurement", has_ended)?;
    is_plain(&served)?;
    ensure!(machine.status()?["ledger"]["lifts"] == Value::Array(Vec::new()), "{}", machine.status()?);
    fs::remove_file(machine.switch())?;
    is_measured(&machine)?;
    machine.stop(agent)?;
    is_plain(&served)?;
    served.check()?;
    let agent = machine.agent()?;
    is_measured(&machine)?;
    agent.signal(Signal::SIGKILL)?;
    agent.finish()?;
    served.check()?;
    // Without rules, nothing is measured again.
    machine.write("50-rules.toml", "")?;
    let agent = machine.agent()?;
    agent.wait_for_stderr("started")?;
    is_plain(&served)?;
    ensure!(machine.status()?["ledger"]["lifts"] == Value::Array(Vec::new()), "{}", machine.status()?);
    machine.stop(agent)?;
    served.end()
}

/// A command measures a program that the agent may lift: the agent waits for its end.
pub fn by_command(t: &Context) -> Result<()> {
    let machine = Machine::new(t, "act", "")?;
    let served = machine.work(STEPS, STEPS)?;
    // An agent has run before.
    fs::create_dir(machine.state())?;
    let (pid, folder) = (served.pid().to_string(), machine.verdicts().display().to_string());
    let words: [&str; 9] = ["verdicts", "measure", "--pages", "thp", "--for", "20s", &pid, "--verdicts", &folder];
    let measuring = t.session_within(machine.pagelift(&words)?, LONG)?;
    poll_until(LONG, "a lift by the measurement", || served.huge_bytes().is_ok_and(|bytes| bytes > 0))?;
    let agent = machine.agent()?;
    agent.wait_for_stderr(&format!("not lifted costs_less_when_lifted[{pid}]"))?;
    ensure!(agent.stderr_so_far().contains("another command lifts, restores or measures"), "{}", agent.stderr_so_far());
    ensure!(!agent.stderr_so_far().contains(": lifted costs_less_when_lifted"), "{}", agent.stderr_so_far());
    measuring.finish()?.success()?;
    agent.wait_for_stderr(&format!(": lifted costs_less_when_lifted[{pid}]"))?;
    machine.stop(agent)?;
    let mut names = fs::read_dir(machine.state())?.flatten().map(|entry| entry.file_name());
    ensure!(names.all(|name| !name.to_string_lossy().starts_with("process.")), "a lock of a process is left");
    served.end()
}

/// Measurements of other machines decide as this machine's own do, if they are of the same CPU, kernel and settings.
pub fn imported(t: &Context) -> Result<()> {
    let machine = machine(t)?;
    let first = machine.work(STEPS, LESS)?;
    // The key of this build here.
    machine.run_verdicts(&["measure", "--pages", "thp", "--for", "1s", &first.pid().to_string()])?;
    let own: Value = serde_json::from_str(&machine.run_verdicts(&["export"])?)?;
    machine.run_verdicts(&["forget", "--all"])?;
    let file = t.folder().join("verdicts.jsonl");
    let import = |cpu: &str, decision: &str| -> Result<()> {
        let mut record = own.clone();
        let measurement = &own["measurements"][0];
        let of_boot = |boot: &str| {
            let mut other = measurement.clone();
            (other["boot"], other["decision"]) = (boot.into(), decision.into());
            other
        };
        record["measurements"] = Value::Array(["a", "b", "c"].map(of_boot).into());
        if !cpu.is_empty() {
            record["cpu"] = cpu.into();
        }
        fs::write(&file, format!("{record}\n"))?;
        machine.run_verdicts(&["import", &file.display().to_string()]).map(drop)
    };
    import("another CPU", "keep")?;
    let explained = machine.explain(first.pid())?;
    ensure!(explained.contains("not been measured here"), "{explained}");
    first.end()?;
    import("", "keep")?;
    // One of twenty is measured all the same.
    let served = loop {
        let served = machine.work(STEPS, LESS)?;
        if machine.explain(served.pid())?.contains("ok   lifted without a measurement; a lift pays: 3 measurements") {
            break served;
        }
        served.end()?;
    };
    let agent = machine.agent()?;
    agent.wait_for_stderr(&format!(": lifted costs_less_when_lifted[{}]", served.pid()))?;
    ensure!(!agent.stderr_so_far().contains("measuring costs_less_when_lifted"), "{}", agent.stderr_so_far());
    // The agent that runs reads a new verdict, and leaves lifts of before as they are.
    import("", "harm")?;
    let another = machine.work(STEPS, LESS)?;
    agent.wait_for_stderr(&format!(
        "not lifted costs_less_when_lifted[{}] by rule \"code\": a lift does not pay",
        another.pid()
    ))?;
    ensure!(another.huge_bytes()? == 0 && served.huge_bytes()? > 0, "not as the verdicts say");
    machine.stop(agent)?;
    served.end()?;
    another.end()
}
