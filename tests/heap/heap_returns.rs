//! The preloaded heap returns free memory to the kernel: in a program that waits, in one that continues to allocate,
//! and at malloc_trim(3). The functions that report the heap's memory give its sizes.

use anyhow::{Context as _, Result, ensure};
use std::process::ExitCode;
use std::time::Duration;
use test_support::{Context, Ending, Need, Program, Session, Test, main_of, poll_until, test_case};

const MIB: u64 = 1 << 20;
const THP: [&str; 2] = ["--heap=thp", "--heap-allocator=mimalloc"];
/// Resident anonymous bytes beside the blocks: the program's own, and free memory that a heap of this size keeps.
const KEPT: u64 = 40 * MIB;

fn main() -> ExitCode {
    let mut tests: Vec<Test> = Vec::new();
    for kind in ["middle", "small"] {
        for then in ["idle", "busy", "trim"] {
            tests.push(test_case(format!("{kind}_blocks/{then}"), needs(), move |t| returns(t, kind, then)));
        }
    }
    tests.push(test_case("large_blocks/in_turn", needs(), |t| returns(t, "large", "in_turn")));
    tests.push(test_case("reports_its_memory", needs(), reports));
    tests.push(test_case("returns_without_its_lock", needs(), returns_without_its_lock));
    main_of(tests)
}

fn needs() -> Vec<Need> {
    vec![Need::Command("gcc".into()), Need::Thp]
}

/// Pages of files do not count: their number depends on the page cache.
fn resident(session: &Session) -> Result<u64> {
    let path = format!("/proc/{}/status", session.pid());
    let text = std::fs::read_to_string(&path)?;
    let line = text.lines().find_map(|line| line.strip_prefix("RssAnon:")).context("no RssAnon")?;
    Ok(line.trim().strip_suffix(" kB").context("no unit")?.trim().parse::<u64>()? * 1024)
}

fn returns(t: &Context, kind: &str, then: &str) -> Result<()> {
    let mut program = Program::named("heap/gives_memory_back.c")?.command()?;
    program.args([kind, then]);
    let mut session = t.session(t.lifted(&THP, &program)?)?;
    session.wait_for_line("freed")?;
    let said = session.stdout_so_far();
    let held: u64 = said.split_whitespace().nth(1).context("no number")?.parse()?;
    if then == "trim" {
        session.send("\n")?;
        session.wait_for_line("trimmed")?;
        let said = session.stdout_so_far();
        ensure!(said.contains("returned 1"), "malloc_trim reports that nothing was returned: {said}");
    }
    // Little is kept at malloc_trim(3). A heap of no blocks keeps no more than its records, once time has passed.
    let most = held + held / 4 + if then == "trim" || held == 0 && then == "in_turn" { KEPT / 2 } else { KEPT };
    let is_returned = || resident(&session).is_ok_and(|bytes| bytes <= most);
    let result = poll_until(Duration::from_secs(120), "free memory to be returned", is_returned);
    let bytes = resident(&session)?;
    result.with_context(|| format!("{bytes} bytes resident, at most {most} expected"))?;
    session.send("\n")?;
    let output = session.finish()?;
    ensure!(output.ending == Ending::Exit(0), "{:?}: {}", output.ending, output.stderr);
    Ok(())
}

fn reports(t: &Context) -> Result<()> {
    let program = Program::named("heap/reports_its_memory.c")?.command()?;
    let output = t.run(t.lifted(&THP, &program)?)?;
    ensure!(output.ending == Ending::Exit(0), "{:?}: {}", output.ending, output.stderr);
    ensure!(output.stdout.contains("all is well"), "{}", output.stdout);
    ensure!(output.stderr.contains("in use bytes"), "malloc_stats prints nothing: {}", output.stderr);
    Ok(())
}

/// The large block's memory is returned outside of the lock that other threads need.
fn returns_without_its_lock(t: &Context) -> Result<()> {
    let mut program = Program::named("heap/returns_without_its_lock.c")?.command()?;
    // No interval ends, at which locks would be taken.
    program.env("MIMALLOC_PURGE_DELAY", "-1");
    let output = t.run(t.lifted(&THP, &program)?)?;
    ensure!(output.ending == Ending::Exit(0), "{:?}: {}", output.ending, output.stderr);
    Ok(())
}
