//! Collapses a process's anonymous memory from outside, in place: for programs whose allocator takes no advice.
//!
//! Only huge pages of which half is touched are collapsed, so the resident memory at most doubles. The cost is bounded:
//! between two passes the watcher sleeps many times as long as the pass took.

use address_space::{AddressRange, PageSize, dense_runs, may_be_collapsed};
use linux::{advice, pagemap::Pagemap, process_handle::ProcessHandle, watch::watched};
use nix::errno::Errno;
use process_view::ProcessFiles;
use std::io;
use std::time::{Duration, Instant};

/// At most so much is collapsed by one call, which holds the process's memory lock.
const AT_ONCE: u64 = 64 << 20;
/// The first pass comes when most of a program's start is over.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// The watcher uses at most one CPU's time divided by this.
const PAUSE_TIMES_PASS: u32 = 20;

/// Why nothing is collapsed.
#[derive(Debug)]
pub enum CollapseError {
    /// The process has ended, or may not be read.
    Gone,
    /// The kernel does not let us: before Linux 6.1, or without CAP_SYS_NICE.
    Refused(io::Error),
}

/// Collapses the dense parts once, of the process that has this PID now. Returns the number of bytes that are newly on
/// huge pages.
///
/// # Errors
/// [`CollapseError`]. A range that the kernel cannot collapse is skipped.
pub fn collapse_once(pid: i32, huge: PageSize, base: PageSize) -> Result<u64, CollapseError> {
    collapse_pass(&open(pid)?, pid, huge, base)
}

fn open(pid: i32) -> Result<ProcessHandle, CollapseError> {
    ProcessHandle::open(pid).map_err(|error| match error.raw_os_error() {
        Some(code) if code == Errno::ESRCH as i32 => CollapseError::Gone,
        _ => CollapseError::Refused(error),
    })
}

/// Collapses the dense parts of a process once, as [`collapse_once`]. The PID is the one that the process has, or had.
fn collapse_pass(process: &ProcessHandle, pid: i32, huge: PageSize, base: PageSize) -> Result<u64, CollapseError> {
    let usages = ProcessFiles::of(pid).smaps().map_err(|_| CollapseError::Gone)?;
    let pagemap = Pagemap::open(pid, base).map_err(|_| CollapseError::Gone)?;
    // A file that was opened by the PID of an ended process may belong to another process.
    if !process.is_alive() {
        return Err(CollapseError::Gone);
    }
    let mut done = 0;
    for usage in usages.iter().filter(|usage| may_be_collapsed(usage)) {
        let range = usage.mapping.range.whole_pages(huge);
        if range.is_empty() {
            continue;
        }
        let touched = pagemap.touched(range).map_err(|_| CollapseError::Gone)?;
        // Kernels that do not report which pages are huge accept a second collapse as done.
        let already = pagemap.huge(range).unwrap_or_default();
        for run in dense_runs(range, huge, &touched, &already, AT_ONCE) {
            done += collapse_run(process, pid, run, huge)?;
        }
    }
    Ok(done)
}

/// Returns the bytes that [`collapse_once`] would still collapse: dense blocks on base pages. 0 on kernels that do not
/// report which pages are huge.
///
/// # Errors
/// [`CollapseError::Gone`].
pub fn collapsible(pid: i32, huge: PageSize, base: PageSize) -> Result<u64, CollapseError> {
    let usages = ProcessFiles::of(pid).smaps().map_err(|_| CollapseError::Gone)?;
    let pagemap = Pagemap::open(pid, base).map_err(|_| CollapseError::Gone)?;
    let mut left = 0;
    for usage in usages.iter().filter(|usage| may_be_collapsed(usage)) {
        let range = usage.mapping.range.whole_pages(huge);
        let Some(already) = Some(range).filter(|range| !range.is_empty()).and_then(|range| pagemap.huge(range).ok())
        else {
            continue;
        };
        let touched = pagemap.touched(range).map_err(|_| CollapseError::Gone)?;
        left += dense_runs(range, huge, &touched, &already, AT_ONCE).iter().map(|run| run.len()).sum::<u64>();
    }
    Ok(left)
}

/// Collapses a run or, if that fails, the parts that can be collapsed; returns their bytes.
fn collapse_run(process: &ProcessHandle, pid: i32, run: AddressRange, huge: PageSize) -> Result<u64, CollapseError> {
    let collapse = |range| {
        let what = || format!("collapsing {range} of process {pid}");
        watched(what, || advice::collapse_in(process, range))
    };
    match collapse(run) {
        Ok(()) => return Ok(run.len()),
        Err(error) if is_refusal(&error) => return Err(CollapseError::Refused(error)),
        Err(_) if run.len() == huge.bytes() => return Ok(0),
        Err(_) => {}
    }
    Ok(run.pages(huge).filter(|&page| collapse(page).is_ok()).map(AddressRange::len).sum())
}

/// True after the first pass that collapses nothing behind passes that did.
#[derive(Default)]
struct Settling {
    /// Some memory was collapsed.
    has_begun: bool,
    is_over: bool,
}

impl Settling {
    fn settles_after(&mut self, done: u64) -> bool {
        self.has_begun |= done > 0;
        let settles = self.has_begun && done == 0 && !self.is_over;
        self.is_over |= settles;
        settles
    }
}

/// Collapses a process again and again until it ends; the reason why it stopped before, if it did. The PID is the one that
/// the process had when the handle was opened. `settled` is called once, after the first pass that finds nothing more.
///
/// # Errors
/// [`CollapseError::Refused`].
pub fn collapse_while_it_runs(
    process: &ProcessHandle,
    pid: i32,
    huge: PageSize,
    base: PageSize,
    settled: impl Fn(),
) -> Result<(), CollapseError> {
    let (mut pause, mut settling) = (FIRST_PAUSE, Settling::default());
    while !process.ends_within(pause) {
        let started = Instant::now();
        let done = match collapse_pass(process, pid, huge, base) {
            Ok(done) => done,
            Err(CollapseError::Gone) => return Ok(()),
            Err(refused) => return Err(refused),
        };
        if settling.settles_after(done) {
            settled();
        }
        let longer = if done > 0 { FIRST_PAUSE } else { (pause * 2).min(LONGEST_PAUSE) };
        pause = longer.max(started.elapsed() * PAUSE_TIMES_PASS);
    }
    Ok(())
}

fn is_refusal(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::Unsupported)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn the_next_process_with_the_same_pid_is_left_alone() {
        let (huge, base) = (PageSize::new(2 << 20).unwrap(), linux::pages::base_page());
        let mut ended = Command::new("true").spawn().unwrap();
        let process = ProcessHandle::open(ended.id() as i32).unwrap();
        ended.wait().unwrap();
        // As if this process had got the number.
        let own = std::process::id() as i32;
        assert!(matches!(collapse_pass(&process, own, huge, base), Err(CollapseError::Gone)));
        assert!(collapse_while_it_runs(&process, own, huge, base, || ()).is_ok());
        let run = AddressRange::sized(address_space::Address(0), huge.bytes());
        assert_eq!(collapse_run(&process, own, run, huge).ok(), Some(0));
    }

    #[test]
    fn collapsed_memory_is_reported_once() {
        let mut settling = Settling::default();
        let passes = [0, 0, 4 << 20, 2 << 20, 0, 0, 2 << 20, 0];
        let settled = passes.map(|done| settling.settles_after(done));
        assert_eq!(settled, [false, false, false, false, true, false, false, false]);
    }
}
