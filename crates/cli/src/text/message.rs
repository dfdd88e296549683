//! The line that `pagelift run` prints, and how it is written to the program's own standard error.

use address_space::{PageSize, format_bytes};
use lift_plan::Source;
use linux::file_rights::FileRights;
use process_view::ProcessFiles;
use session::LiftReport;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;

/// The line without its end.
pub fn line(report: &LiftReport) -> String {
    let head = format!("pagelift: {}[{}]: ", report.program, report.pid);
    if let Some(why) = &report.unlifted {
        return format!("{head}not lifted: {why}");
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
            Some(shortfall) => format!("{head}nothing lifted: {}", shortfall.reason.with_fix()),
            None => format!("{head}nothing lifted: none of the memory asked for is there"),
        };
    }
    let mut text = format!("{head}{}", coverage(report));
    if report.advised_bytes > 0 {
        text += &format!(", {} more advised", format_bytes(report.advised_bytes));
    }
    if let Some(sealing) = &report.sealing {
        text += &format!(", {} sealed", format_bytes(sealing.sealed));
    }
    text += &format!(", {:.1} ms", report.lift_microseconds as f64 / 1000.0);
    if let Some(shortfall) = shortfall.filter(|shortfall| !shortfall.is_expected) {
        text += &format!("; {} not: {}", format_bytes(shortfall.bytes), shortfall.reason.with_fix());
    }
    if let Some(reason) = report.sealing.as_ref().and_then(|sealing| sealing.reason.as_ref()) {
        text += &format!("; not all is sealed, which needs Linux 6.10: {}", reason.with_fix());
    }
    text
}

fn coverage(report: &LiftReport) -> String {
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

/// Opens the standard error of process `pid` where it cannot be duplicated (some containers' filters refuse
/// pidfd_getfd). It is opened only where the process itself has it open for writing, and with the process's own rights
/// and without capabilities: root may open everything, and the user of a set-user-ID program chooses its standard
/// error.
fn open_as_process(pid: i32) -> Option<File> {
    let process = ProcessFiles::of(pid);
    let status = process.text("status").ok()?;
    let descriptor = process.text(&format!("fdinfo/{}", libc::STDERR_FILENO)).ok()?;
    if !is_open_for_writing(&descriptor) {
        return None;
    }
    let open = || {
        let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
        OpenOptions::new().append(true).custom_flags(flags).open(format!("/proc/{pid}/fd/{}", libc::STDERR_FILENO))
    };
    FileRights::of_status(&status)?.act(open).ok()?.ok()
}

/// Reads the text of `/proc/PID/fdinfo/FD`, whose flags are octal (proc_pid_fdinfo(5)).
fn is_open_for_writing(text: &str) -> bool {
    let flags = text.lines().find_map(|line| i32::from_str_radix(line.strip_prefix("flags:")?.trim(), 8).ok());
    flags.is_some_and(|flags| [libc::O_WRONLY, libc::O_RDWR].contains(&(flags & libc::O_ACCMODE)))
}

/// Returns a warning for every lift of writable memory from the pool.
pub fn fork_warning(report: &LiftReport) -> Option<&'static str> {
    let risky = report.ranges.iter().any(|r| r.protection.write && r.source == Some(Source::Hugetlb));
    risky.then_some("writable memory is on pool pages: children of a fork need free pool pages for what they write")
}

/// Writes to the standard error of process `pid`, as if the program itself had. Nothing is written where that would
/// block, or where the program has no standard error.
pub fn say_to(pid: i32, text: &str) {
    let opened = linux::descriptors::duplicate_of(pid, libc::STDERR_FILENO);
    let Some(mut stderr) = opened.ok().or_else(|| open_as_process(pid)) else { return };
    let mut poll = [nix::poll::PollFd::new(stderr.as_fd(), nix::poll::PollFlags::POLLOUT)];
    if matches!(nix::poll::poll(&mut poll, nix::poll::PollTimeout::ZERO), Ok(ready) if ready > 0) {
        let _ = stderr.write_all(text.as_bytes());
    }
}
