//! Where programs that run cannot be lifted yet: the code that a borrowed thread finishes by exists for x86-64 only.

use super::report::Report;
use anyhow::bail;
use lift_plan::{MachineFacts, Policy};
use observation::ObjectReader;

const NEEDED: &str = "programs that run can be lifted on x86-64 only; needed here: a start by `pagelift run`";

/// Refuses.
///
/// # Errors
/// Always; the program runs on as it was.
pub fn lift_running(
    _pid: i32,
    _reader: &mut ObjectReader,
    _machine: &MachineFacts,
    _policy: &Policy,
    _report: &mut Report,
) -> anyhow::Result<String> {
    bail!(NEEDED)
}

/// Refuses.
///
/// # Errors
/// Always; the program runs on as it was.
pub fn restore_running(_pid: i32) -> anyhow::Result<String> {
    bail!(NEEDED)
}
