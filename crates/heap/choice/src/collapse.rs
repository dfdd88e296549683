//! Collapses a process's anonymous memory from outside, in place: for programs whose allocator takes no advice.
//!
//! Only huge pages of which half is touched are collapsed, so the resident memory at most doubles. The cost is bounded:
//! between two passes the watcher sleeps many times as long as the pass took.

use address_space::{AddressRange, PageSize, ProcessStat, dense_runs, may_be_collapsed};
use linux::{advice, pagemap::Pagemap};
use process_view::ProcessFiles;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::thread::sleep;
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

/// Collapses the dense parts once. Returns the number of bytes that are newly on huge pages.
///
/// # Errors
/// [`CollapseError`]. A range that the kernel cannot collapse is skipped.
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
        // Kernels that do not report which pages are huge accept a second collapse as done.
        let already = pagemap.huge(range).unwrap_or_default();
        for run in dense_runs(range, huge, &touched, &already, AT_ONCE) {
            done += collapse_run(pid, run, huge)?;
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
    ProcessStat::parse(&text[..length]).is_none_or(ProcessStat::has_ended)
}

fn is_refusal(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::Unsupported)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_ended_is_noticed() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let state = File::open(format!("/proc/{}/stat", child.id())).unwrap();
        child.wait().unwrap();
        assert!(has_ended(&state));
        assert!(!has_ended(&File::open("/proc/self/stat").unwrap()));
    }
}
