//! Looks for what must not be copied in this process: breakpoints and uprobes in its code, and semaphores of USDT probes in
//! its data.

use crate::files::{File, c_path};
use crate::pagemap::Pagemap;
use address_space::{Address, AddressRange, LoadedObject, ObjectRole, RangeSet, semaphores};
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
            self.file = Some((object.bias, file_of(self.process, object)));
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
        let Some(file) = file_of(process, object) else { return Some(RangeSet::new()) };
        semaphores(&object.image, |offset, length| {
            left = left.checked_sub(length)?;
            let mut bytes: Vec<u8> = vec![0; usize::try_from(length).ok()?];
            read(&file, offset, &mut bytes)?;
            Some(bytes)
        })
    });
}

/// The file that this process has mapped for an object; `None` where it cannot be opened or has been replaced.
fn file_of(process: &ProcessFacts, object: &LoadedObject) -> Option<File> {
    let mappings = process.space.mappings().iter();
    let mapping = mappings.into_iter().find(|m| !m.shared && m.path() == Some(object.path.as_str()))?;
    let file = match object.role {
        ObjectRole::Executable => crate::files::program::open(),
        _ => File::open(&c_path(&object.path)?),
    };
    let file = file.ok()?;
    let inode = linux_raw::status_of(file.descriptor()).ok()?.stx_ino;
    (inode == mapping.inode).then_some(file)
}

fn read(file: &File, offset: u64, into: &mut [u8]) -> Option<()> {
    (linux_raw::read_at(file.descriptor(), into, offset) == Ok(into.len())).then_some(())
}
