//! The one line that `pagelift run` says, and how it reaches the program's own standard error.

use super::report::Report;
use address_space::{PageSize, format_bytes};
use lift_plan::{Reason, Source};
use std::fs::OpenOptions;
use std::io::Write;
use std::os::fd::AsFd;

/// The line without its end.
pub fn line(report: &Report) -> String {
    let head = format!("pagelift: {}[{}]: ", report.program, report.pid);
    if let Some(why) = &report.unlifted {
        return format!("{head}runs as it is: {why}");
    }
    if !report.unexpected.is_empty() {
        return format!(
            "{head}FAULT: the address space differs where it should not; please report this: {:?}",
            report.unexpected[0]
        );
    }
    let shortfall = report.main_shortfall();
    if report.covered_bytes + report.advised_bytes == 0 {
        return match shortfall {
            Some((_, reason)) => format!("{head}nothing lifted: {}", with_mend(reason)),
            None => format!("{head}nothing lifted: none of the memory asked for is there"),
        };
    }
    let mut text = format!("{head}{}", coverage(report));
    if report.advised_bytes > 0 {
        text += &format!(", {} more advised", format_bytes(report.advised_bytes));
    }
    text += &format!(", {:.1} ms", report.lift_microseconds as f64 / 1000.0);
    if let Some((bytes, reason)) = shortfall.filter(|(_, reason)| !matches!(reason, Reason::NoWholePage { .. })) {
        text += &format!("; {} not: {}", format_bytes(bytes), with_mend(reason));
    }
    text
}

fn coverage(report: &Report) -> String {
    let sources = report.sources();
    let covered = format_bytes(report.covered_bytes);
    let all = format_bytes(report.considered_bytes);
    // "19.4 of 33.9 MiB" where the units agree.
    let short = match (covered.split_once(' '), all.split_once(' ')) {
        (Some((number, unit)), Some((_, same))) if unit == same => number.to_owned(),
        _ => covered,
    };
    let mut sizes: Vec<PageSize> = sources.iter().map(|(_, size, _)| *size).collect();
    sizes.sort_unstable();
    sizes.dedup();
    let sizes = sizes.iter().map(ToString::to_string).collect::<Vec<_>>().join(" and ");
    let by = match sources.as_slice() {
        [] => return format!("{short} of {all} on huge pages"),
        [(source, ..)] => source.to_string(),
        several => several
            .iter()
            .map(|(source, _, bytes)| format!("{source} {}", format_bytes(*bytes)))
            .collect::<Vec<_>>()
            .join(", "),
    };
    format!("{short} of {all} on {sizes} pages ({by})")
}

/// A reason and the command that mends it.
pub fn with_mend(reason: &Reason) -> String {
    match reason.mend() {
        Some(mend) => format!("{reason}; to mend: {mend}"),
        None => reason.to_string(),
    }
}

/// A warning that belongs to every lift of writable memory from the pool.
pub fn fork_warning(report: &Report) -> Option<&'static str> {
    let risky = report.ranges.iter().any(|r| r.protection.write && r.source == Some(Source::Hugetlb));
    risky.then_some("writable memory is on pool pages: children of a fork need free pool pages for what they write")
}

/// Writes to the standard error of process `pid`, as if the program itself had. Nothing is written where that would
/// block, or where the program has no standard error.
pub fn say_to(pid: i32, text: &str) {
    let opened = kernel_calls::descriptors::duplicate_of(pid, libc::STDERR_FILENO)
        .or_else(|_| OpenOptions::new().append(true).open(format!("/proc/{pid}/fd/2")));
    let Ok(mut stderr) = opened else { return };
    let mut poll = [nix::poll::PollFd::new(stderr.as_fd(), nix::poll::PollFlags::POLLOUT)];
    if matches!(nix::poll::poll(&mut poll, nix::poll::PollTimeout::ZERO), Ok(ready) if ready > 0) {
        let _ = stderr.write_all(text.as_bytes());
    }
}
