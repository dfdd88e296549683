//! CPython's own tests of threads, signals, processes and mappings: the same outcomes as plain.

use anyhow::{Context as _, Result, ensure};
use std::fs;
use std::path::Path;
use test_support::{Context, Need, PythonRun, PythonTests, Test, default_huge_page, python_name, test_case};

const TESTS: PythonTests<'static> =
    PythonTests { modules: &["test_threading", "test_signal", "test_subprocess", "test_mmap", "test_fork1"] };
/// Debian's Python holds a whole huge page only across code and read-only data. The tests compare their programs'
/// standard error, so Pagelift prints nothing.
const OPTIONS: [&str; 5] = ["--quiet", "--pages", "thp", "--edges", "merge-read-only"];
/// For about a dozen interpreters at a time, each with this reserve.
const POOL: u64 = 1 << 30;
const RESERVE: u64 = 16 << 20;

pub fn tests() -> Vec<Test> {
    let needs = |need| [PythonTests::needs(), vec![Need::Thp, need]].concat();
    vec![
        test_case("cpython_tests/thp", needs(Need::Thp), |t| same_outcomes(t, &[], false)),
        test_case("cpython_tests/heap_on_the_pool", needs(Need::Pool(POOL)), |t| {
            let heap = format!("--heap={}", default_huge_page()?.bytes());
            same_outcomes(t, &[&heap, &format!("--heap-reserve={RESERVE}")], true)
        }),
    ]
}

/// Runs the tests plain, under `run`, and under `run --only`, all at the same time.
fn same_outcomes(t: &Context, heap: &[&str], on_pool: bool) -> Result<()> {
    let report = t.folder().join("report.json");
    let lifted = [&OPTIONS, heap].concat();
    let report_name = report.to_string_lossy();
    let followed = [&lifted[..], &["--report", &report_name]].concat();
    let [plain, each, followed] = [
        ("plain", PythonRun::Plain),
        ("run", PythonRun::EachLifted(&lifted)),
        ("only", PythonRun::Followed(&followed)),
    ]
    .map(|(name, how)| TESTS.start(t, name, how));
    let (plain, each, followed) = (plain?.finish(t)?, each?.finish(t)?, followed?.finish(t)?);
    t.note(format!("plain: {}", plain.outcomes));
    plain.outcomes.check_same(&each.outcomes).context("pagelift run")?;
    plain.outcomes.check_same(&followed.outcomes).context("pagelift run --only")?;
    let (last, its_heap_is_on_pool) = followed.last.context("the last Python did not run to its end")?;
    check_lifted_to_the_end(&report, last)?;
    ensure!(its_heap_is_on_pool == on_pool, "pool pages in the last Python: {its_heap_is_on_pool}, due: {on_pool}");
    Ok(())
}

/// Checks that the process that follows the descendants was still running for the last of them.
fn check_lifted_to_the_end(report: &Path, last: u32) -> Result<()> {
    let text = fs::read_to_string(report).with_context(|| format!("no report {}", report.display()))?;
    let mut found = None;
    for line in text.lines() {
        let one: serde_json::Value = serde_json::from_str(line)?;
        ensure!(one["program"] == python_name(), "another program was lifted: {}", one["program"]);
        if one["pid"] == last {
            found = one["covered_bytes"].as_u64();
        }
    }
    ensure!(
        found.is_some_and(|bytes| bytes > 0),
        "process {last}, which started after the tests, was not lifted ({found:?}); {} were before it",
        text.lines().count()
    );
    Ok(())
}
