//! Collapses the program's anonymous memory onto transparent huge pages, in place.

use crate::auxiliary::Auxiliary;
use crate::executor::OwnProcess;
use crate::files;
use crate::machine::machine_facts;
use crate::pagemap::Pagemap;
use address_space::{AddressRange, dense_runs, may_be_collapsed, parse_smaps};
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use lift_execution::Executor;
use machine_facts::Looks;

/// Most bytes that one call collapses; the call holds the process's memory lock.
const AT_ONCE: u64 = 64 << 20;

/// Result of [`collapse`]. All fields but the time are bytes.
#[derive(Clone, Debug, Default)]
pub struct Collapsed {
    /// Resident anonymous memory in mappings that can hold huge pages.
    pub resident: u64,
    /// Its part on huge pages now, as read back.
    pub huge: u64,
    /// Its part that was on huge pages before.
    pub before: u64,
    /// Duration in microseconds.
    pub microseconds: u64,
}

/// Collapses huge pages' worth of memory that are at least half in use. Ranges that the kernel cannot collapse are
/// skipped.
///
/// # Errors
/// A text that says why nothing could be read or collapsed.
pub fn collapse() -> Result<Collapsed, String> {
    let started = linux_raw::monotonic_microseconds();
    let base = Auxiliary::read().ok_or("found no /proc/self")?.base_page;
    let huge = machine_facts(base, Looks { at_pools: false, at_memory: true })
        .thp
        .ok_or("this kernel has no transparent huge pages")?
        .size;
    let smaps = files::text(c"/proc/thread-self/smaps").map_err(|_| "found no /proc/thread-self/smaps")?;
    let usages = parse_smaps(&smaps).map_err(|error| error.to_string())?;
    let pagemap = Pagemap::open(base).map_err(|_| "found no /proc/self/pagemap")?;
    let mut done = Collapsed::default();
    // SAFETY:
    // - it only collapses, which the kernel makes invisible to others, and is asked what is huge.
    let mut executor = unsafe { OwnProcess::new(base) };
    let mut ranges: Vec<AddressRange> = Vec::new();
    for usage in usages.iter().filter(|usage| may_be_collapsed(usage)) {
        let range = usage.mapping.range.whole_pages(huge);
        if range.is_empty() {
            continue;
        }
        let touched = pagemap.touched(range).map_err(|_| "pagemap cannot be read")?;
        let already = pagemap.huge(range).unwrap_or_default();
        done.resident += usage.resident;
        done.before += already.bytes_in(range);
        for run in dense_runs(range, huge, &touched, &already, AT_ONCE) {
            if executor.collapse(run).is_err() {
                run.pages(huge).for_each(|page| _ = executor.collapse(page));
            }
        }
        ranges.push(range);
    }
    done.huge = ranges.iter().map(|&range| executor.query_huge(range, huge).unwrap_or_default().bytes_in(range)).sum();
    done.microseconds = linux_raw::monotonic_microseconds() - started;
    Ok(done)
}
