//! Looks for what must not be copied in this process: breakpoints and uprobes in its code, and semaphores of USDT probes in
//! its data.

use crate::files::File;
use crate::mapped_file::MappedFile;
use crate::pagemap::Pagemap;
use address_space::{Address, AddressRange, AddressSpace, LoadedObject, RangeSet};
use lift_plan::{CodeReader, MachineFacts, Policy, Probes, ProcessFacts, probes_of};

/// The code of this process, as memory and as in its files.
struct OwnCode<'a> {
    space: &'a AddressSpace,
    pagemap: Option<Pagemap>,
    memory: Option<File>,
}

impl CodeReader for OwnCode<'_> {
    type File = File;

    fn changed(&mut self, range: AddressRange) -> Option<RangeSet> {
        self.pagemap.as_ref()?.changed(range).ok()
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

/// Returns the breakpoints, uprobes and semaphores of this process, wherever a plan by this policy may copy them.
pub fn look(process: &ProcessFacts, machine: &MachineFacts, policy: &Policy) -> Probes {
    let (pagemap, memory) = (Pagemap::open(machine.base_page).ok(), File::open(c"/proc/thread-self/mem").ok());
    probes_of(process, machine, policy, &mut OwnCode { space: &process.space, pagemap, memory })
}

fn read(file: &File, offset: u64, into: &mut [u8]) -> Option<()> {
    (linux_raw::read_at(file.descriptor(), into, offset) == Ok(into.len())).then_some(())
}
