//! Collapses a process's anonymous memory from outside, in place: for programs whose allocator takes no advice.
//!
//! Only huge pages that are half touched already are made: no more memory becomes resident than is in use. What that
//! costs is bounded: between two passes the watcher sleeps many times as long as the pass took.

use address_space::{AddressRange, MappingName, MappingUsage, PageSize, RangeSet};
use kernel_calls::{advice, pagemap::Pagemap};
use observation::ProcessFiles;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// A huge page is made where at least one of so many parts of it has been touched.
const LEAST_TOUCHED: u64 = 2;
/// At most so much is collapsed by one call, which holds the process's memory lock.
const AT_ONCE: u64 = 64 << 20;
/// The first pass comes when most of a program's start is over.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// The watcher's share of one CPU is one in so many.
const PAUSE_TIMES_PASS: u32 = 20;

/// Mappings that are left alone, by their flags in smaps (proc_pid_smaps(5)): advised against huge pages, locked,
/// registered with userfaultfd, device memory.
const LEFT_ALONE: [&str; 6] = ["nh", "lo", "um", "uw", "ui", "io"];

/// Why nothing is collapsed.
#[derive(Debug)]
pub enum CollapseError {
    /// The process has ended, or may not be looked at.
    Gone,
    /// The kernel does not let us: before Linux 6.1, or without CAP_SYS_NICE.
    Refused(io::Error),
}

/// Collapses what is dense enough, once; the bytes that now stand on huge pages and did not before.
///
/// # Errors
/// [`CollapseError`]. A range that the kernel cannot collapse is passed over.
pub fn collapse_once(pid: i32, huge: PageSize, base: PageSize) -> Result<u64, CollapseError> {
    let usages = ProcessFiles::of(pid).smaps().map_err(|_| CollapseError::Gone)?;
    let pagemap = Pagemap::open(pid, base).map_err(|_| CollapseError::Gone)?;
    let mut done = 0;
    for usage in usages.iter().filter(|usage| may_be_collapsed(usage)) {
        let range = usage.mapping.range.whole_pages(huge);
        if range.is_empty() {
            continue;
        }
        let touched = pagemap.touched(range).map_err(|_| CollapseError::Gone)?;
        // Kernels that do not tell which pages are huge take a second collapse of one as done.
        let already = pagemap.huge(range).unwrap_or_default();
        for run in dense_runs(range, huge, &touched, &already) {
            done += collapse_run(pid, run, huge)?;
        }
    }
    Ok(done)
}

/// Collapses a run, or where that fails what can be collapsed of it; the bytes that were.
fn collapse_run(pid: i32, run: AddressRange, huge: PageSize) -> Result<u64, CollapseError> {
    match advice::collapse(pid, run) {
        Ok(()) => return Ok(run.len()),
        Err(error) if is_refusal(&error) => return Err(CollapseError::Refused(error)),
        Err(_) if run.len() == huge.bytes() => return Ok(0),
        Err(_) => {}
    }
    Ok(run.pages(huge).filter(|&page| advice::collapse(pid, page).is_ok()).map(AddressRange::len).sum())
}

/// Collapses again and again until the process ends; the reason why it stopped before, if it did.
pub fn collapse_while_it_runs(pid: i32, huge: PageSize, base: PageSize) -> Result<(), CollapseError> {
    // An open file of the process stays its own, whatever becomes of the number.
    let Ok(state) = File::open(format!("/proc/{pid}/stat")) else { return Ok(()) };
    let mut pause = FIRST_PAUSE;
    loop {
        sleep(pause);
        if has_ended(&state) {
            return Ok(());
        }
        let started = Instant::now();
        let done = match collapse_once(pid, huge, base) {
            Ok(done) => done,
            Err(CollapseError::Gone) => return Ok(()),
            Err(refused) => return Err(refused),
        };
        let longer = if done > 0 { FIRST_PAUSE } else { (pause * 2).min(LONGEST_PAUSE) };
        pause = longer.max(started.elapsed() * PAUSE_TIMES_PASS);
    }
}

fn has_ended(state: &File) -> bool {
    let mut text = [0; 512];
    let Ok(length) = state.read_at(&mut text, 0) else { return true };
    let text = String::from_utf8_lossy(&text[..length]).into_owned();
    // The name is in parentheses and may hold anything; the state follows it.
    text.rsplit_once(')').is_none_or(|(_, rest)| matches!(rest.trim_start().chars().next(), None | Some('Z' | 'X')))
}

fn is_refusal(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::Unsupported)
}

fn may_be_collapsed(usage: &MappingUsage) -> bool {
    let mapping = &usage.mapping;
    let anonymous = mapping.inode == 0 && !matches!(mapping.name, MappingName::Stack | MappingName::Special(_));
    let left = usage.resident > usage.anonymous_huge && usage.hugetlb == 0;
    anonymous
        && !mapping.shared
        && mapping.protection.write
        && left
        && !LEFT_ALONE.iter().any(|flag| usage.has_flag(flag))
}

/// Runs of huge pages that are dense and not huge yet, each at most [`AT_ONCE`] long.
fn dense_runs(range: AddressRange, huge: PageSize, touched: &RangeSet, already: &RangeSet) -> Vec<AddressRange> {
    let mut runs: Vec<AddressRange> = Vec::new();
    for page in range.pages(huge) {
        if touched.bytes_in(page) * LEAST_TOUCHED < page.len() || already.overlaps(page) {
            continue;
        }
        match runs.last_mut() {
            Some(last) if last.end() == page.start() && last.len() < AT_ONCE => {
                *last = AddressRange::new(last.start(), page.end());
            }
            _ => runs.push(page),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;
    use address_space::Address;

    #[test]
    fn only_dense_pages_that_are_not_huge_are_taken() {
        let huge = PageSize::new(1 << 21).unwrap();
        let page = |number: u64, share: u64| AddressRange::sized(Address(number << 21), (1 << 21) / share);
        let mut touched = RangeSet::new();
        for (number, share) in [(1, 1), (2, 2), (3, 4), (4, 1), (5, 1)] {
            touched.insert(page(number, share));
        }
        let mut already = RangeSet::new();
        already.insert(page(5, 1));
        let range = AddressRange::new(Address(1 << 21), Address(7 << 21));
        let runs = dense_runs(range, huge, &touched, &already);
        let both = AddressRange::new(Address(1 << 21), Address(3 << 21));
        assert_eq!(runs, [both, page(4, 1)]);
    }

    #[test]
    fn a_process_that_ended_is_noticed() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let state = File::open(format!("/proc/{}/stat", child.id())).unwrap();
        child.wait().unwrap();
        assert!(has_ended(&state));
        assert!(!has_ended(&File::open("/proc/self/stat").unwrap()));
    }
}
