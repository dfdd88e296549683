//! What the program has allocated: anonymous memory, collapsed onto transparent huge pages where it lies.

use crate::auxiliary::Auxiliary;
use crate::executor::OwnProcess;
use crate::machine::machine_facts;
use crate::pagemap::Pagemap;
use crate::{calls, files};
use address_space::{AddressRange, dense_runs, may_be_collapsed, parse_smaps};
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use lift_execution::Executor;

/// At most so much is collapsed by one call, which holds the process's memory lock.
const AT_ONCE: u64 = 64 << 20;

/// What collapsing gave. Byte counts but for the time.
#[derive(Clone, Debug, Default)]
pub struct Collapsed {
    /// Anonymous memory that was resident in mappings with something to collapse.
    pub resident: u64,
    /// What of it is on huge pages now, as read back.
    pub huge: u64,
    /// What of it was before.
    pub before: u64,
    /// How long it took.
    pub microseconds: u64,
}

/// Collapses what is at least half in use. What the kernel cannot collapse is passed over.
///
/// # Errors
/// Why nothing can be seen or done, in words.
pub fn collapse() -> Result<Collapsed, String> {
    let started = calls::monotonic_microseconds();
    let base = Auxiliary::read().ok_or("found no /proc/self")?.base_page;
    let huge = machine_facts(base).thp.ok_or("this kernel has no transparent huge pages")?.size;
    let smaps = files::text(c"/proc/self/smaps").map_err(|_| "found no /proc/self/smaps")?;
    let usages = parse_smaps(&smaps).map_err(|error| error.to_string())?;
    let pagemap = Pagemap::open(base).map_err(|_| "found no /proc/self/pagemap")?;
    let mut done = Collapsed::default();
    let mut executor = OwnProcess::new(base);
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
    done.huge = ranges.iter().map(|&range| executor.huge(range, huge).unwrap_or_default().bytes_in(range)).sum();
    done.microseconds = calls::monotonic_microseconds() - started;
    Ok(done)
}
