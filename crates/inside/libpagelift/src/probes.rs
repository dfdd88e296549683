//! Looks for what must not be copied in this process: breakpoints and uprobes in its code, and semaphores of USDT probes in
//! its data.

use crate::files::File;
use crate::mapped_file::MappedFile;
use crate::pagemap::Pagemap;
use address_space::{Address, AddressRange, AddressSpace, LoadedObject, RangeSet};
use lift_plan::{CodeReader, MachineFacts, Policy, Probes, ProcessFacts, probes_of};

/// Code that was searched for probes, as it was at that moment.
#[derive(Clone, Debug, Default)]
pub struct SearchedCode {
    /// The code: private mappings of files.
    pub searched: RangeSet,
    /// Pages of the code that differed from their file, or might have.
    pub written: RangeSet,
}

impl SearchedCode {
    /// True if a page of `range` has been written since, by the kernel for a uprobe for example. `changed` returns the pages
    /// that are no longer their file's now, or `None` if that is unknown.
    pub fn was_written_in(&self, range: AddressRange, changed: impl Fn(AddressRange) -> Option<RangeSet>) -> bool {
        let is_known = |now: RangeSet| now.iter().all(|part| self.written.covers(part));
        self.searched.within(range).any(|part| !changed(part).is_some_and(is_known))
    }

    fn note(&mut self, range: AddressRange, written: &RangeSet) {
        self.searched.insert(range);
        written.iter().for_each(|part| self.written.insert(part));
    }
}

/// The code of this process, as memory and as in its files.
struct OwnCode<'a> {
    seen: SearchedCode,
    space: &'a AddressSpace,
    pagemap: Option<Pagemap>,
    memory: Option<File>,
}

impl CodeReader for OwnCode<'_> {
    type File = File;

    fn changed(&mut self, range: AddressRange) -> Option<RangeSet> {
        let changed = self.pagemap.as_ref()?.changed(range).ok()?;
        self.seen.note(range, &changed);
        Some(changed)
    }

    fn open(&mut self, object: &LoadedObject) -> Option<File> {
        MappedFile::open(self.space, object).map(|mapped| mapped.file)
    }

    fn read_file(file: &File, offset: u64, into: &mut [u8]) -> Option<()> {
        read(file, offset, into)
    }

    fn read_memory(&mut self, at: Address, into: &mut [u8]) -> Option<()> {
        read(self.memory.as_ref()?, at.0, into)
    }
}

/// Returns the breakpoints, uprobes and semaphores of this process, wherever a plan by this policy may copy them, and the
/// code that was searched.
pub fn look(process: &ProcessFacts, machine: &MachineFacts, policy: &Policy) -> (Probes, SearchedCode) {
    let (pagemap, memory) = (Pagemap::open(machine.base_page).ok(), File::open(c"/proc/thread-self/mem").ok());
    let mut code = OwnCode { seen: SearchedCode::default(), space: &process.space, pagemap, memory };
    let probes = probes_of(process, machine, policy, &mut code);
    (probes, code.seen)
}

fn read(file: &File, offset: u64, into: &mut [u8]) -> Option<()> {
    (linux_raw::read_at(file.descriptor(), into, offset) == Ok(into.len())).then_some(())
}
