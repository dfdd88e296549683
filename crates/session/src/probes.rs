//! Finds memory that must not be copied in another process: breakpoints and uprobes in its code, and semaphores of USDT
//! probes in its data.

use crate::{SessionError, images};
use address_space::{Address, AddressRange, ElfImage, LoadedObject, RangeSet, semaphores};
use lift_plan::{CodeReader, MachineFacts, Policy, ProcessFacts, probed_pages, semaphores_in};
use linux::bounded::{Budget, SEMAPHORE_NOTES};
use linux::pagemap::Pagemap;
use process_view::{ProcessFiles, ProcessMemoryFile};
use std::fs::File;
use std::os::unix::fs::FileExt;

struct OtherProcess<'a> {
    pid: i32,
    process: &'a ProcessFacts,
    pagemap: Pagemap,
    memory: Option<ProcessMemoryFile>,
    /// The file of the last object that was read, by its bias.
    file: Option<(u64, Option<File>)>,
}

impl OtherProcess<'_> {
    fn file_of(&mut self, object: &LoadedObject) -> Option<&File> {
        if self.file.as_ref().is_none_or(|(bias, _)| *bias != object.bias) {
            let file = images::open(self.pid, &self.process.space, object).map(|(file, _)| file);
            self.file = Some((object.bias, file));
        }
        self.file.as_ref()?.1.as_ref()
    }
}

impl CodeReader for OtherProcess<'_> {
    fn changed(&mut self, range: AddressRange) -> Option<RangeSet> {
        self.pagemap.changed(range).ok()
    }

    fn read_file(&mut self, object: &LoadedObject, offset: u64, into: &mut [u8]) -> Option<()> {
        self.file_of(object)?.read_exact_at(into, offset).ok()
    }

    fn read_memory(&mut self, at: Address, into: &mut [u8]) -> Option<()> {
        self.memory.as_ref()?.read_exact(at, into)
    }
}

/// Adds the breakpoints, uprobes and semaphores of a process to its facts, wherever a plan by this policy may copy them.
pub fn find(pid: i32, process: &mut ProcessFacts, machine: &MachineFacts, policy: &Policy) -> Result<(), SessionError> {
    // Code is not copied by other policies.
    if !policy.pages.only_shows() {
        let pagemap = Pagemap::open(pid, machine.base_page);
        let pagemap = pagemap.map_err(|error| SessionError::io(format!("opening /proc/{pid}/pagemap"), error))?;
        let memory = ProcessMemoryFile::of(&ProcessFiles::of(pid)).ok();
        process.probed =
            probed_pages(process, machine, policy, &mut OtherProcess { pid, process, pagemap, memory, file: None });
    }
    let mut budget = SEMAPHORE_NOTES.budget();
    process.semaphores = semaphores_in(process, machine, policy, |object| {
        // A tracer has to open the file, too.
        let Some((file, _)) = images::open(pid, &process.space, object) else { return Some(RangeSet::new()) };
        semaphores_of(&file, &object.image, &mut budget)
    });
    Ok(())
}

/// Returns the semaphores in a file whose headers are `image`, before the bias; `None` if they are unknown.
pub fn semaphores_of(file: &File, image: &ElfImage, budget: &mut Budget) -> Option<RangeSet> {
    semaphores(image, |offset, length| read(file, budget, offset, length))
}

fn read(file: &File, budget: &mut Budget, offset: u64, length: u64) -> Option<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(length).ok().filter(|_| budget.spend(length))?];
    file.read_exact_at(&mut bytes, offset).ok()?;
    Some(bytes)
}
