//! Programs that generate or interpret code: node, Python, Java.

use crate::{PlainAnswer, both_ways, check_object};
use address_space::AddressRange;
use anyhow::{Context as _, Result, ensure};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;
use test_support::{Context, Kind, Test, View, check_range, default_huge_page, source_of, tests_folder};

const LIMIT: Duration = Duration::from_secs(400);

pub fn tests() -> Vec<Test> {
    let mut tests = both_ways("node", &["command node"], 200 << 20, node);
    tests.extend(both_ways("python_runs_its_own_tests", &["file /usr/bin/python3", "command gcc"], 64 << 20, python));
    tests.extend(both_ways("java", &["command java"], 64 << 20, java));
    tests
}

fn real(name: &str) -> PathBuf {
    tests_folder().join("start/programs/real").join(name)
}

/// The script prints `ready`, waits for a line, and then works once more.
fn node(t: &Context, pages: &str) -> Result<()> {
    let mut plain = Command::new("node");
    plain.arg(real("node.js"));
    let output = |command: Command, is_lifted: bool| {
        let mut session = t.session_within(command, LIMIT)?;
        session.wait_for_line("ready")?;
        if is_lifted {
            let view = View::of(session.pid())?;
            check_object(t, &view, view.executable()?, &[Kind::Text, Kind::Rodata], pages)?;
            view.check_read_only_contents(view.executable()?)?;
        }
        session.send("go on\n")?;
        let output = session.finish()?;
        t.keep(&output);
        Ok(output.success()?.stdout)
    };
    static PLAIN: PlainAnswer = PlainAnswer::new();
    let lifted = output(t.lifted(&["--pages", pages], &plain)?, true)?;
    let plain = PLAIN.get(|| output(plain, false))?;
    ensure!(lifted == plain, "lifted printed\n{lifted}\nplain\n{plain}");
    Ok(())
}

/// Debian's Python has a fixed address at which neither its code nor its constants fill a huge page; together they do,
/// so it is lifted with `--edges merge-read-only`.
fn python(t: &Context, pages: &str) -> Result<()> {
    let options = ["--pages", pages, "--edges", "merge-read-only"];
    let mut look = Command::new("/usr/bin/python3");
    look.args(["-c", "import sys; print('ready', flush=True); sys.stdin.readline()"]);
    let mut session = t.session(t.lifted(&options, &look)?)?;
    session.wait_for_line("ready")?;
    let view = View::of(session.pid())?;
    let object = view.executable()?;
    let read_only = object.image.segments.iter().filter(|s| !s.protection.write);
    let extent = read_only
        .map(|s| s.memory.widened(view.base_page).shifted(object.bias))
        .reduce(|a, b| AddressRange::new(a.start().min(b.start()), a.end().max(b.end())));
    let due = extent.context("no segments")?.whole_pages(default_huge_page()?);
    ensure!(!due.is_empty(), "not even together do its read-only segments hold a huge page");
    check_range(&view, due, source_of(pages, false)).with_context(|| session.stderr_so_far())?;
    view.check_read_only_contents(object)?;
    session.send("go on\n")?;
    session.finish()?.success()?;

    let mut tests = Command::new("/usr/bin/python3");
    tests.args(["-m", "test", "test_re", "test_mmap", "test_json"]).current_dir(t.folder());
    static PLAIN: PlainAnswer = PlainAnswer::new();
    let lifted = t.run_within(t.lifted(&options, &tests)?, LIMIT)?.success()?.stdout;
    let plain = PLAIN.get(|| Ok(t.run_within(tests, LIMIT)?.success()?.stdout))?;
    for output in [&plain, &lifted] {
        ensure!(output.contains("All 3 tests OK."), "{output}");
    }
    Ok(())
}

/// Java's code is in an object that it loads only after the lift; here it must run as without Pagelift.
fn java(t: &Context, pages: &str) -> Result<()> {
    let mut plain = Command::new("java");
    plain.args(["-Xmx256m", "-XX:+UseSerialGC"]).arg(real("Work.java"));
    static PLAIN: PlainAnswer = PlainAnswer::new();
    let lifted = t.run_within(t.lifted(&["--pages", pages, "--objects", "all"], &plain)?, LIMIT)?.success()?;
    let plain = PLAIN.get(|| Ok(t.run_within(plain, LIMIT)?.success()?.stdout))?;
    ensure!(lifted.own_lines().len() == 1, "no line of Pagelift's: {}", lifted.stderr);
    ensure!(lifted.stdout == plain, "lifted printed\n{}\nplain\n{plain}", lifted.stdout);
    let last = plain.lines().last().context("no output")?;
    ensure!(last == "done", "it ended with `{last}`");
    Ok(())
}
