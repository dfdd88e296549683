//! Finds memory that must not be copied in another process: breakpoints and uprobes in its code, and semaphores of USDT
//! probes in its data.

use crate::{SessionError, images};
use address_space::{Address, AddressRange, AddressSpace, LoadedObject, RangeSet};
use lift_plan::{CodeReader, MachineFacts, Policy, Probes, ProcessFacts, probes_of};
use linux::pagemap::Pagemap;
use process_view::{ProcessFiles, ProcessMemoryFile};
use std::fs::File;
use std::os::unix::fs::FileExt;

struct OtherCode<'a> {
    pid: i32,
    space: &'a AddressSpace,
    /// Opened only if code may be copied.
    pagemap: Option<Pagemap>,
    memory: Option<ProcessMemoryFile>,
}

impl CodeReader for OtherCode<'_> {
    type File = File;

    fn changed(&mut self, range: AddressRange) -> Option<RangeSet> {
        self.pagemap.as_ref()?.changed(range).ok()
    }

    fn open(&mut self, object: &LoadedObject) -> Option<File> {
        images::open(self.pid, self.space, object).map(|(file, _)| file)
    }

    fn read_file(file: &File, offset: u64, into: &mut [u8]) -> Option<()> {
        file.read_exact_at(into, offset).ok()
    }

    fn read_memory(&mut self, at: Address, into: &mut [u8]) -> Option<()> {
        self.memory.as_ref()?.read_exact(at, into)
    }
}

/// Returns the breakpoints, uprobes and semaphores of a process, wherever a plan by this policy may copy them.
pub fn look(pid: i32, process: &ProcessFacts, machine: &MachineFacts, policy: &Policy) -> Result<Probes, SessionError> {
    let pagemap = (!policy.pages.only_shows()).then(|| Pagemap::open(pid, machine.base_page)).transpose();
    let pagemap = pagemap.map_err(|error| SessionError::io(format!("opening /proc/{pid}/pagemap"), error))?;
    let memory = ProcessMemoryFile::of(&ProcessFiles::of(pid)).ok();
    Ok(probes_of(process, machine, policy, &mut OtherCode { pid, space: &process.space, pagemap, memory }))
}
