//! Every fuzz target on damaged inputs, for a fixed number of rounds with a fixed seed.
//!
//! `PAGELIFT_FUZZ_ROUNDS` sets another number of rounds, `PAGELIFT_FUZZ_SEED` another seed. The present input is kept
//! in `target/tmp/hostile-input/`, and stays there when a target fails or takes too much memory;
//! `PAGELIFT_FUZZ_INPUT=FILE cargo test -p hostile-input --test bounded -- TARGET` reads one such file again.

use anyhow::{Context as _, Result, bail};
use fastrand::Rng;
use hostile_input::{MEMORY, TARGETS, Target, mutation};
use libtest_mimic::{Arguments, Failed, Trial as Test};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{env, fs};

/// Rounds for each target; with a debug build all targets together take about half a minute.
const ROUNDS: u64 = 1_500;
/// Besides a target's memory there are its samples and this program.
const OWN_MEMORY: u64 = 256 << 20;

fn main() -> Result<ExitCode> {
    let mut arguments = Arguments::from_args();
    // The limit of memory is one for the whole process.
    arguments.test_threads = Some(1);
    limit_memory()?;
    let fuzz =
        |target: Target| Test::test(target.name, move || run(&target).map_err(|e| Failed::from(format!("{e:#}"))));
    Ok(libtest_mimic::run(&arguments, TARGETS.map(fuzz).into()).exit_code())
}

/// Memory beyond the limit is refused by the kernel (setrlimit(2), RLIMIT_DATA, private memory since Linux 4.7), and the
/// allocation aborts the test.
fn limit_memory() -> Result<()> {
    let (_, most) = getrlimit(Resource::RLIMIT_DATA).context("getrlimit(RLIMIT_DATA)")?;
    setrlimit(Resource::RLIMIT_DATA, most.min(MEMORY + OWN_MEMORY), most).context("setrlimit(RLIMIT_DATA)")
}

fn run(target: &Target) -> Result<()> {
    if let Some(path) = env::var_os("PAGELIFT_FUZZ_INPUT") {
        (target.run)(&fs::read(&path).with_context(|| format!("reading {}", Path::new(&path).display()))?);
        return Ok(());
    }
    let (rounds, seed) =
        (number("PAGELIFT_FUZZ_ROUNDS")?.unwrap_or(ROUNDS), number("PAGELIFT_FUZZ_SEED")?.unwrap_or(1));
    let input = input_file(target.name)?;
    let samples = (target.samples)();
    let mut random = Rng::with_seed(seed);
    let damaged = (0..rounds).map(|_| mutation::damaged(&samples, &mut random));
    for bytes in samples.iter().cloned().chain(damaged) {
        fs::write(&input, &bytes).with_context(|| format!("writing {}", input.display()))?;
        if catch_unwind(|| (target.run)(&bytes)).is_err() {
            let name = target.name;
            bail!(
                "target {name} panics; again: PAGELIFT_FUZZ_INPUT={} cargo test -p hostile-input --test bounded -- {name}",
                input.display()
            );
        }
    }
    fs::remove_file(&input).with_context(|| format!("removing {}", input.display()))
}

fn number(variable: &str) -> Result<Option<u64>> {
    let Ok(text) = env::var(variable) else { return Ok(None) };
    text.parse().map(Some).with_context(|| format!("{variable}: needed a number, found `{text}`"))
}

fn input_file(target: &str) -> Result<PathBuf> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("hostile-input");
    fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
    Ok(folder.join(target))
}
