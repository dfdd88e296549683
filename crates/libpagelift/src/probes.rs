//! Looks for breakpoints and uprobes in this process.

use crate::files::{File, c_path};
use crate::pagemap::Pagemap;
use address_space::{Address, AddressRange, LoadedObject, ObjectRole, PageSize, RangeSet};
use lift_plan::{CodeReader, Plan, ProcessFacts, probed_pages};

/// The code of this process, as memory and as in its files.
struct OwnCode<'a> {
    process: &'a ProcessFacts,
    pagemap: Pagemap,
}

impl CodeReader for OwnCode<'_> {
    fn changed(&mut self, range: AddressRange) -> Option<RangeSet> {
        self.pagemap.changed(range).ok()
    }

    fn read_file(&mut self, object: &LoadedObject, offset: u64, into: &mut [u8]) -> Option<()> {
        let mappings = self.process.space.mappings().iter();
        let mapping = mappings.into_iter().find(|m| !m.shared && m.path() == Some(object.path.as_str()))?;
        let file = match object.role {
            ObjectRole::Executable => crate::files::program::open(),
            _ => File::open(&c_path(&object.path)?),
        };
        let file = file.ok()?;
        let inode = linux_raw::status_of(file.descriptor()).ok()?.stx_ino;
        let is_the_same = inode == mapping.inode;
        (is_the_same && linux_raw::read_at(file.descriptor(), into, offset) == Ok(into.len())).then_some(())
    }

    fn read_memory(&mut self, at: Address, into: &mut [u8]) -> Option<()> {
        let memory = File::open(c"/proc/thread-self/mem").ok()?;
        (linux_raw::read_at(memory.descriptor(), into, at.0) == Ok(into.len())).then_some(())
    }
}

/// The pages of code which the plan would copy and in which a breakpoint or a uprobe stands.
pub fn find(process: &ProcessFacts, plan: &Plan, base_page: PageSize) -> RangeSet {
    let Ok(pagemap) = Pagemap::open(base_page) else { return RangeSet::new() };
    probed_pages(process, plan, base_page, &mut OwnCode { process, pagemap })
}
