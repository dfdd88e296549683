//! Lifts that a program pays for with its CPU time: nothing is copied for a short program, and a long one is lifted
//! while it runs.

use anyhow::{Context as _, Result, ensure};
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Duration;
use test_support::{Context, Need, Output, Program, Test, View, main_of, poll_until, test_case};

/// Limit for the later lift, on a busy machine.
const LIMIT: Duration = Duration::from_secs(120);
const MIB: u64 = 1 << 20;

fn main() -> ExitCode {
    let needs = || vec![Need::Command("gcc".into()), Need::Thp];
    let tests: Vec<Test> = vec![
        test_case("a_short_program_is_not_copied", needs(), |t| short(t, &[])),
        test_case("a_short_descendant_is_not_copied", needs(), |t| short(t, &["--only", "computes_until_told"])),
        test_case("a_long_program_is_lifted_while_it_runs", needs(), |t| long(t, &[])),
        test_case("a_long_descendant_is_lifted_while_it_runs", needs(), |t| {
            long(t, &["--only", "computes_until_told"])
        }),
        test_case("a_heap_that_has_grown_does_not_take_the_place_of_code", needs(), grown_heap),
        test_case("a_program_that_unmaps_some_code_is_lifted", needs(), unmapped_code),
        test_case("any_price_is_paid_at_the_start", needs(), any_price),
        test_case("an_order_says_what_it_has_cost", needs(), order),
    ];
    main_of(tests)
}

/// The current last document of a report.
fn report(path: &Path) -> Option<serde_json::Value> {
    let text = std::fs::read_to_string(path).ok()?;
    serde_json::Deserializer::from_str(&text).into_iter().filter_map(Result::ok).last()
}

/// The results of a later lift.
struct Later {
    report: serde_json::Value,
    /// The plan of `inspect` after the lift.
    inspection: serde_json::Value,
    /// Its perf map: names of code that was copied.
    names: Option<String>,
}

/// Runs a program whose lift may cost a tenth of its CPU time, until it is lifted.
fn paid_by_a_tenth(t: &Context, program: &str, options: &[&str]) -> Result<Later> {
    let program = Program::named(program)?.build()?;
    let path = t.folder().join("report.json");
    let file = path.to_string_lossy();
    let all =
        [&["--pages", "thp", "--start-cost", "0", "--cost", "10%", "--perf-map", "--report", &file], options].concat();
    let mut session = t.session_within(t.lifted(&all, &Command::new(&program))?, LIMIT)?;
    session.wait_for_line("ready")?;
    session.send("\n")?;
    let mut found = serde_json::Value::Null;
    poll_until(LIMIT, "a report of a lift that is over", || {
        found = report(&path).unwrap_or_default();
        ["lifted", "refused"].iter().any(|over| found["postponed"]["state"] == *over)
    })?;
    let pid = session.pid().to_string();
    let inspect = [&["inspect", "--json", "--pages", "thp"], options, &[&pid]].concat();
    let inspection = t.run(t.pagelift(&inspect)?)?;
    let map = Path::new("/tmp").join(format!("perf-{pid}.map"));
    let names = std::fs::read_to_string(&map).ok();
    names.iter().try_for_each(|_| std::fs::remove_file(&map))?;
    let lifted = session.finish()?.success()?;
    ensure!(found["postponed"]["state"] == "lifted", "{found}");
    let plain = plain(t, &program)?.success()?;
    ensure!(plain.stdout == lifted.stdout, "plain\n{}\nlifted\n{}", plain.stdout, lifted.stdout);
    let inspection = serde_json::from_str(&inspection.success()?.stdout)?;
    Ok(Later { report: found, inspection, names })
}

/// The bytes of one kind that a report counts as covered.
fn covered(report: &serde_json::Value, kind: &str) -> u64 {
    let ranges = report["ranges"].as_array().into_iter().flatten();
    let of_kind = ranges.filter(|range| range["kinds"].as_array().is_some_and(|kinds| kinds.iter().any(|k| k == kind)));
    let covered = of_kind.flat_map(|range| range["covered"].as_array().cloned().unwrap_or_default());
    let number = |value: &serde_json::Value| {
        let text = value.as_str().unwrap_or_default();
        u64::from_str_radix(text.trim_start_matches("0x"), 16).unwrap_or(0)
    };
    covered.map(|range| number(&range["end"]) - number(&range["start"])).sum()
}

/// The heap gains more for each millisecond than the constants, but costs more than the program has paid.
fn grown_heap(t: &Context) -> Result<()> {
    let Later { report, .. } = paid_by_a_tenth(t, "start/computes_beside_a_heap.c", &[])?;
    ensure!(covered(&report, "rodata") >= 8 * MIB, "{report}");
    Ok(())
}

/// The first range of a postponed lift is not mapped any more: the others are lifted. Then the rest of the plan is
/// empty, and costs nothing.
fn unmapped_code(t: &Context) -> Result<()> {
    let Later { report, inspection: plan, names } =
        paid_by_a_tenth(t, "start/unmaps_its_code.c", &["--lift", "text,rodata"])?;
    ensure!(covered(&report, "rodata") >= 8 * MIB, "{report}");
    let (lifts, price) = (&plan["plan"]["lifts"], &plan["cost"]["nanoseconds"]);
    ensure!(lifts.as_array().is_some_and(Vec::is_empty) && price == 0, "{plan}");
    ensure!(names.as_ref().is_some_and(|names| names.contains(" main")), "no perf map of the later lift: {names:?}");
    Ok(())
}

fn plain(t: &Context, program: &Path) -> Result<Output> {
    let mut session = t.session_within(Command::new(program), LIMIT)?;
    session.wait_for_line("ready")?;
    session.send("\n")?;
    session.finish()
}

/// Runs the program by `run` with copies that it has to pay for, and waits for the state of the report.
fn paying(t: &Context, options: &[&str], state: &str) -> Result<(Output, serde_json::Value, u64)> {
    let program = Program::named("start/computes_until_told.c")?.build()?;
    let path = t.folder().join("report.json");
    let file = path.to_string_lossy();
    let all = [&["--pages", "thp", "--lift", "text,rodata", "--report", &file], options].concat();
    let mut session = t.session_within(t.lifted(&all, &Command::new(&program))?, LIMIT)?;
    session.wait_for_line("ready")?;
    session.send("\n")?;
    let mut found = serde_json::Value::Null;
    poll_until(LIMIT, &format!("a report of state {state}"), || {
        found = report(&path).unwrap_or_default();
        found["postponed"]["state"] == state
    })?;
    let huge = View::of(session.pid())?.huge_bytes();
    let lifted = session.finish()?.success()?;
    let plain = plain(t, &program)?.success()?;
    ensure!(plain.stdout == lifted.stdout, "plain\n{}\nlifted\n{}", plain.stdout, lifted.stdout);
    ensure!(plain.stderr == lifted.foreign_stderr(), "{}", lifted.stderr);
    Ok((lifted, found, huge))
}

/// A program that never pays this much.
fn short(t: &Context, options: &[&str]) -> Result<()> {
    let (lifted, report, huge) =
        paying(t, &[&["--start-cost", "0", "--cost", "0.0001%"], options].concat(), "waiting")?;
    ensure!(huge == 0 && report["covered_bytes"] == 0, "{huge} bytes are huge: {report}");
    ensure!(report["postponed"]["bytes"].as_u64() >= Some(8 * MIB), "{report}");
    let says = |text: &str| lifted.own_lines().iter().any(|line| line.contains(text));
    ensure!(says("is made when the program has used") && !says("after "), "{}", lifted.stderr);
    Ok(())
}

/// A program that has paid after some milliseconds.
fn long(t: &Context, options: &[&str]) -> Result<()> {
    let (lifted, report, huge) = paying(t, &[&["--start-cost", "0", "--cost", "100%"], options].concat(), "lifted")?;
    let covered = report["covered_bytes"].as_u64().context("no covered bytes")?;
    ensure!(covered >= 8 * MIB && huge >= covered, "{huge} bytes are huge: {report}");
    let (due, used) = (&report["postponed"]["due_microseconds"], &report["postponed"]["used_microseconds"]);
    ensure!(used.as_u64() >= due.as_u64() && due.as_u64() > Some(0), "{report}");
    ensure!(lifted.own_lines().iter().any(|line| line.contains("s of CPU time: ")), "{}", lifted.stderr);
    Ok(())
}

fn any_price(t: &Context) -> Result<()> {
    let program = Program::named("start/computes_until_told.c")?.build()?;
    let options = ["--pages", "auto", "--prepare", "never", "--lift", "text,rodata", "--start-cost", "any"];
    let session = t.session_within(t.lifted(&options, &Command::new(&program))?, LIMIT)?;
    session.wait_for_line("ready")?;
    let huge = View::of(session.pid())?.huge_bytes();
    ensure!(huge >= 8 * MIB, "{huge} bytes are huge: {}", session.stderr_so_far());
    session.finish()?.success()?;
    Ok(())
}

fn order(t: &Context) -> Result<()> {
    let program = Program::named("start/computes_until_told.c")?.build()?;
    let options = ["--pages", "thp", "--lift", "text,rodata"];
    let session = t.session_within(t.lifted(&options, &Command::new(&program))?, LIMIT)?;
    session.wait_for_line("ready")?;
    let output = session.finish()?.success()?;
    ensure!(output.own_lines().iter().any(|line| line.contains("of private memory")), "{}", output.stderr);
    Ok(())
}
