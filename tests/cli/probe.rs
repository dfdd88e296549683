//! `pagelift probe`: the cost of translation. The tests do not check times, only that each page size of the machine has
//! times, and each missing page size a reason.

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};
use test_support::{Context, Need, main_of, pagelift_binary, test_case};

/// Number of the user and the group `nobody`.
const NOBODY: u32 = 65534;
/// Quick, and large enough for the beginning of each level.
const QUICK: [&str; 6] = ["probe", "--for", "1", "--memory", "16M", "--json"];

fn main() -> ExitCode {
    main_of(vec![
        test_case("for_an_ordinary_user", vec![Need::Root, Need::Thp], ordinary_user),
        test_case(
            "without_huge_pages_there_is_a_reason",
            vec![Need::Thp, Need::Command("python3".into())],
            without_thp,
        ),
        test_case("text_has_both_page_sizes", vec![Need::Thp], text),
        test_case("more_memory_than_there_is_is_refused", vec![], too_much),
    ])
}

fn ordinary_user(t: &Context) -> Result<()> {
    let mut command = t.pagelift(&QUICK)?;
    command.uid(NOBODY).gid(NOBODY).current_dir("/");
    let probe: Value = serde_json::from_str(&t.run(command)?.success()?.stdout)?;
    for what in ["data", "code"] {
        let series = probe[what]["series"].as_array().context("no series")?;
        let sources: Vec<&str> = series.iter().filter_map(|series| series["backing"]["source"].as_str()).collect();
        ensure!(sources.starts_with(&["base", "transparent"]), "{what}: {sources:?}");
        for series in series {
            check_curve(series["curve"].as_array().context("no curve")?)?;
        }
    }
    ensure!(probe["verdict"]["data"]["base"].is_number(), "no verdict: {}", probe["verdict"]);
    Ok(())
}

/// Checks that footprints rise to the requested one, and that each has times.
fn check_curve(points: &[Value]) -> Result<()> {
    let footprints: Vec<u64> = points.iter().filter_map(|point| point["footprint"].as_u64()).collect();
    ensure!(footprints.windows(2).all(|pair| pair[0] < pair[1]), "{footprints:?}");
    ensure!(footprints.last() == Some(&(16 << 20)), "{footprints:?}");
    for point in points {
        let access = point["access"].as_f64().context("no time")?;
        ensure!(access.is_finite() && access > 0.0 && point["translation"].is_number(), "{point}");
    }
    Ok(())
}

/// PR_SET_THP_DISABLE (prctl(2)) is inherited.
fn without_thp(t: &Context) -> Result<()> {
    const OFF: &str =
        "import ctypes, os, sys; ctypes.CDLL(None).prctl(41, 1, 0, 0, 0); os.execv(sys.argv[1], sys.argv[1:])";
    let mut command = Command::new("python3");
    command.args(["-c", OFF]).arg(pagelift_binary()?).args(QUICK);
    let probe: Value = serde_json::from_str(&t.run(command)?.success()?.stdout)?;
    let unmeasured = probe["data"]["unmeasured"].as_array().context("no list")?;
    let missing = unmeasured.iter().find(|missing| missing["backing"]["source"] == "transparent");
    let reason = missing.and_then(|missing| missing["reason"].as_str()).context("transparent pages were measured")?;
    ensure!(reason.contains("PR_SET_THP_DISABLE"), "{reason}");
    Ok(())
}

fn text(t: &Context) -> Result<()> {
    let output = t.run(t.pagelift(&QUICK[..5])?)?.success()?;
    for wanted in
        ["Loads, one in each base page", "Jumps in code", "THP", "16.0 MiB", "of translation an access on base pages"]
    {
        ensure!(output.stdout.contains(wanted), "no {wanted:?} in:\n{}", output.stdout);
    }
    Ok(())
}

fn too_much(t: &Context) -> Result<()> {
    let output = t.run(t.pagelift(&["probe", "--memory", "1000T"])?)?;
    ensure!(output.stderr.contains("are available; fix: --memory "), "{}", output.stderr);
    ensure!(output.stdout.is_empty(), "{}", output.stdout);
    Ok(())
}
