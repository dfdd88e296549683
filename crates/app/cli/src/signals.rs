//! Signals that a command hands on to the program that it has started.

/// Returns the signals that are not ignored. An ignored one (SIGHUP under nohup) stays ignored, in programs that are
/// started too: a handler would be reset to the default action by their exec.
pub fn not_ignored(signals: &[i32]) -> Vec<i32> {
    let status = linux::text::text_of("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    signals.iter().copied().filter(|signal| ignored >> (signal - 1) & 1 == 0).collect()
}
