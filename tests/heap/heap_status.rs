//! `status` reports the small blocks of a preloaded heap and the resident bytes: correct numbers if they can be known,
//! otherwise a reason, whatever the process does at the same time and whatever its memory contains.

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;
use serde_json::Value;
use std::process::{Command, ExitCode};
use std::time::Duration;
use test_support::{Context, Ending, Need, Program, Session, Test, default_huge_page, main_of, poll_until, test_case};

const MIB: u64 = 1 << 20;
const THP: [&str; 2] = ["--heap=thp", "--heap-allocator=mimalloc"];
const RESERVE: u64 = 256 * MIB;
/// Readings of a heap that changes.
const READINGS: u32 = 30;
/// Number of readings that give the numbers, at least.
const KNOWN: u32 = 10;
/// Limit of readings until then.
const MOST_READINGS: u32 = 1000;

fn main() -> ExitCode {
    let mut tests = vec![
        test_case("live_bytes/thp", gcc(), |t| live_bytes(t, &THP)),
        test_case("live_bytes/pool", [gcc(), vec![Need::Pool(RESERVE)]].concat(), |t| {
            let pool = format!("--heap={}", default_huge_page()?.bytes());
            live_bytes(t, &[&pool, &format!("--heap-reserve={RESERVE}")])
        }),
        test_case("live_bytes_of_a_heap_that_changes_all_the_time", gcc(), while_it_changes),
        test_case("a_process_that_ends_while_it_is_looked_at", gcc(), while_it_ends),
    ];
    tests.extend(strangers());
    main_of(tests)
}

fn gcc() -> Vec<Need> {
    vec![Need::Command("gcc".into()), Need::Thp]
}

/// The report of `status` about a process's heap, as JSON and as text.
fn heap_of(t: &Context, pid: u32) -> Result<(Value, String)> {
    let pid = pid.to_string();
    let output = t.run(t.pagelift(&["status", "--json", &pid])?)?.success()?;
    let json: Value = serde_json::from_str(&output.stdout)?;
    ensure!(json["preloaded_heap"].is_object(), "no preloaded heap: {json}");
    let people = t.run(t.pagelift(&["status", &pid])?)?.success()?;
    Ok((json["preloaded_heap"].clone(), people.stdout))
}

fn number(heap: &Value, name: &str) -> Result<u64> {
    heap[name].as_u64().with_context(|| format!("no {name}: {heap}"))
}

fn live_bytes(t: &Context, options: &[&str]) -> Result<()> {
    let program = Program::named("heap/holds_small_blocks.c")?.command()?;
    let mut session = t.session(t.lifted(options, &program)?)?;
    session.wait_for_line("ready")?;
    let said = session.stdout_so_far();
    let held: Vec<u64> = said.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let &[asked, usable] = &held[..] else { anyhow::bail!("it said {said}") };

    let (heap, text) = heap_of(t, session.pid())?;
    let (live, resident) = (number(&heap, "small_live")?, number(&heap, "small_resident")?);
    let (large, arenas) = (number(&heap, "large_asked")?, number(&heap, "arenas")?);
    ensure!(large == 0, "blocks count as large: {heap}");
    // The live bytes include the C library's blocks and the rounding of aligned blocks.
    ensure!(live >= usable && live - usable < MIB, "{live} bytes live, {usable} usable: {heap}");
    ensure!(live < asked + asked / 8, "{live} bytes live, {asked} asked for: {heap}");
    ensure!(resident >= live && resident <= arenas, "{heap}");
    let line = text.lines().find(|line| line.contains("small blocks")).context("no line of small blocks")?;
    for part in ["MiB live, ", "MiB resident in arenas of "] {
        ensure!(line.contains(part), "no `{part}` in `{line}`");
    }

    session.send("\n")?;
    session.wait_for_line("freed")?;
    let (heap, _) = heap_of(t, session.pid())?;
    ensure!(number(&heap, "small_live")? < MIB, "all is freed: {heap}");
    session.send("\n")?;
    let output = session.finish()?;
    ensure!(output.ending == Ending::Exit(0), "{:?}: {}", output.ending, output.stderr);
    Ok(())
}

fn torture(t: &Context, operations: &str) -> Result<Session> {
    let mut program = Program::named("heap/torture.c")?.command()?;
    program.args([operations, "4", "0", "6"]);
    let session = t.session(t.lifted(&THP, &program)?)?;
    let pid = session.pid();
    poll_until(Duration::from_secs(120), "the heap to be there", || heap_of(t, pid).is_ok())?;
    Ok(session)
}

fn while_it_changes(t: &Context) -> Result<()> {
    let session = torture(t, "100000000")?;
    let mut known = 0;
    for round in 1.. {
        let (heap, _) = heap_of(t, session.pid())?;
        if let Some(live) = heap["small_live"].as_u64() {
            ensure!(live > 0 && live <= number(&heap, "arenas")?, "{heap}");
            known += 1;
        }
        if known >= KNOWN && round >= READINGS {
            t.note(format!("known {known} times of {round}"));
            break;
        }
        // On a busy machine the reader may be interrupted at any reading.
        ensure!(round < MOST_READINGS, "known {known} times of {round}");
    }
    session.signal(Signal::SIGKILL)?;
    session.finish()?;
    Ok(())
}

fn while_it_ends(t: &Context) -> Result<()> {
    for round in 0..12 {
        let session = torture(t, "100000000")?;
        let pid = session.pid().to_string();
        let status = t.session(t.pagelift(&["status", "--json", &pid])?)?;
        std::thread::sleep(Duration::from_millis(round));
        session.signal(Signal::SIGKILL)?;
        let output = status.finish()?;
        match output.ending {
            Ending::Exit(0) => drop(serde_json::from_str::<Value>(&output.stdout)?),
            _ => ensure!(output.stderr.contains("no process"), "{:?}: {}", output.ending, output.stderr),
        }
        session.finish()?;
    }
    Ok(())
}

/// Accounts of other libraries, and accounts with wrong contents.
fn strangers() -> Vec<Test> {
    let stranger = |name: &str, account: &'static str, member: &'static str, says: &'static str| {
        test_case(format!("an_account_{name}"), gcc(), move |t| {
            let (heap, text) = stranger_says(t, account)?;
            let reason = heap[member].as_str().with_context(|| format!("no {member}: {heap}"))?;
            ensure!(reason.contains(says) && text.contains(says), "no `{says}` in {reason}, {text}");
            ensure!(heap["small_live"].is_null(), "{heap}");
            Ok(())
        })
    };
    vec![
        stranger("of_another_release", "1 0 0 0 0 0 0 0 0 0 0", "not_read", "of another release (version 1, this"),
        stranger("without_records", "4", "small_not_known", "records are outside"),
        stranger("with_other_records", "4 0 0 0 0 0 0 0 0 0 0 self", "small_not_known", "inconsistent"),
    ]
}

fn stranger_says(t: &Context, account: &str) -> Result<(Value, String)> {
    let library = t.folder().join("libpagelift_heap.so");
    std::fs::copy(Program::named("heap/says_it_is_a_heap.c")?.build()?, &library)?;
    let mut program = Command::new("sh");
    program.args(["-c", "echo ready; read line"]).env("LD_PRELOAD", &library).env("ACCOUNT", account);
    let mut session = t.session(program)?;
    session.wait_for_line("ready")?;
    let found = heap_of(t, session.pid());
    session.send("\n")?;
    session.finish()?;
    found
}
