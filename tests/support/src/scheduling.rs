//! Starts that are repeated for reasons outside of the test.

use crate::context::Context;
use crate::process::Output;
use anyhow::Result;

/// Reasons for which a program is not lifted while other processes use all CPUs.
pub const LATE_HELPER: [&str; 2] = ["its helper was not scheduled in time", "before its helper was scheduled"];
/// Maximum number of starts. The output of the last one is checked whatever it reports.
const MOST_STARTS: u32 = 5;

/// Repeats a start while its standard error contains a listed reason. Returns the output of the last start.
///
/// # Errors
/// The error of a start.
pub fn repeat_upon(t: &Context, reasons: &[&str], mut start: impl FnMut() -> Result<Output>) -> Result<Output> {
    for _ in 1..MOST_STARTS {
        let output = start()?;
        if !reasons.iter().any(|reason| output.stderr.contains(reason)) {
            return Ok(output);
        }
        t.note(format!("started again: {}", output.stderr.trim()));
    }
    start()
}

/// Repeats a start until each program's helper got a CPU in time: a program does not wait long at its entry.
///
/// # Errors
/// The error of a start.
pub fn until_scheduled(t: &Context, start: impl FnMut() -> Result<Output>) -> Result<Output> {
    repeat_upon(t, &LATE_HELPER, start)
}
