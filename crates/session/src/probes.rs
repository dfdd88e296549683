//! Looks for breakpoints and uprobes in another process.

use crate::images;
use address_space::{Address, AddressRange, LoadedObject, PageSize, RangeSet};
use lift_plan::{CodeReader, Plan, ProcessFacts, probed_pages};
use linux::pagemap::Pagemap;
use process_view::ProcessFiles;
use std::fs::File;
use std::os::unix::fs::FileExt;

struct OtherProcess<'a> {
    pid: i32,
    process: &'a ProcessFacts,
    pagemap: Pagemap,
}

impl CodeReader for OtherProcess<'_> {
    fn changed(&mut self, range: AddressRange) -> Option<RangeSet> {
        self.pagemap.changed(range).ok()
    }

    fn read_file(&mut self, object: &LoadedObject, offset: u64, into: &mut [u8]) -> Option<()> {
        let (file, _) = images::open(self.pid, &self.process.space, object)?;
        file.read_exact_at(into, offset).ok()
    }

    fn read_memory(&mut self, at: Address, into: &mut [u8]) -> Option<()> {
        File::open(ProcessFiles::of(self.pid).path("mem")).ok()?.read_exact_at(into, at.0).ok()
    }
}

/// Returns the pages of code that the plan would copy and that hold a breakpoint or a uprobe.
pub fn find(pid: i32, process: &ProcessFacts, plan: &Plan, base_page: PageSize) -> RangeSet {
    if plan.lifts.is_empty() {
        return RangeSet::new();
    }
    let Ok(pagemap) = Pagemap::open(pid, base_page) else { return RangeSet::new() };
    probed_pages(process, plan, base_page, &mut OtherProcess { pid, process, pagemap })
}
