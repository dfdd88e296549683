//! Finds the breakpoints and uprobes in a program's code, and the semaphores of probes in its data.
//!
//! A breakpoint or a uprobe is an instruction that a debugger or the kernel wrote over the program's own, and that it finds again by file
//! and offset. A copy of the page would carry the instruction to memory that its writer does not know, and executing it
//! would end the program.

use crate::{MachineFacts, Policy, ProcessFacts};
use address_space::{Address, AddressRange, ElfImage, LoadSegment, LoadedObject, PageSize, RangeSet, semaphores};
use alloc::vec;

/// Number of bytes of code that are compared with their file at a time.
const COMPARED_AT_ONCE: u64 = 1 << 20;

/// Bytes of section headers, their names and notes that are read of the files of one process. A server with 1,000 places
/// of probes has about 100 kB.
pub const MOST_NOTE_BYTES: u64 = 64 << 20;

/// Reads the parts of a process and of its files that the search needs.
pub trait CodeReader {
    /// An open file.
    type File;
    /// Returns the pages of `range`, a private mapping of a file, that have been changed; `None` if that is unknown.
    fn changed(&mut self, range: AddressRange) -> Option<RangeSet>;
    /// Opens the file that the process has mapped for an object. `None` if it cannot be opened or has been replaced.
    fn open(&mut self, object: &LoadedObject) -> Option<Self::File>;
    /// Reads an open file. `None` if not all bytes can be read.
    fn read_file(file: &Self::File, offset: u64, into: &mut [u8]) -> Option<()>;
    /// Reads the process's memory.
    fn read_memory(&mut self, at: Address, into: &mut [u8]) -> Option<()>;
}

/// The memory of a process that must not be copied, since a tracer finds it by its place in a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Probes {
    /// Pages of code that hold a breakpoint or a uprobe.
    pub probed: RangeSet,
    /// Semaphores of USDT probes in writable pages of files.
    pub semaphores: RangeSet,
}

/// Returns the probes of a process, wherever a plan by this policy may copy them.
pub fn probes_of<R: CodeReader>(
    process: &ProcessFacts,
    machine: &MachineFacts,
    policy: &Policy,
    reader: &mut R,
) -> Probes {
    // Code is not copied by other policies.
    let copies_code = !policy.pages.only_shows();
    let probed = if copies_code { probed_pages(process, machine, policy, reader) } else { RangeSet::new() };
    let mut left = MOST_NOTE_BYTES;
    let semaphores = semaphores_in(process, machine, policy, |object| {
        // A tracer has to open the file, too.
        let Some(file) = reader.open(object) else { return Some(RangeSet::new()) };
        semaphores_of(&object.image, &mut left, |offset, into| R::read_file(&file, offset, into))
    });
    Probes { probed, semaphores }
}

/// Returns the semaphores in a file whose headers are `image`, before the bias; `None` if they are unknown. `left` is the
/// number of bytes that may still be read, and `read` reads the file.
pub fn semaphores_of(
    image: &ElfImage,
    left: &mut u64,
    mut read: impl FnMut(u64, &mut [u8]) -> Option<()>,
) -> Option<RangeSet> {
    semaphores(image, |offset, length| {
        *left = left.checked_sub(length)?;
        let mut bytes = vec![0; usize::try_from(length).ok()?];
        read(offset, &mut bytes)?;
        Some(bytes)
    })
}

/// Returns the pages of code that hold a breakpoint or a uprobe, of all code that any plan by this policy may copy: a
/// later plan, which has more facts, can lift memory that this one leaves.
pub fn probed_pages<R: CodeReader>(
    process: &ProcessFacts,
    machine: &MachineFacts,
    policy: &Policy,
    reader: &mut R,
) -> RangeSet {
    let mut probed = RangeSet::new();
    let Some(size) = policy.page_size.or_else(|| machine.usual_huge_page()) else { return probed };
    // In an object with text relocations the dynamic linker has changed the code itself.
    let chosen = process.objects.iter().filter(|object| policy.objects.chooses(object));
    for object in chosen.filter(|object| !object.image.text_relocations) {
        let may_be_lifted = object.may_be_huge(size, machine.base_page);
        let mut file = None;
        for segment in object.image.segments.iter().filter(|s| s.protection.execute && !s.protection.write) {
            let code = segment.file_memory().shifted(object.bias);
            let searched = code.widened(machine.base_page).intersect(may_be_lifted);
            let of_file = process.space.overlapping(searched).iter().filter(|m| m.path() == Some(object.path.as_str()));
            for range in of_file.map(|mapping| mapping.range.intersect(searched)) {
                let search = Search { object, segment, code, base_page: machine.base_page };
                // If the kernel does not report changed pages, all pages are compared.
                let changed = reader.changed(range).unwrap_or_else(|| RangeSet::from_iter([range]));
                for changed in changed.iter() {
                    let file = file.get_or_insert_with(|| reader.open(object)).as_ref();
                    search.add_probed(changed, file, reader, &mut probed);
                }
            }
        }
    }
    probed
}

/// The code of one segment at its addresses in the process.
struct Search<'a> {
    object: &'a LoadedObject,
    segment: &'a LoadSegment,
    code: AddressRange,
    base_page: PageSize,
}

impl Search<'_> {
    /// Adds the pages of `changed` that hold a probe, of which most hold none.
    fn add_probed<R: CodeReader>(
        &self,
        changed: AddressRange,
        file: Option<&R::File>,
        reader: &mut R,
        probed: &mut RangeSet,
    ) {
        let mut rest = changed;
        while !rest.is_empty() {
            let end = (rest.start() + COMPARED_AT_ONCE.max(self.base_page.bytes())).min(rest.end());
            let part = AddressRange::new(rest.start(), end);
            if self.is_probed(part, file, reader) != Some(false) {
                // Code that was changed and cannot be compared with its file counts as probed.
                let pages =
                    part.pages(self.base_page).filter(|page| self.is_probed(*page, file, reader) != Some(false));
                pages.for_each(|page| probed.insert(page));
            }
            rest = AddressRange::new(end, rest.end());
        }
    }

    fn is_probed<R: CodeReader>(&self, part: AddressRange, file: Option<&R::File>, reader: &mut R) -> Option<bool> {
        let part = part.intersect(self.code);
        let (mut original, mut now) = (vec![0; part.len() as usize], vec![0; part.len() as usize]);
        let offset = self.segment.offset + (part.start() - self.object.bias - self.segment.memory.start().0).0;
        R::read_file(file?, offset, &mut original)?;
        reader.read_memory(part.start(), &mut now)?;
        Some(holds_probe(&original, &now))
    }
}

/// Returns the semaphores of USDT probes in all writable pages of files that any plan by this policy may copy. `of_file` returns
/// the semaphores in an object's file, before the bias, or `None` if they are unknown: then all of this memory counts as one.
pub fn semaphores_in(
    process: &ProcessFacts,
    machine: &MachineFacts,
    policy: &Policy,
    mut of_file: impl FnMut(&LoadedObject) -> Option<RangeSet>,
) -> RangeSet {
    let mut found = RangeSet::new();
    let size = policy.page_size.or_else(|| machine.usual_huge_page());
    // Nothing of a file that the program may write to meanwhile is copied.
    let Some(size) = size.filter(|_| !process.may_write_during_copies()) else { return found };
    for object in process.objects.iter().filter(|object| policy.objects.chooses(object)) {
        let may_be_lifted = object.may_be_huge(size, machine.base_page);
        let writable = object.image.segments.iter().filter(|segment| segment.protection.write);
        let of_data = writable.map(|segment| segment.file_memory().shifted(object.bias));
        let data: RangeSet = of_data.filter(|data| data.overlaps(may_be_lifted)).collect();
        if data.is_empty() {
            continue;
        }
        match of_file(object) {
            Some(semaphores) => semaphores.iter().for_each(|range| found.insert(range.shifted(object.bias))),
            None => data.iter().for_each(|data| found.insert(data)),
        }
    }
    found
}

/// True if code that differs from its file contains a breakpoint or uprobe instruction.
pub fn holds_probe(original: &[u8], now: &[u8]) -> bool {
    if cfg!(target_arch = "aarch64") { holds_aarch64_probe(original, now) } else { holds_x86_probe(original, now) }
}

/// The instruction is `brk` with any immediate.
fn holds_aarch64_probe(original: &[u8], now: &[u8]) -> bool {
    let pairs = original.as_chunks().0.iter().zip(now.as_chunks().0);
    let is_brk = |instruction: &[u8; 4]| u32::from_le_bytes(*instruction) & 0xffe0_001f == 0xd420_0000;
    pairs.filter(|(original, now)| original != now).any(|(_, now)| is_brk(now))
}

/// The instruction is `int3`, or, since Linux 6.18, a call in place of a five-byte `nop`.
fn holds_x86_probe(original: &[u8], now: &[u8]) -> bool {
    const NOP: [u8; 5] = [0x0f, 0x1f, 0x44, 0, 0];
    (0..now.len().min(original.len())).filter(|&at| original[at] != now[at]).any(|at| match now[at] {
        0xcc => true,
        0xe8 => original[at..].starts_with(&NOP),
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probes_on_x86_are_told_from_other_changes() {
        let code = [0x55, 0x48, 0x89, 0xe5, 0x0f, 0x1f, 0x44, 0, 0, 0xcc, 0xc3];
        let changed = |at: usize, bytes: &[u8]| {
            let mut now = code;
            now[at..at + bytes.len()].copy_from_slice(bytes);
            holds_x86_probe(&code, &now)
        };
        assert!(!holds_x86_probe(&code, &code), "an int3 of the program's own is none of a debugger's");
        assert!(changed(0, &[0xcc]) && changed(4, &[0xe8, 1, 2, 3, 4]));
        assert!(!changed(0, &[0xe9, 1, 2, 3, 4]) && !changed(0, &[0x90]), "a program may patch itself");
        assert!(!changed(3, &[0xe8, 1, 2, 3, 4]), "a call of the program's own making");
    }

    #[test]
    fn probes_on_aarch64_are_told_from_other_changes() {
        const NOP: u32 = 0xd503_201f;
        let code = |second: u32| [NOP, second, NOP].map(u32::to_le_bytes).concat();
        let changed = |to: u32| holds_aarch64_probe(&code(NOP), &code(to));
        // brk #0, #0x3e8 (kgdb) and #5 (uprobes).
        assert!(changed(0xd420_0000) && changed(0xd420_7d00) && changed(0xd420_00a0));
        // hlt #0, dcps1, svc #0, and nothing.
        assert!(!changed(0xd440_0000) && !changed(0xd4a0_0001) && !changed(0xd400_0001) && !changed(NOP));
        let own = code(0xd420_0000);
        assert!(!holds_aarch64_probe(&own, &own), "a brk of the program's own is none of a debugger's");
    }

    #[test]
    fn probes_are_those_of_this_machine() {
        let int3 = holds_probe(&[0x90; 4], &[0xcc; 4]);
        let brk = holds_probe(&[0; 4], &0xd420_0000u32.to_le_bytes());
        assert_eq!([int3, brk], [!cfg!(target_arch = "aarch64"), cfg!(target_arch = "aarch64")]);
    }
}
