//! A staging copy is compared with its range once more while all threads are stopped.
//!
//! A copy is made while the program runs, and memory that may not be written to can change in the meantime: the program
//! makes it writable for a moment (code that patches itself), somebody writes through `/proc/PID/mem`, or the kernel
//! inserts a uprobe. The mappings are the same afterwards. Pages that a private mapping of a file still shares with the
//! file cannot have been written to, and their copies are from the file. Only the others are read, and those that were copied
//! from memory, which may have been another mapping's then: few in a range that shows files, all in one that is on anonymous
//! memory.
//!
//! All threads of the program are stopped while this runs: the buffers are allocated before, and what is to be compared of the
//! copy is read before, once no thread can write to it. The rest takes about 0.2 ms for each MiB on transparent huge pages (Linux
//! 6.18); reading the copy, on ordinary pages of a file, takes the same time again.

use super::LiveExecutor;
use crate::attach::calls_of_thread::Calls;
use crate::remote::RemoteMemory;
use crate::remote::calls::failed;
use address_space::{Address, AddressRange, PageSize, RangeSet};
use lift_execution::CallError;
use lift_plan::holds_probe;
use nix::errno::Errno;

/// Maximum number of bytes that are compared at a time: both buffers fit into a second-level cache.
const COMPARED_AT_ONCE: u64 = 256 << 10;
/// Maximum length of a copy that is read before the stop; a longer one is read when it is compared.
const READ_BEFORE: u64 = 64 << 20;

/// The program has changed the range since it was planned or copied.
pub(super) const CHANGED: CallError =
    CallError { call: "the swap: the program has changed the range", errno: Errno::EBUSY as i32 };

/// The ranges to compare, and the buffers.
pub(super) struct Comparison {
    range: AddressRange,
    copy: AddressRange,
    /// Pages of the range whose copies are from memory.
    from_memory: RangeSet,
    /// Pages of the copy that may differ by the probes that they hold.
    probed: RangeSet,
    /// The parts of the copy that have been read already, and what they hold, from the start of the copy on.
    read: RangeSet,
    contents: Vec<u8>,
    in_range: Vec<u8>,
    in_copy: Vec<u8>,
    base_page: PageSize,
}

impl Comparison {
    /// Reads what of the copy is to be compared as far as is known now.
    fn read_copy(&mut self, memory: &RemoteMemory, changed: &RangeSet) {
        if self.range.len() > READ_BEFORE {
            return;
        }
        self.contents = vec![0; self.range.len() as usize];
        for part in changed.iter() {
            let copied = self.copy_of(part.start(), part.len());
            let at = (copied.start() - self.copy.start()) as usize;
            // Bytes that cannot be read are tried again in the stop.
            if memory.read(copied.start(), &mut self.contents[at..at + copied.len() as usize]).is_ok() {
                self.read.insert(copied);
            }
        }
    }

    /// True if a part of the copy has been read already.
    pub fn has_read_copy(&self) -> bool {
        !self.read.is_empty()
    }

    /// The pages to compare if these have been written.
    fn compared(&self, mut changed: RangeSet) -> RangeSet {
        self.from_memory.iter().for_each(|part| changed.insert(part));
        changed
    }

    fn copy_of(&self, at: Address, length: u64) -> AddressRange {
        AddressRange::sized(self.copy.start() + (at - self.range.start()), length)
    }

    /// Refuses a range that does not hold what its copy holds.
    ///
    /// # Errors
    /// [`CHANGED`]; the pagemap or the memory cannot be read.
    pub fn expect_same(&mut self, calls: &Calls<'_, '_>) -> Result<(), CallError> {
        self.take_over_code(calls);
        let changed = calls.pagemap.changed(self.range).map_err(|error| failed("reading the pagemap", &error))?;
        for part in self.compared(changed).iter() {
            let mut at = part.start();
            while at < part.end() {
                let length = (part.end() - at).min(COMPARED_AT_ONCE);
                self.expect_same_part(calls.memory, AddressRange::sized(at, length))?;
                at = at + length;
            }
        }
        Ok(())
    }

    /// Has a copy in anonymous memory hold the code of this lift, too, with the place to which the thread of this call returns:
    /// it was written to the range since, and is no change of the program's.
    fn take_over_code(&mut self, calls: &Calls<'_, '_>) {
        let code = calls.page.code().intersect(self.range);
        if code.is_empty() {
            return;
        }
        let copied = self.copy_of(code.start(), code.len());
        if !calls.pagemap.changed(copied.widened(self.base_page)).is_ok_and(|of| of.covers(copied)) {
            return;
        }
        let mut bytes = vec![0; code.len() as usize];
        // Bytes that cannot be written differ, and are refused.
        if calls.memory.read(code.start(), &mut bytes).is_ok() && calls.memory.write(copied.start(), &bytes).is_ok() {
            self.read.remove(copied.widened(self.base_page));
        }
    }

    fn expect_same_part(&mut self, memory: &RemoteMemory, part: AddressRange) -> Result<(), CallError> {
        let unreadable = |error| failed("reading memory", &error);
        let (copied, length) = (self.copy_of(part.start(), part.len()), part.len() as usize);
        let in_range = &mut self.in_range[..length];
        memory.read(part.start(), in_range).map_err(unreadable)?;
        let in_copy = if self.read.covers(copied) {
            let at = (copied.start() - self.copy.start()) as usize;
            &self.contents[at..at + length]
        } else {
            let in_copy = &mut self.in_copy[..length];
            memory.read(copied.start(), in_copy).map_err(unreadable)?;
            in_copy
        };
        match in_range == in_copy || differs_by_probes(in_range, in_copy, copied, &self.probed, self.base_page.bytes())
        {
            true => Ok(()),
            false => Err(CHANGED),
        }
    }
}

/// True if the only pages that differ are those in which the kernel has inserted probes when it mapped the copy's file.
/// It does not insert them into the copy in which the program is, and removes them from the file's mapping itself.
fn differs_by_probes(in_range: &[u8], in_copy: &[u8], copied: AddressRange, probed: &RangeSet, base_page: u64) -> bool {
    let pages = in_range.chunks(base_page as usize).zip(in_copy.chunks(base_page as usize));
    let is_probed = |index: u64| probed.covers(AddressRange::sized(copied.start() + index * base_page, base_page));
    let mut differing = (0..).zip(pages).filter(|(_, (now, copy))| now != copy);
    differing.all(|(index, (now, copy))| is_probed(index) && holds_probe(now, copy))
}

impl LiveExecutor {
    /// Prepares the comparison of a range with its copy, while the program runs.
    pub(super) fn comparison(&self, range: AddressRange, copy: AddressRange) -> Comparison {
        let length = range.len().min(COMPARED_AT_ONCE) as usize;
        let is_code = self.planned.overlapping(range).iter().any(|mapping| mapping.protection.execute);
        let mut comparison = Comparison {
            range,
            copy,
            from_memory: self.from_memory.within(range).collect(),
            probed: if is_code { self.probed.within(copy).collect() } else { RangeSet::new() },
            read: RangeSet::new(),
            contents: Vec::new(),
            in_range: vec![0; length],
            in_copy: vec![0; length],
            base_page: self.base_page,
        };
        // If the kernel does not report it now, it is asked again in the stop.
        let compared = comparison.compared(self.pagemap.changed(range).unwrap_or_default());
        comparison.read_copy(&self.memory, &compared);
        comparison
    }

    /// Records in which pages of a file that has just been mapped the kernel has inserted uprobes: it has copied them.
    pub(super) fn note_probes(&mut self, copy: AddressRange) -> Result<(), CallError> {
        let found = self.pagemap.changed(copy).map_err(|error| failed("reading the pagemap", &error))?;
        found.iter().for_each(|page| self.probed.insert(page));
        Ok(())
    }

    /// The pages of staging copies in which the kernel inserted uprobes when it mapped their files.
    pub fn probed(&self) -> &RangeSet {
        &self.probed
    }

    /// The range of this lift's own code in the program, and of the words after it.
    pub fn own_code(&self) -> AddressRange {
        self.page.code()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_pages_in_which_the_kernel_has_inserted_probes_may_differ_and_only_by_these() {
        let page = 64;
        let copied = AddressRange::sized(Address(0x1000), 2 * page);
        let probed: RangeSet = [AddressRange::sized(Address(0x1000 + page), page)].into_iter().collect();
        let brk = 0xd420_0000u32.to_le_bytes();
        let with = |at: usize, bytes: &[u8]| {
            let mut memory = vec![0x1f; 2 * page as usize];
            memory[at..at + bytes.len()].copy_from_slice(bytes);
            memory
        };
        let probe: &[u8] = if cfg!(target_arch = "aarch64") { &brk } else { &[0xcc] };
        let same = |range: Vec<u8>, copy: Vec<u8>| differs_by_probes(&range, &copy, copied, &probed, page);
        assert!(same(with(0, &[]), with(68, probe)));
        assert!(!same(with(0, &[]), with(4, probe)), "a probe in a page that was the file's");
        assert!(!same(with(68, probe), with(0, &[])), "a probe in the range alone");
        assert!(!same(with(0, &[]), with(68, &[1])), "another difference");
    }
}
