//! Redis' own test suite, from Debian's source, against Debian's server, lifted in each possible way.

use crate::{compare, plain_once};
use anyhow::{Context as _, Result, bail, ensure};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use test_support::{
    Context, Ending, Need, Outcome, Outcomes, Skipped, Test, pagelift_binary, target_folder, test_case,
};

/// For one unit of the suite; a minute or two is usual.
const LIMIT: Duration = Duration::from_secs(900);
/// Size of a range of ports; each of the parallel units looks for free ports in its own range.
const PORTS: usize = 64;
const FIRST_PORT: usize = 21111;
const RANGES: usize = 64;
const POOL: u64 = 1 << 30;
/// The contents of `src` in Redis' source after a build.
const PROGRAMS: [&str; 5] = ["redis-server", "redis-cli", "redis-benchmark", "redis-check-aof", "redis-check-rdb"];

/// How the servers are lifted.
#[derive(Clone, Copy)]
enum Way {
    /// Each server by `pagelift run` with these options.
    Each(&'static [&'static str]),
    /// All servers by one `pagelift run --only` around the whole suite.
    Only,
}

const WAYS: [(&str, Way); 4] = [
    ("run", Way::Each(&["--quiet"])),
    ("only", Way::Only),
    ("heap", Way::Each(&["--quiet", "--heap=2M", "--heap-reserve=32M"])),
    ("preload", Way::Each(&["--quiet", "--via", "preload"])),
];

pub fn tests() -> Vec<Test> {
    let units = units().unwrap_or_default();
    if units.is_empty() {
        return vec![test_case("redis", needs(), |_| bail!("the suite names no units"))];
    }
    let mut tests = Vec::new();
    for (name, way) in WAYS {
        for unit in &units {
            let mut needs = needs();
            if name == "heap" {
                needs.push(Need::Pool(POOL));
            }
            let (unit, ports) = (unit.clone(), FIRST_PORT + tests.len() % RANGES * PORTS);
            tests.push(test_case(format!("redis/{name}/{unit}"), needs, move |t| check(t, name, &unit, way, ports)));
        }
    }
    tests
}

fn needs() -> Vec<Need> {
    let mut needs = vec![Need::Thp, Need::Command("tclsh".into())];
    needs.extend(PROGRAMS.map(|program| Need::File(format!("/usr/bin/{program}"))));
    needs.push(Need::File(list_of_units().to_string_lossy().into_owned()));
    needs
}

/// `make suites` fetches it.
fn source() -> PathBuf {
    target_folder().join("test-sources/redis")
}

fn list_of_units() -> PathBuf {
    source().join("tests/test_helper.tcl")
}

/// The units of the suite, as it lists them itself.
fn units() -> Result<Vec<String>> {
    let text = fs::read_to_string(list_of_units())?;
    let (_, list) = text.split_once("set ::all_tests {").context("no list of tests")?;
    let (list, _) = list.split_once('}').context("no end of the list of tests")?;
    Ok(list.split_whitespace().map(str::to_owned).collect())
}

fn check(t: &Context, name: &str, unit: &str, way: Way, ports: usize) -> Result<()> {
    let plain = plain_once(&format!("redis/{unit}"), || outcomes(t, unit, "plain", None, ports))?;
    if plain.count(Outcome::Passed) == 0 {
        return Err(Skipped(format!("no test of it passes plain: {plain}")).into());
    }
    let lifted = outcomes(t, unit, name, Some(way), ports)?;
    compare(&format!("redis/{name}/{unit}"), &plain, &lifted)
}

fn outcomes(t: &Context, unit: &str, name: &str, way: Option<Way>, ports: usize) -> Result<Outcomes> {
    // A socket's name, which includes the folder's name, may have 107 bytes (unix(7)).
    let tree = std::env::temp_dir().join(format!("pagelift-redis-{}-{ports}-{name}", std::process::id()));
    prepare(&tree, way)?;
    t.note(format!("servers' logs, kept where a test fails: {}", tree.join("tests/tmp").display()));
    let mut suite = Command::new("tclsh");
    suite.args(["tests/test_helper.tcl", "--clients", "1", "--timeout", "600", "--single", unit]);
    suite.args(["--baseport", &ports.to_string(), "--portcount", &(PORTS / 2).to_string()]);
    suite.current_dir(&tree).env("TERM", "dumb");
    let suite = match way {
        Some(Way::Only) => t.lifted(&["--quiet", "--only", "redis-server"], &suite)?,
        _ => suite,
    };
    let output = t.run_within(suite, LIMIT)?;
    // 1: a test failed, as the outcomes show.
    let ended_well = matches!(output.ending, Ending::Exit(0 | 1));
    ensure!(ended_well, "{:?}:\n{}{}", output.ending, output.stdout, output.stderr);
    let outcomes = read(&output.stdout);
    if outcomes.count(Outcome::Failed) == 0 {
        fs::remove_dir_all(&tree)?;
    }
    Ok(outcomes)
}

/// Prepares the files that the suite expects below its current folder: its tests, and the installed programs in `src`.
fn prepare(tree: &Path, way: Option<Way>) -> Result<()> {
    fs::create_dir_all(tree.join("src"))?;
    let copied = ["tests", "utils", "redis.conf", "sentinel.conf"].map(|name| source().join(name));
    let status = Command::new("cp").arg("-a").args(copied).arg(tree).status()?;
    ensure!(status.success(), "the tests could not be copied");
    for program in PROGRAMS {
        let installed = Path::new("/usr/bin").join(program);
        let place = tree.join("src").join(program);
        match way {
            Some(Way::Each(options)) if program == "redis-server" => {
                let pagelift = pagelift_binary()?;
                let (pagelift, installed) = (pagelift.display(), installed.display());
                let script = format!("#!/bin/sh\nexec {pagelift} run {} -- {installed} \"$@\"\n", options.join(" "));
                fs::write(&place, script)?;
                fs::set_permissions(&place, fs::Permissions::from_mode(0o755))?;
            }
            _ => symlink(&installed, &place)?,
        }
    }
    Ok(())
}

/// Reads lines such as `[ok]: NAME (3 ms)` and `[err]: NAME in tests/unit/expire.tcl`.
fn read(text: &str) -> Outcomes {
    let mut outcomes = Outcomes::default();
    for line in text.lines() {
        let Some((word, name)) = line.strip_prefix('[').and_then(|rest| rest.split_once("]: ")) else { continue };
        match word {
            "ok" => outcomes.add(name.rsplit_once(" (").map_or(name, |(name, _)| name), Outcome::Passed),
            "err" | "exception" | "TIMEOUT" => {
                outcomes.add(name.rsplit_once(" in tests/").map_or(name, |(name, _)| name), Outcome::Failed);
            }
            "skip" | "ignore" => outcomes.add(name, Outcome::Skipped),
            _ => {}
        }
    }
    outcomes
}
