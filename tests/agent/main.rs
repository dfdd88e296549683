//! `pagelift agent` on real programs: lifted by rule, refused with the reason, and safe whichever process ends first.

mod containers;
mod machine;
mod measured;
mod metrics;
mod stuck;

use anyhow::{Context as _, Result, ensure};
use machine::{Machine, Served};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::fs;
use std::ops::Range;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use test_support::{Context, Ending, Freezer, Need, Test, View, main_of_one_at_a_time, poll_until, test_case};

/// The longest wait for an action of an agent that scans ten times a second.
const SOON: Duration = Duration::from_secs(240);
/// Number of times that an agent or its worker is killed; `PAGELIFT_ROUNDS` replaces it, by a number, or by a range such as
/// `100..200` for a part of many rounds.
const KILLS: u64 = 8;
/// Programs that are lifted while agents are killed.
const PROGRAMS: usize = 3;

fn main() -> ExitCode {
    let needs = || vec![Need::Root, Need::Thp, Need::Command("gcc".into())];
    let mut tests: Vec<Test> = vec![
        test_case("lifted_by_rule_and_restored", needs(), lifted_and_restored),
        test_case("a_fork_outlives_its_parent", needs(), outlived),
        test_case("observe_touches_nothing", needs(), observed),
        test_case("a_restart_lifts_nothing_twice", needs(), restarted),
        test_case("the_kill_switch_restores", needs(), switched_off),
        test_case("a_bad_file_keeps_the_rules", needs(), badly_reloaded),
        test_case("changed_rules_are_read", needs(), changed),
        test_case("killed_at_random_moments", needs(), killed),
        test_case("a_stuck_worker_stops_nothing_else", needs(), stuck::worker),
        test_case("two_agents_do_not_run", needs(), alone),
        test_case("the_budget_of_cpu_time_holds", needs(), within_budget),
        test_case("a_long_pause_blocks_the_build", needs(), long_pause),
        test_case("a_crash_blocks_the_build", needs(), crashed),
        test_case("errors_have_their_place", vec![], misunderstood),
        test_case("the_environment_asks", needs(), asked),
        test_case("measured/what_pays_is_kept", needs(), measured::what_pays),
        test_case("measured/what_is_equal_is_left_plain", needs(), measured::what_is_equal),
        test_case("measured/an_interruption_leaves_it_plain", needs(), measured::interrupted),
        test_case("measured/by_a_command_without_the_agent", needs(), measured::by_command),
        test_case("measured/imported_verdicts_decide", needs(), measured::imported),
        test_case("containers/one_asks_and_is_lifted", containers::needs(), containers::asks),
        test_case("containers/the_agent_runs_in_one", containers::needs(), containers::agent_inside),
        test_case("containers/a_small_limit_of_pool_pages", containers::needs_of_limits(), containers::limited),
        test_case("metrics_are_scraped", needs(), metrics::scraped),
        test_case("an_address_that_is_taken", vec![], metrics::taken),
    ];
    for (how, reason) in [
        ("off", "opted-out"),
        ("bad", "bad-request"),
        ("real-time", "real-time"),
        ("closed", "closed"),
        ("traced", "traced"),
        ("kubelet", "built-in"),
        ("quiet", "quiet-hours"),
        ("memory", "low-memory"),
        ("holdout", "holdout"),
        ("rollout", "not-rolled-out"),
        ("switch", "kill-switch"),
        ("budget", "memory-budget"),
    ] {
        tests.push(test_case(format!("refused/{reason}"), needs(), move |t| refused(t, how, reason)));
    }
    tests.push(test_case("refused/real-time-thread", needs(), |t| refused(t, "thread", "real-time")));
    main_of_one_at_a_time(tests)
}

fn lifted_and_restored(t: &Context) -> Result<()> {
    let machine = Machine::new(t, "act", "")?;
    let mut served = machine.serve(&[], &[])?;
    let agent = machine.agent()?;
    agent.wait_for_stderr(&format!("lifted serves_from_large_code[{}]", served.pid()))?;
    ensure!(served.huge_bytes()? > 0, "nothing is on huge pages");
    let status = machine.status()?;
    let entry = &status["ledger"]["lifts"][0];
    ensure!(entry["progress"]["state"] == "kept" && entry["covered"].as_u64() > Some(1 << 20), "{status}");
    ensure!(status["running"] == true && status["agent"]["mode"] == "act", "{status}");
    let explained = machine.explain(served.pid())?;
    ensure!(explained.contains("state: lifted by rule \"code\""), "{explained}");
    let stopped = t.run(machine.pagelift(&["stop"])?)?;
    stopped.success()?;
    let agent = agent.finish()?;
    ensure!(agent.ending == Ending::Exit(0), "{agent:?}");
    ensure!(agent.stderr.contains("stopped: 1 process still lifted"), "{}", agent.stderr);
    ensure!(served.huge_bytes()? > 0, "the end of the agent has undone the lift");
    let fork = served.fork()?;
    ensure!(View::of(fork)?.huge_bytes() > 0, "the fork has another memory");
    let restored = t.run(machine.pagelift(&["stop", "--restore"])?)?.success()?;
    ensure!(restored.stderr.contains("restored serves_from_large_code"), "{}", restored.stderr);
    ensure!(served.huge_bytes()? == 0, "huge pages are left");
    ensure!(View::of(fork)?.huge_bytes() == 0, "huge pages of its fork are left");
    served.end()
}

/// The fork has the copies. It was forgotten with its parent, and no restore found it.
fn outlived(t: &Context) -> Result<()> {
    let machine = Machine::new(t, "act", "")?;
    let mut served = machine.serve(&[], &[])?;
    let agent = machine.agent()?;
    agent.wait_for_stderr(&format!("lifted serves_from_large_code[{}]", served.pid()))?;
    let fork = served.daemon()?;
    ensure!(View::of(fork)?.huge_bytes() > 0, "the fork has another memory");
    served.end()?;
    poll_until(SOON, "an entry of the fork", || {
        let status = machine.status().unwrap_or_default();
        let of_fork = |entry: &Value| entry["identity"]["pid"] == fork && entry["progress"]["state"] == "kept";
        status["ledger"]["lifts"].as_array().is_some_and(|entries| entries.len() == 1 && of_fork(&entries[0]))
    })?;
    let restored = t.run(machine.pagelift(&["stop", "--restore"])?)?.success()?;
    let line = format!("restored serves_from_large_code[{fork}]");
    ensure!(restored.stderr.contains(&line), "{}", restored.stderr);
    let left = View::of(fork)?.huge_bytes();
    kill(Pid::from_raw(fork as i32), Signal::SIGKILL)?;
    ensure!(left == 0, "{left} bytes are still on huge pages");
    agent.finish()?.success().map(drop)
}

fn observed(t: &Context) -> Result<()> {
    let machine = Machine::new(t, "observe", "")?;
    let served = machine.serve(&[], &[])?;
    let before = served.maps()?;
    let agent = machine.agent()?;
    agent.wait_for_stderr(&format!("would lift serves_from_large_code[{}]", served.pid()))?;
    ensure!(agent.stderr_so_far().contains("at a cost of about"), "{}", agent.stderr_so_far());
    ensure!(served.maps()? == before && served.huge_bytes()? == 0, "the program was changed");
    ensure!(machine.status()?["ledger"]["lifts"] == Value::Array(Vec::new()), "{}", machine.status()?);
    machine.stop(agent)?;
    served.end()
}

fn restarted(t: &Context) -> Result<()> {
    let machine = Machine::new(t, "act", "")?;
    let served = machine.serve(&[], &[])?;
    let agent = machine.agent()?;
    agent.wait_for_stderr("lifted serves_from_large_code")?;
    machine.stop(agent)?;
    let maps = served.maps()?;
    let agent = machine.agent()?;
    agent.wait_for_stderr("started: mode act, 1 rule, 1 process lifted")?;
    machine.wait_for_scans(3)?;
    ensure!(served.maps()? == maps, "the program was changed");
    let said = machine.stop(agent)?;
    ensure!(!said.contains(": lifted serves"), "{said}");
    served.end()
}

fn switched_off(t: &Context) -> Result<()> {
    let machine = Machine::new(t, "act", "")?;
    let served = machine.serve(&[], &[])?;
    let agent = machine.agent()?;
    agent.wait_for_stderr("lifted serves_from_large_code")?;
    fs::write(machine.switch(), "restore\n")?;
    agent.wait_for_stderr("restored serves_from_large_code")?;
    ensure!(served.huge_bytes()? == 0, "huge pages are left");
    let another = machine.serve(&[], &[])?;
    agent.wait_for_stderr(&format!("not lifted serves_from_large_code[{}]", another.pid()))?;
    fs::remove_file(machine.switch())?;
    agent.wait_for_stderr(&format!(": lifted serves_from_large_code[{}]", another.pid()))?;
    ensure!(served.huge_bytes()? == 0, "what was restored is lifted again");
    machine.stop(agent)?;
    served.end()?;
    another.end()
}

fn badly_reloaded(t: &Context) -> Result<()> {
    let machine = Machine::new(t, "act", "")?;
    let agent = machine.agent()?;
    // From then on it handles signals.
    agent.wait_for_stderr("started")?;
    machine.write("60-bad.toml", "[[rule]]\nname = 'x'\nmatch = { exe = 5 }\n")?;
    agent.signal(Signal::SIGHUP)?;
    agent.wait_for_stderr("configuration not read, the present rules are kept")?;
    ensure!(agent.stderr_so_far().contains("60-bad.toml:3:"), "{}", agent.stderr_so_far());
    let served = machine.serve(&[], &[])?;
    agent.wait_for_stderr(&format!(": lifted serves_from_large_code[{}]", served.pid()))?;
    ensure!(machine.status()?["agent"]["configuration_is_read"] == false, "{}", machine.status()?);
    machine.write("60-bad.toml", "")?;
    agent.signal(Signal::SIGHUP)?;
    agent.wait_for_stderr("configuration read: 1 rule")?;
    machine.stop(agent)?;
    served.end()
}

/// No signal follows when a ConfigMap changes.
fn changed(t: &Context) -> Result<()> {
    let machine = Machine::new(t, "act", "")?;
    machine.write_rule("holdout = \"100%\"")?;
    let served = machine.serve(&[], &[])?;
    let agent = machine.agent()?;
    poll_until(SOON, "a holdout", || {
        machine.status().is_ok_and(|status| status["agent"]["counts"]["refusals"]["holdout"].is_u64())
    })?;
    machine.write_rule("holdout = \"0%\"")?;
    agent.wait_for_stderr("configuration read: 1 rule")?;
    agent.wait_for_stderr(&format!(": lifted serves_from_large_code[{}]", served.pid()))?;
    machine.stop(agent)?;
    served.end()
}

/// The rounds in which an agent or its worker is killed.
fn rounds() -> Range<u64> {
    let read = |text: &str| match text.split_once("..") {
        Some((from, to)) => Some(from.parse().ok()?..to.parse().ok()?),
        None => Some(0..text.parse().ok()?),
    };
    std::env::var("PAGELIFT_ROUNDS").ok().and_then(|text| read(&text)).unwrap_or(0..KILLS)
}

/// Kills the children of an agent, a number of microseconds after the first one appears. False if none appeared in
/// time.
fn kill_workers(agent: u32, after: u64) -> bool {
    let children = || fs::read_to_string(format!("/proc/{agent}/task/{agent}/children")).unwrap_or_default();
    if poll_until(Duration::from_secs(5), "a worker", || !children().is_empty()).is_err() {
        return false;
    }
    std::thread::sleep(Duration::from_micros(after));
    for child in children().split_whitespace().filter_map(|pid| pid.parse().ok()) {
        let _ = kill(Pid::from_raw(child), Signal::SIGKILL);
    }
    true
}

/// The worker of a killed agent ends by itself. The next agent lifts nothing that the ledger lists. If a worker is
/// killed, the program and the agent continue.
fn killed(t: &Context) -> Result<()> {
    let machine = Machine::new(t, "act", "")?;
    let mut programs = (0..PROGRAMS).map(|_| machine.serve(&[], &[])).collect::<Result<Vec<Served>>>()?;
    for round in rounds() {
        let mut agent = machine.agent()?;
        agent.wait_for_stderr("started")?;
        // From before the first worker to after the last one, in unequal steps.
        let moment = round * 7_919 % 180_000;
        if round % 2 == 0 {
            std::thread::sleep(Duration::from_micros(moment * 4));
            agent.signal(Signal::SIGKILL)?;
            agent.finish()?;
            agent = machine.agent()?;
            agent.wait_for_stderr("started")?;
        } else {
            kill_workers(agent.pid(), moment);
        }
        programs.iter_mut().try_for_each(Served::check)?;
        let done =
            || Ok::<_, anyhow::Error>(machine.status()?["ledger"]["lifts"].as_array().map_or(0, Vec::len) == PROGRAMS);
        poll_until(SOON, "an entry for each program", || done().unwrap_or(false))?;
        let said = machine.stop(agent)?;
        for entry in machine.status()?["ledger"]["lifts"].as_array().context("no lifts")? {
            let state = entry["progress"]["state"].as_str().unwrap_or_default();
            ensure!(["kept", "refused"].contains(&state), "round {round}: {entry}\n{said}");
        }
        programs.iter_mut().try_for_each(Served::check)?;
        for served in &programs {
            t.run(t.pagelift(&["detach", &served.pid().to_string()])?)?.success()?;
            ensure!(served.huge_bytes()? == 0, "round {round}: huge pages are left");
        }
        fs::remove_dir_all(machine.state())?;
    }
    programs.into_iter().try_for_each(Served::end)
}

fn alone(t: &Context) -> Result<()> {
    let machine = Machine::new(t, "observe", "")?;
    let agent = machine.agent()?;
    agent.wait_for_stderr("started")?;
    let second = t.run(machine.pagelift(&["run"])?)?;
    ensure!(second.ending == Ending::Exit(125) && second.stderr.contains("another agent runs"), "{second:?}");
    machine.stop(agent).map(drop)
}

/// Measured by the kernel for a cgroup of the agent and its workers.
fn within_budget(t: &Context) -> Result<()> {
    // Less than ten scans a second cost on a fast CPU with few processes, and enough for a lift at first.
    const RATE: f64 = 0.003;
    let machine = Machine::new(t, "act", "cpu = \"0.3%\"")?;
    let served = machine.serve(&[], &[])?;
    let group = Freezer::new()?;
    let agent = machine.agent()?;
    group.take(agent.pid())?;
    agent.wait_for_stderr(": lifted serves_from_large_code")?;
    let dropped = || machine.status().ok().and_then(|status| status["agent"]["counts"]["dropped_scans"].as_u64());
    poll_until(SOON, "a dropped scan", || dropped() > Some(0))?;
    // The full budget at the start is used up. The rest is the earned budget, at most one scan, and reads of the files.
    let (begin, before) = (Instant::now(), group.cpu_time()?);
    poll_until(SOON, "more dropped scans", || dropped() > Some(30))?;
    let spent = group.cpu_time()?.saturating_sub(before);
    let most = begin.elapsed().mul_f64(4.0 * RATE) + Duration::from_millis(50);
    ensure!(spent <= most, "{spent:?} of CPU time, needed at most {most:?}");
    machine.stop(agent)?;
    served.end()
}

fn long_pause(t: &Context) -> Result<()> {
    let machine = Machine::new(t, "act", "max_pause = \"0s\"")?;
    let served = machine.serve(&[], &[])?;
    let agent = machine.agent()?;
    agent.wait_for_stderr("blocked serves_from_large_code")?;
    agent.wait_for_stderr("restored serves_from_large_code")?;
    ensure!(served.huge_bytes()? == 0, "the lift stays");
    let another = machine.serve(&[], &[])?;
    agent.wait_for_stderr(&format!("not lifted serves_from_large_code[{}]", another.pid()))?;
    let explained = machine.explain(another.pid())?;
    ensure!(
        explained.contains("never lifted: this build is blocked until the next boot: the pause was"),
        "{explained}"
    );
    machine.stop(agent)?;
    served.end()?;
    another.end()
}

fn crashed(t: &Context) -> Result<()> {
    let machine = Machine::new(t, "act", "")?;
    let served = machine.serve(&[], &[])?;
    let agent = machine.agent()?;
    agent.wait_for_stderr("lifted serves_from_large_code")?;
    served.crash()?;
    agent.wait_for_stderr("blocked serves_from_large_code")?;
    let status = machine.status()?;
    ensure!(status["ledger"]["blocked"][0]["program"] == "serves_from_large_code", "{status}");
    machine.stop(agent).map(drop)
}

fn misunderstood(t: &Context) -> Result<()> {
    let folder = t.folder().join("agent.d");
    fs::create_dir(&folder)?;
    let check = |text: &str| -> Result<_> {
        fs::write(folder.join("50.toml"), text)?;
        t.run(t.pagelift(&["agent", "check", "--config", &folder.display().to_string()])?)
    };
    let rule = "[[rule]]\nname = \"a\"\nmatch = { exe = \"*/a\" }\n";
    for (text, place, message) in [
        (format!("{rule}colour = \"red\"\n"), "50.toml:4:1: ", "unknown field `colour`"),
        (format!("{rule}lift = [\"heap\"]\n"), "50.toml:4:8: ", "cannot be restored"),
        ("\u{1b}[8m".to_owned(), "50.toml:1:", ""),
    ] {
        let output = check(&text)?;
        ensure!(output.ending == Ending::Exit(1), "{output:?}");
        ensure!(output.stderr.contains(place) && output.stderr.contains(message), "{output:?}");
        ensure!(!output.stderr.contains('\u{1b}'), "{output:?}");
    }
    let output = check(rule)?.success()?;
    ensure!(output.stdout.contains("rule \"a\" (") && output.stdout.contains("1 rule, no error"), "{}", output.stdout);
    Ok(())
}

fn asked(t: &Context) -> Result<()> {
    let machine = Machine::new(t, "act", "")?;
    machine.write("40-ask.toml", "[[rule]]\nname = \"ask\"\nmatch = { env = \"PAGELIFT_AGENT\", exe = \"*/serves_from_large_code\" }\nkeep = \"always\"\nallow = { lift = [\"text\"], pages = [\"thp\"] }\nlift = [\"text\"]\n")?;
    let served = machine.serve(&[], &[("PAGELIFT_AGENT", "lift=text,rodata")])?;
    let agent = machine.agent()?;
    agent.wait_for_stderr(&format!("lifted serves_from_large_code[{}]", served.pid()))?;
    let said = machine.stop(agent)?;
    ensure!(said.contains("of text on huge pages by rule \"ask\""), "{said}");
    served.end()
}

fn refused(t: &Context, how: &str, reason: &str) -> Result<()> {
    let settings = match how {
        "quiet" => "quiet = [\"Mon-Sun 00:00-24:00\"]",
        "memory" => "min_free_memory = \"100%\"",
        "budget" => "max_memory = \"1M\"",
        _ => "",
    };
    let machine = Machine::new(t, "act", settings)?;
    match how {
        "holdout" => machine.write_rule("holdout = \"100%\"")?,
        "rollout" => machine.write_rule("rollout = \"0%\"")?,
        "switch" => fs::write(machine.switch(), "")?,
        _ => {}
    }
    let environment: &[(&str, &str)] = match how {
        "off" => &[("PAGELIFT_AGENT", "off")],
        "bad" => &[("PAGELIFT_AGENT", "lift=everything")],
        _ => &[],
    };
    let words: &[&str] = match how {
        "real-time" | "thread" | "closed" | "traced" => &[how],
        _ => &[],
    };
    let served = if how == "kubelet" { machine.serve_as("kubelet")? } else { machine.serve(words, environment)? };
    let maps = served.maps()?;
    let agent = machine.agent()?;
    let is_counted = || machine.status().is_ok_and(|status| status["agent"]["counts"]["refusals"][reason].is_u64());
    poll_until(SOON, reason, is_counted)?;
    if how != "budget" {
        let explained = machine.explain(served.pid())?;
        ensure!(explained.contains(&format!("{reason}: ")) || explained.contains("kill switch"), "{explained}");
        ensure!(explained.contains("never lifted: ") || explained.contains("not lifted now: "), "{explained}");
    }
    ensure!(served.maps()? == maps && served.huge_bytes()? == 0, "the program was changed");
    let said = machine.stop(agent)?;
    ensure!(!said.contains(": lifted "), "{said}");
    ensure!(Path::new(&format!("/proc/{}", served.pid())).exists(), "the program has ended");
    served.end()
}
