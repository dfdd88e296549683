//! Looks for what must not be copied in this process: breakpoints and uprobes in its code, and semaphores of USDT probes in
//! its data.

use crate::files::File;
use crate::mapped_file::MappedFile;
use crate::pagemap::Pagemap;
use address_space::{Address, AddressRange, LoadedObject, RangeSet, semaphores};
use alloc::vec;
use alloc::vec::Vec;
use lift_plan::{CodeReader, MachineFacts, Policy, ProcessFacts, probed_pages, semaphores_in};

/// Bytes of section headers and notes that are read of the files of this process. A server with 1,000 places of probes has
/// about 100 kB.
const MOST_NOTE_BYTES: u64 = 64 << 20;

/// The code of this process, as memory and as in its files.
struct OwnCode<'a> {
    process: &'a ProcessFacts,
    pagemap: Option<Pagemap>,
    memory: Option<File>,
    /// The file of the last object that was read, by its bias.
    file: Option<(u64, Option<File>)>,
}

impl OwnCode<'_> {
    fn file_of(&mut self, object: &LoadedObject) -> Option<&File> {
        if self.file.as_ref().is_none_or(|(bias, _)| *bias != object.bias) {
            let file = MappedFile::open(&self.process.space, object).map(|mapped| mapped.file);
            self.file = Some((object.bias, file));
        }
        self.file.as_ref()?.1.as_ref()
    }
}

impl CodeReader for OwnCode<'_> {
    fn changed(&mut self, range: AddressRange) -> Option<RangeSet> {
        self.pagemap.as_ref()?.changed(range).ok()
    }

    fn read_file(&mut self, object: &LoadedObject, offset: u64, into: &mut [u8]) -> Option<()> {
        read(self.file_of(object)?, offset, into)
    }

    fn read_memory(&mut self, at: Address, into: &mut [u8]) -> Option<()> {
        read(self.memory.as_ref()?, at.0, into)
    }
}

/// Adds the breakpoints, uprobes and semaphores of this process to its facts, wherever a plan by this policy may copy them.
pub fn find(process: &mut ProcessFacts, machine: &MachineFacts, policy: &Policy) {
    let (pagemap, memory) = (Pagemap::open(machine.base_page).ok(), File::open(c"/proc/thread-self/mem").ok());
    process.probed = probed_pages(process, machine, policy, &mut OwnCode { process, pagemap, memory, file: None });
    let mut left = MOST_NOTE_BYTES;
    process.semaphores = semaphores_in(process, machine, policy, |object| {
        // A tracer has to open the file, too.
        let Some(MappedFile { file, .. }) = MappedFile::open(&process.space, object) else {
            return Some(RangeSet::new());
        };
        semaphores(&object.image, |offset, length| {
            left = left.checked_sub(length)?;
            let mut bytes: Vec<u8> = vec![0; usize::try_from(length).ok()?];
            read(&file, offset, &mut bytes)?;
            Some(bytes)
        })
    });
}

fn read(file: &File, offset: u64, into: &mut [u8]) -> Option<()> {
    (linux_raw::read_at(file.descriptor(), into, offset) == Ok(into.len())).then_some(())
}
