//! `pagelift shootdowns` and `pagelift run --calm`: the culprit is named, and its cure works.

mod counts;
mod kernel_causes;
mod runtimes;
mod storms;

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;
use serde_json::Value;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};
use test_support::{Context, Ending, Need, Program, Session, Skipped, main_of_one_at_a_time, test_case, workspace};

/// Number of the user and the group `nobody`.
const NOBODY: u32 = 65534;
/// Blocks that glibc keeps in its arenas; they fill its threads' heaps.
const SMALL: [&str; 3] = ["malloc", "262144", "64"];
/// Blocks above jemalloc's oversize_threshold (8 MiB), which it returns to the kernel at once.
const LARGE: [&str; 3] = ["malloc", "9437184", "4"];
const LARGE_ZEROED: [&str; 3] = ["calloc", "9437184", "4"];

/// Minimum number of shootdowns in a storm: 5 % of this number exceed the few that happen without a storm.
const ENOUGH: f64 = 200.0;
/// Minimum number of stacks that show the most frequent path; `pagelift shootdowns` reports smaller numbers.
const ENOUGH_STACKS: f64 = 20.0;
/// Seconds after which a storm with fewer shootdowns is no storm.
const LONGEST: u32 = 64;

const JEMALLOC: &str = "/usr/lib/x86_64-linux-gnu/libjemalloc.so.2";
const TCMALLOC: &str = "/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4";
const MIMALLOC: &str = "/usr/lib/x86_64-linux-gnu/libmimalloc.so.2.0";

fn main() -> ExitCode {
    // Without interrupts between CPUs (Arm) there is nothing to count.
    let needs = || vec![Need::Root, Need::Machine("x86_64".into()), Need::Command("gcc".into())];
    let with = |file: &str| [needs(), vec![Need::File(file.to_owned())]].concat();
    let mut tests = vec![
        test_case("glibc_is_named_and_cured", needs(), glibc),
        test_case("jemalloc_is_named_and_cured", with(JEMALLOC), jemalloc),
        test_case("jemalloc_that_zeroes_for_calloc_is_cured", with(JEMALLOC), jemalloc_calloc),
        test_case("jemalloc_4_is_named_and_cured", with(&jemalloc_4_library()), jemalloc_4),
        test_case("tcmalloc_is_named_and_cured", with(TCMALLOC), tcmalloc),
        test_case("mimalloc_is_named", with(MIMALLOC), mimalloc),
        test_case("what_the_user_has_set_stays", with(JEMALLOC), kept_settings),
        test_case("the_whole_machine_is_shown", needs(), whole_machine),
        test_case("an_ordinary_user_sees_interrupts", needs(), ordinary_user),
        test_case("a_process_that_is_not_there_is_said", vec![], no_process),
    ];
    tests.extend(counts::tests(&needs()));
    tests.extend(kernel_causes::tests(&needs()));
    tests.extend(runtimes::tests(&needs()));
    tests.extend(storms::tests(&needs()));
    // If two storms shared two CPUs, the threads of each would hardly run at the same time.
    main_of_one_at_a_time(tests)
}

/// Starts a storm with these variables, by `run --calm` if `calm`.
fn storm(t: &Context, words: &[&str], variables: &[(&str, &str)], calm: bool) -> Result<Session> {
    let program = Program::named("measuring/storms.c")?.build()?;
    let mut command = match calm {
        true => t.pagelift(&["run", "--quiet", "--calm", "--"])?,
        false => Command::new(&program),
    };
    if calm {
        command.arg(&program);
    }
    command.args(words).envs(variables.iter().copied());
    storm_by(t, command)
}

/// Starts a storm, and waits until it has begun.
fn storm_by(t: &Context, command: Command) -> Result<Session> {
    let session = t.session(command)?;
    session.wait_for_line("ready")?;
    Ok(session)
}

fn watch(t: &Context, session: &Session, seconds: u32) -> Result<Value> {
    let (pid, time) = (session.pid().to_string(), seconds.to_string());
    let output = t.run(t.pagelift(&["shootdowns", "-p", &pid, "--for", &time, "--json"])?)?.success()?;
    let report: Value = serde_json::from_str(&output.stdout)?;
    ensure!(report["evidence"] == "tlb-tracepoint", "{}", report["refused"]);
    Ok(report)
}

fn ended(session: Session) -> Result<()> {
    session.signal(Signal::SIGTERM)?;
    let output = session.finish()?;
    ensure!(output.ending == Ending::Exit(0) && output.stdout.ends_with("all right\n"), "{output:?}");
    Ok(())
}

/// Watches a storm, and longer if its threads hardly run at the same time. Returns the last report and its seconds.
fn seen(t: &Context, words: &[&str], variables: &[(&str, &str)]) -> Result<(Value, u32)> {
    seen_by(t, || storm(t, words, variables, false))
}

/// Like [`seen`], for any program that is ready and ends on SIGTERM.
fn seen_by(t: &Context, start: impl FnOnce() -> Result<Session>) -> Result<(Value, u32)> {
    let session = start()?;
    let (mut seconds, mut report) = (1, watch(t, &session, 1)?);
    while !is_enough(&report) && seconds < LONGEST {
        seconds *= 4;
        report = watch(t, &session, seconds)?;
    }
    ended(session)?;
    let sent = sent(&report);
    if sent > 0.0 && sent < ENOUGH {
        let why = format!("its threads hardly ran side by side: {sent:.0} shootdowns in {seconds} s");
        return Err(Skipped(why).into());
    }
    ensure!(is_enough(&report), "in {seconds} s it sends too few: {report:#}");
    Ok((report, seconds))
}

fn is_enough(report: &Value) -> bool {
    let stacks = report["processes"][0]["effective_stacks"].as_f64();
    sent(report) >= ENOUGH && stacks >= Some(ENOUGH_STACKS)
}

/// Checks that the cured storm sends at most 5 % as many shootdowns per second. A storm that first sends more is
/// watched again, and longer: an allocator that returns memory unused for a while does not know yet which memory is
/// reused, and on a busy machine the storm itself hardly runs.
fn is_cured(t: &Context, session: Session, before: &(Value, u32)) -> Result<()> {
    let plain = sent(&before.0) / f64::from(before.1);
    let (mut seconds, mut after) = (before.1, watch(t, &session, before.1)?);
    let rate = |report: &Value, seconds: u32| sent(report) / f64::from(seconds);
    while rate(&after, seconds) > 0.05 * plain && seconds < LONGEST {
        seconds *= 4;
        after = watch(t, &session, seconds)?;
    }
    ended(session)?;
    let cured = rate(&after, seconds);
    ensure!(cured <= 0.05 * plain, "{plain}/s before, {cured}/s with the cure for {seconds} s: {after:#}");
    Ok(())
}

fn sent(report: &Value) -> f64 {
    report["processes"][0]["sent"].as_f64().unwrap_or(0.0)
}

/// The finding that causes most shootdowns.
fn first_finding(report: &Value) -> Result<&Value> {
    let finding = &report["diagnoses"][0]["findings"][0];
    ensure!(finding["uncertain"] == false && finding["share"].as_f64() > Some(0.5), "{report:#}");
    Ok(finding)
}

fn names_allocator(report: &Value, name: &str, how: &str) -> Result<()> {
    let finding = first_finding(report)?;
    let text = finding["text"].as_str().unwrap_or_default();
    ensure!(text.starts_with(name) && text.contains(how), "{finding:#}");
    let functions = report["processes"][0]["paths"].to_string();
    ensure!(functions.contains("grow_and_shrink"), "the caller is not named: {functions}");
    Ok(())
}

fn glibc(t: &Context) -> Result<()> {
    let storms = seen(t, &SMALL, &[])?;
    let plain = &storms.0;
    names_allocator(plain, "glibc 2.", "by madvise")?;
    costs_are_told(plain)?;
    let cure = &first_finding(plain)?["cures"][0];
    ensure!(cure["variable"] == "GLIBC_TUNABLES" && cure["source"].is_string(), "{cure}");
    ensure!(cure["costs"].as_str().is_some_and(|costs| costs.contains("resident memory")), "{cure}");
    is_cured(t, storm(t, &SMALL, &[], true)?, &storms)
}

/// A storm costs its threads time in system calls, and page faults on returned memory.
fn costs_are_told(report: &Value) -> Result<()> {
    let (process, severity) = (&report["processes"][0], &report["diagnoses"][0]["severity"]);
    let number = |name: &str| process[name].as_f64().unwrap_or(0.0);
    ensure!(number("call_seconds") > 0.0 && number("kernel_seconds") > 0.0, "{process:#}");
    ensure!(number("page_faults") > number("sent"), "each call gives back some pages: {process:#}");
    let share = severity["share"].as_f64().context("no share")?;
    let seconds = report["seconds"].as_f64().context("no seconds")?;
    ensure!((share * seconds - number("call_seconds") - number("interrupted_seconds")).abs() < 0.01, "{severity:#}");
    Ok(())
}

fn jemalloc(t: &Context) -> Result<()> {
    let preload = [("LD_PRELOAD", JEMALLOC)];
    let storms = seen(t, &LARGE, &preload)?;
    let plain = &storms.0;
    names_allocator(plain, "jemalloc 5.", "by madvise")?;
    let cure = &first_finding(plain)?["cures"][0];
    ensure!(cure["value"] == "dirty_decay_ms:-1,muzzy_decay_ms:-1", "{cure}");
    is_cured(t, storm(t, &LARGE, &preload, true)?, &storms)
}

/// The last jemalloc 4, built by `scripts/fetch-test-sources`.
fn jemalloc_4_library() -> String {
    // In the workspace's target folder, even if the tests are built to another one.
    workspace().join("target/test-sources/jemalloc-4/lib/libjemalloc.so.2").to_string_lossy().into_owned()
}

fn jemalloc_4(t: &Context) -> Result<()> {
    let library = jemalloc_4_library();
    let preload = [("LD_PRELOAD", library.as_str())];
    let storms = seen(t, &SMALL, &preload)?;
    let plain = &storms.0;
    names_allocator(plain, "jemalloc 4.5.0", "by madvise")?;
    let cure = &first_finding(plain)?["cures"][0];
    ensure!(cure["value"] == "purge:decay,decay_time:-1", "{cure}");
    is_cured(t, storm(t, &SMALL, &preload, true)?, &storms)
}

/// The cure for purging by decay does not end purging by calloc; the second cure, added to the user's settings, does.
fn jemalloc_calloc(t: &Context) -> Result<()> {
    let decay = "dirty_decay_ms:-1,muzzy_decay_ms:-1";
    let storms = seen(t, &LARGE_ZEROED, &[("LD_PRELOAD", JEMALLOC), ("MALLOC_CONF", decay)])?;
    let plain = &storms.0;
    names_allocator(plain, "jemalloc 5.", "calloc")?;
    let finding = first_finding(plain)?;
    ensure!(finding["cures"][0]["value"].is_null(), "the first cure is set already: {finding}");
    let cure = &finding["cures"][1];
    ensure!(cure["beside_others"] == true, "the user's own settings are not named: {cure}");
    let all = format!("{decay},{}", cure["value"].as_str().context("no second cure")?);
    let cured = [("LD_PRELOAD", JEMALLOC), ("MALLOC_CONF", all.as_str())];
    is_cured(t, storm(t, &LARGE_ZEROED, &cured, false)?, &storms)
}

fn tcmalloc(t: &Context) -> Result<()> {
    let preload = [("LD_PRELOAD", TCMALLOC)];
    let words = ["malloc", "1048576", "64"];
    let storms = seen(t, &words, &preload)?;
    let plain = &storms.0;
    names_allocator(plain, "tcmalloc", "by madvise")?;
    let allocator = plain["diagnoses"][0]["allocator"].as_str().unwrap_or_default();
    ensure!(allocator.contains("; of gperftools 2."), "{allocator}");
    let cure = &first_finding(plain)?["cures"][0];
    ensure!(cure["variable"] == "TCMALLOC_RELEASE_RATE" && cure["value"] == "0", "{cure}");
    ensure!(cure["effect"] == "ends" && cure["source"].is_string(), "{cure}");
    is_cured(t, storm(t, &words, &preload, true)?, &storms)
}

/// Debian 12's mimalloc 2.0 has no setting against the unmapping of large blocks, so no cure is offered.
fn mimalloc(t: &Context) -> Result<()> {
    let (plain, _) = &seen(t, &["malloc", "20000000", "4"], &[("LD_PRELOAD", MIMALLOC)])?;
    names_allocator(plain, "mimalloc", "unmaps")?;
    let finding = first_finding(plain)?;
    let has_cure = finding["cures"].as_array().is_some_and(|cures| !cures.is_empty());
    ensure!(has_cure || finding["advice"]["says"].is_string(), "neither cure nor advice: {finding}");
    Ok(())
}

fn kept_settings(t: &Context) -> Result<()> {
    let mut command = t.pagelift(&["run", "--calm", "--", "/usr/bin/env"])?;
    command.env("LD_PRELOAD", JEMALLOC).env("MALLOC_CONF", "narenas:2,dirty_decay_ms:500");
    let output = t.run(command)?.success()?;
    ensure!(output.stderr.contains("dirty_decay_ms is set in the environment and is kept"), "{}", output.stderr);
    let wanted = "MALLOC_CONF=muzzy_decay_ms:-1,narenas:2,dirty_decay_ms:500";
    ensure!(output.stdout.lines().any(|line| line == wanted), "{}", output.stdout);
    Ok(())
}

fn whole_machine(t: &Context) -> Result<()> {
    let session = storm(t, &SMALL, &[], false)?;
    let output = t.run(t.pagelift(&["shootdowns", "--for", "1"])?)?.success()?;
    ended(session)?;
    for part in [
        "by the tracepoint tlb:tlb_flush",
        "sent/s",
        "storms",
        "cure: GLIBC_TUNABLES=",
        "Watching took",
        "held its thread up",
    ] {
        ensure!(output.stdout.contains(part), "no `{part}` in\n{}", output.stdout);
    }
    Ok(())
}

fn ordinary_user(t: &Context) -> Result<()> {
    let mut command = t.pagelift(&["shootdowns", "--for", "1"])?;
    command.uid(NOBODY).gid(NOBODY);
    let output = t.run(command)?.success()?;
    ensure!(output.stdout.contains("by the line TLB of /proc/interrupts"), "{}", output.stdout);
    ensure!(output.stdout.contains("fix: run as root"), "{}", output.stdout);
    Ok(())
}

fn no_process(t: &Context) -> Result<()> {
    // Larger than the kernel's largest possible PID.
    let output = t.run(t.pagelift(&["shootdowns", "-p", "2147483647"])?)?;
    ensure!(output.ending == Ending::Exit(125), "{output:?}");
    ensure!(output.stderr == "pagelift: there is no process 2147483647\n", "{}", output.stderr);
    Ok(())
}
