//! A conformance suite for executors.
//!
//! The engine relies on each sentence of [`Executor`]'s description; this suite checks an executor against them. The
//! simulated kernel passes it in this crate's tests. A real executor runs it like this: implement [`Subject`] for it
//! (its process needs no memory, because the suite maps its own), describe the machine in a [`Ground`], and give a
//! fresh process to each check:
//!
//! ```
//! # use lift_simulation::conformance::{Ground, Subject, checks};
//! fn conforms<S: Subject>(mut fresh: impl FnMut() -> S, ground: &Ground) {
//!     for check in checks::<S>() {
//!         let result = (check.run)(&mut fresh(), ground);
//!         assert_eq!(result, Ok(()), "{}", check.name);
//!     }
//! }
//! ```
//!
//! [`assert_conforms`] does just that and names every check that fails. A check for which the ground lacks something, a
//! pool for example, does not run; [`Check::needs`] says which.

mod files;
mod huge;
mod ordinary;

use address_space::{Address, AddressRange, PageSize};
use lift_execution::{CallError, Executor};

/// An executor whose process's memory the suite can access.
pub trait Subject: Executor {
    /// Reads the process's memory.
    ///
    /// # Errors
    /// A byte cannot be read.
    fn read_memory(&mut self, range: AddressRange) -> Result<Vec<u8>, CallError>;

    /// Writes to the process's memory, which is mapped and writable.
    ///
    /// # Errors
    /// A byte cannot be written.
    fn write_memory(&mut self, at: Address, bytes: &[u8]) -> Result<(), CallError>;
}

/// The features of the machine that the executor can use.
#[derive(Clone, Copy, Debug)]
pub struct Ground {
    /// Ordinary page size.
    pub base_page: PageSize,
    /// A pool with at least [`POOL_PAGES`] free pages that no other process takes during the suite.
    pub pool: Option<PageSize>,
    /// Transparent huge pages, at least on advice.
    pub thp: Option<PageSize>,
    /// The path of a file of at least two base pages that the process may read; its executor maps files.
    pub file: Option<&'static str>,
    /// `mremap` moves pool memory (Linux 5.16).
    pub movable_hugetlb: bool,
    /// `MADV_COLLAPSE` exists (Linux 6.1).
    pub collapse: bool,
}

/// Pool pages that the suite has in use at a time, at most.
pub const POOL_PAGES: u64 = 4;

/// The needs of a check beyond ordinary pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// Nothing.
    Nothing,
    /// A pool.
    Pool,
    /// Transparent huge pages.
    Thp,
    /// A file that the executor can map.
    File,
}

/// One requirement on an executor.
pub struct Check<S> {
    /// Name: a sentence with underscores for blanks.
    pub name: &'static str,
    /// The features that the ground must have for this check.
    pub needs: Needs,
    /// Runs the check; the error names the expected and the found value.
    pub run: fn(&mut S, &Ground) -> Result<(), String>,
}

impl<S> Check<S> {
    /// True if the ground has all features that the check needs.
    pub fn can_run(&self, ground: &Ground) -> bool {
        match self.needs {
            Needs::Nothing => true,
            Needs::Pool => ground.pool.is_some(),
            Needs::Thp => ground.thp.is_some(),
            Needs::File => ground.file.is_some(),
        }
    }
}

/// Every check of the suite.
pub fn checks<S: Subject>() -> Vec<Check<S>> {
    let mut checks = ordinary::checks();
    checks.extend(huge::checks());
    checks.extend(files::checks());
    checks
}

/// Runs every check that the ground allows, each on a fresh process, and returns the names of these checks.
///
/// # Panics
/// Any check fails; the message holds the name and finding of each.
pub fn assert_conforms<S: Subject>(mut fresh: impl FnMut() -> S, ground: &Ground) -> Vec<&'static str> {
    let mut ran = Vec::new();
    let mut failed = Vec::new();
    for check in checks::<S>().into_iter().filter(|check| check.can_run(ground)) {
        ran.push(check.name);
        if let Err(finding) = (check.run)(&mut fresh(), ground) {
            failed.push(format!("{}: {finding}", check.name));
        }
    }
    assert!(failed.is_empty(), "the executor does not conform:\n{}", failed.join("\n"));
    ran
}

/// The outcome of a check.
type Checked = Result<(), String>;

/// Returns an error if a condition does not hold.
fn expect(holds: bool, what: impl FnOnce() -> String) -> Checked {
    if holds { Ok(()) } else { Err(what()) }
}

/// Names the call that should have succeeded.
fn call<T>(result: Result<T, CallError>) -> Result<T, String> {
    result.map_err(|error| format!("unexpected error: {error}"))
}

/// Names the call that should have failed.
fn refused<T>(result: Result<T, CallError>, what: &str) -> Checked {
    expect(result.is_err(), || format!("{what} succeeded, an error was expected"))
}

/// Bytes that differ from page to page and from seed to seed.
fn pattern(length: u64, seed: u64) -> Vec<u8> {
    (0..length).map(|at| ((at / 8 * 31 + at + seed * 97) % 253) as u8 + 1).collect()
}

fn expect_bytes(subject: &mut impl Subject, range: AddressRange, expected: &[u8]) -> Checked {
    let found = call(subject.read_memory(range))?;
    // One memcmp: a search byte by byte took three quarters of the suite's time in a debug build.
    expect(found == expected, || {
        let differs = found.iter().zip(expected).position(|(a, b)| a != b);
        format!("{range} of {} bytes differs from {} from byte {differs:?} on", found.len(), expected.len())
    })
}
