//! Foreign suites and programs, plain and lifted: `make suites`. Not part of `make test`, because they take about an
//! hour.
//!
//! A test that passes plain must pass lifted; a test that fails plain is not counted; a test that does not apply here
//! is skipped with its reason.

mod chromium;
mod cpython;
mod go;
mod redis;
mod relaid;
mod stress_ng;
mod usr_bin;

use anyhow::{Result, anyhow};
use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use test_support::{Outcomes, main_of};

fn main() -> ExitCode {
    let mut tests = usr_bin::tests();
    tests.extend(relaid::tests());
    tests.extend(chromium::tests());
    tests.extend(cpython::tests());
    tests.extend(go::tests());
    tests.extend(stress_ng::tests());
    tests.extend(redis::tests());
    main_of(tests)
}

type PlainRun = Arc<OnceLock<Result<Outcomes, String>>>;

/// The outcomes of a suite's plain run, which all tests that compare with it share.
///
/// # Errors
/// The error of `run`, the same for each caller.
fn plain_once(suite: &str, run: impl FnOnce() -> Result<Outcomes>) -> Result<Outcomes> {
    static RUNS: Mutex<BTreeMap<String, PlainRun>> = Mutex::new(BTreeMap::new());
    let known = Arc::clone(RUNS.lock().unwrap_or_else(PoisonError::into_inner).entry(suite.to_owned()).or_default());
    known.get_or_init(|| run().map_err(|e| format!("{e:#}"))).clone().map_err(|e| anyhow!("plain: {e}"))
}

/// Compares with a plain run and prints a line about both: the suite's own tests are not listed as tests.
///
/// # Errors
/// See [`Outcomes::check_same`].
fn compare(what: &str, plain: &Outcomes, lifted: &Outcomes) -> Result<()> {
    println!("{what}: lifted {lifted}; plain {plain}");
    plain.check_same(lifted)
}
