//! Signals that a command hands on to the program that it has started, and signals that must not end it.

use anyhow::Context;
use signal_hook::consts::SIGPIPE;
use std::sync::Arc;

/// Returns the signals that are not ignored. An ignored one (SIGHUP under nohup) stays ignored, in programs that are
/// started too: a handler would be reset to the default action by their exec.
pub fn not_ignored(signals: &[i32]) -> Vec<i32> {
    let status = linux::text::text_of("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    signals.iter().copied().filter(|signal| ignored >> (signal - 1) & 1 == 0).collect()
}

/// A write to a closed pipe fails from now on, instead of ending this process by SIGPIPE: it must still restore what it
/// has changed.
pub fn survive_closed_pipes() -> anyhow::Result<()> {
    signal_hook::flag::register(SIGPIPE, Arc::default()).context("handling SIGPIPE")?;
    Ok(())
}
