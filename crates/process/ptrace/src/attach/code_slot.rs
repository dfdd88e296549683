//! Room for the code by which a thread of a running program makes calls: padding behind a segment or the vDSO.
//!
//! The slot holds one of two pieces of code, with the words that belong to it:
//!
//! - `ONCE_CODE` makes one call that needs no memory. The slot holds everything that the thread needs to continue, so no
//!   memory of the program is written. That includes the program's stack, whose use Pagelift cannot know. This code maps
//!   and unmaps the call page.
//! - `LOOP_CODE` makes the calls of a call page.
//!
//! Between two lifts it holds zeros, as before the first one. A slot that holds code was left behind by a lift that was
//! killed, and names that lift's call page. Bytes are compared with the expected ones before they are replaced.

use crate::remote::RemoteMemory;
use crate::remote::arch::{self, ONCE_WORDS, Registers};
use crate::remote::guest_code::CodeBetween;
use crate::remote::requests;
use address_space::{Address, AddressRange, AddressSpace, LoadedObject, MappingName, ObjectRole, PageSize};
use nix::unistd::Pid;
use std::cell::RefCell;
use std::io;

const WORD: usize = size_of::<u64>();

/// Value that the last word of the slot holds for a moment, to check which memory is written.
const PROBE: u64 = u64::from_le_bytes(*b"pagelift");

/// Words behind `LOOP_CODE`: the address at which the thread continues, and the address of the call page.
const LOOP_WORDS: usize = 2;

/// Contents of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contents {
    /// Zeros.
    Nothing,
    /// The code for one call, and the address of the call page that it maps or unmaps.
    Once(Address),
    /// The code for the calls of the call page at this address.
    Loop(Address),
}

/// Room for code in one program.
pub struct CodeSlot {
    range: AddressRange,
    /// Bytes that Pagelift has written there; zeros at first.
    written: RefCell<Vec<u8>>,
}

impl CodeSlot {
    /// Finds room for code, without writing anything: the slot that a lift has left behind, if there is one. Otherwise
    /// returns all free slots, the best first. The program may unload shared objects, so they come last.
    ///
    /// # Errors
    /// The memory cannot be read.
    pub fn find(
        memory: &RemoteMemory,
        space: &AddressSpace,
        objects: &[LoadedObject],
        base_page: PageSize,
    ) -> io::Result<Vec<Self>> {
        let mut free = Vec::new();
        let behind = |role| room_behind_segments(space, objects, role, base_page);
        let lasting = behind(ObjectRole::DynamicLinker).chain(room_behind_vdso(memory, space));
        let all = lasting.chain(behind(ObjectRole::Executable)).chain(behind(ObjectRole::SharedObject));
        for start in all {
            let there = match read(memory, start) {
                // It has been unloaded.
                Err(error) if error.raw_os_error() == Some(libc::EIO) => continue,
                there => there?,
            };
            // Bytes other than zero do not belong to the segment: a file may map bytes of the next segment here.
            match contents(&there) {
                None => {}
                Some(Contents::Nothing) => free.push(Self::of(start, there)),
                Some(_) => return Ok(vec![Self::of(start, there)]),
            }
        }
        Ok(free)
    }

    fn of(start: Address, there: Vec<u8>) -> Self {
        Self { range: AddressRange::sized(start, Self::length() as u64), written: RefCell::new(there) }
    }

    /// Length of a slot in bytes: either piece of code with its words, and the word for [`CodeSlot::is_memory_of`].
    pub fn length() -> usize {
        let once = arch::ONCE_CODE.code().len() + (ONCE_WORDS + 1) * WORD;
        let looping = arch::LOOP_CODE.code().len() + LOOP_WORDS * WORD;
        once.max(looping).next_multiple_of(WORD) + WORD
    }

    /// Its addresses.
    pub fn range(&self) -> AddressRange {
        self.range
    }

    /// True if a stopped thread can return from the code for one call.
    pub fn is_in_reach(&self, thread: Pid) -> bool {
        let distance = |to: Address| self.range.start().0.abs_diff(to.0);
        requests::registers(thread).is_ok_and(|registers| {
            arch::REACH.is_none_or(|reach| distance(arch::instruction_pointer(&registers)) <= reach)
        })
    }

    /// The slot's contents, as far as Pagelift knows.
    pub fn contents(&self) -> Contents {
        contents(&self.written.borrow()).unwrap_or(Contents::Nothing)
    }

    /// Writes the code for one call, after which a thread continues with these registers and this signal mask. `page` is the
    /// call page that the call maps or unmaps. No thread may be in the code; `thread` is stopped.
    ///
    /// # Errors
    /// The memory cannot be written, or holds something else than Pagelift has written there.
    pub fn write_once(
        &self,
        memory: &RemoteMemory,
        thread: Pid,
        registers: &Registers,
        mask: u64,
        page: Address,
    ) -> io::Result<()> {
        let words = arch::once_words(registers, mask, self.behind(&arch::ONCE_CODE))?;
        self.replace(memory, thread, &with_words(&arch::ONCE_CODE, words.into_iter().chain([page.0])))
    }

    /// Writes the code for the calls of a call page, after which a thread continues at `next`. No thread may be in the code.
    ///
    /// # Errors
    /// As for [`CodeSlot::write_once`].
    pub fn write_loop(&self, memory: &RemoteMemory, thread: Pid, page: Address, next: Address) -> io::Result<()> {
        self.replace(memory, thread, &with_words(&arch::LOOP_CODE, [next.0, page.0]))
    }

    /// Erases the code. No thread may be in it.
    ///
    /// # Errors
    /// As for [`CodeSlot::write_once`].
    pub fn erase(&self, memory: &RemoteMemory, thread: Pid) -> io::Result<()> {
        self.replace(memory, thread, &[])
    }

    /// The system call instruction of `ONCE_CODE` that maps a call page, or the one that unmaps it.
    pub fn instruction_of_once(&self, unmaps: bool) -> Address {
        let behind = call_sites(&arch::ONCE_CODE).nth(usize::from(unmaps)).unwrap_or_default();
        self.range.start() + behind.saturating_sub(arch::SYSCALL_INSTRUCTION.len()) as u64
    }

    /// The address of the signal mask behind `ONCE_CODE`.
    pub fn mask_of_once(&self) -> Address {
        self.behind(&arch::ONCE_CODE) + (arch::ONCE_MASK * WORD) as u64
    }

    /// True if a stopped thread still has this memory. It has other memory if it has executed another program since the
    /// memory was opened. A word is written to `memory` and read through ptrace. If the kernel lets only ptrace write
    /// here, the word is written through ptrace and read from `memory`.
    ///
    /// # Errors
    /// As for [`CodeSlot::write_once`].
    pub fn is_memory_of(&self, thread: Pid, memory: &RemoteMemory) -> io::Result<bool> {
        let at = self.range.end() - WORD as u64;
        self.expect_unchanged(memory)?;
        // Before anything is written through ptrace, check that ptrace reads the slot.
        let words =
            (0..self.range.len()).step_by(WORD).map(|offset| requests::word_of(thread, self.range.start() + offset));
        let words = words.collect::<Result<Vec<u64>, _>>()?;
        if words.into_iter().flat_map(u64::to_ne_bytes).ne(self.written.borrow().iter().copied()) {
            return Ok(false);
        }
        let last = memory.read_word(at)?;
        let other = if last == PROBE { 0 } else { PROBE };
        write_code(memory, thread, at, &other.to_ne_bytes())?;
        let is_same = requests::word_of(thread, at)? == other && memory.read_word(at)? == other;
        write_code(memory, thread, at, &0u64.to_ne_bytes())?;
        self.note(at, &[0; WORD]);
        Ok(is_same)
    }

    fn behind(&self, code: &CodeBetween) -> Address {
        self.range.start() + code.code().len() as u64
    }

    /// Replaces what the slot holds, if it is what Pagelift has written there.
    fn replace(&self, memory: &RemoteMemory, thread: Pid, contents: &[u8]) -> io::Result<()> {
        let mut now = contents.to_vec();
        now.resize(Self::length(), 0);
        self.expect_unchanged(memory)?;
        write_code(memory, thread, self.range.start(), &now)?;
        self.note(self.range.start(), &now);
        Ok(())
    }

    fn expect_unchanged(&self, memory: &RemoteMemory) -> io::Result<()> {
        if read(memory, self.range.start())? == *self.written.borrow() {
            return Ok(());
        }
        Err(io::Error::other(format!(
            "{}, the place of the code for injected calls, was changed by the program or another Pagelift",
            self.range
        )))
    }

    fn note(&self, at: Address, bytes: &[u8]) {
        let from = (at - self.range.start()) as usize;
        self.written.borrow_mut()[from..from + bytes.len()].copy_from_slice(bytes);
    }
}

fn with_words(code: &CodeBetween, words: impl IntoIterator<Item = u64>) -> Vec<u8> {
    let words = words.into_iter().flat_map(u64::to_ne_bytes);
    code.code().iter().copied().chain(words).collect()
}

/// Contents that these bytes of a slot represent; `None` if they are not Pagelift's.
fn contents(there: &[u8]) -> Option<Contents> {
    let (used, probe) = there.split_last_chunk::<WORD>()?;
    if ![0, PROBE].contains(&u64::from_ne_bytes(*probe)) {
        return None;
    }
    let word = |code: &CodeBetween, index: usize| {
        let words = used.strip_prefix(code.code())?;
        Some(Address(u64::from_ne_bytes(*words.get(index * WORD..)?.first_chunk()?)))
    };
    if used.iter().all(|&byte| byte == 0) {
        return Some(Contents::Nothing);
    }
    let once = word(&arch::ONCE_CODE, ONCE_WORDS).map(Contents::Once);
    once.or_else(|| word(&arch::LOOP_CODE, LOOP_WORDS - 1).map(Contents::Loop))
}

fn read(memory: &RemoteMemory, start: Address) -> io::Result<Vec<u8>> {
    let mut there = vec![0; CodeSlot::length()];
    memory.read(start, &mut there)?;
    Ok(there)
}

/// Returns the offsets after the system call instructions in the code.
pub fn call_sites(code: &'static CodeBetween) -> impl Iterator<Item = usize> {
    let (code, call) = (code.code(), arch::SYSCALL_INSTRUCTION);
    let ends = (call.len()..=code.len()).step_by(arch::INSTRUCTION_ALIGNMENT);
    ends.filter(move |&end| code[end - call.len()..end] == *call)
}

/// Writes to code, which the process itself may not write to.
///
/// Since Linux 6.12 a kernel can be built (`CONFIG_PROC_MEM_FORCE_PTRACE`, Debian's since 7.2) or booted
/// (`proc_mem.force_override=ptrace`) so that `/proc/PID/mem` writes to such pages only for the tracer of the main thread,
/// and reports `EIO` to others. Any stopped thread can be written through then.
fn write_code(memory: &RemoteMemory, thread: Pid, at: Address, bytes: &[u8]) -> io::Result<()> {
    match memory.write(at, bytes) {
        Err(error) if error.raw_os_error() == Some(libc::EIO) => Ok(requests::write_through(thread, at, bytes)?),
        written => written,
    }
}

/// Finds padding in the vDSO, for static programs whose only code ends close to a page's end. The kernel lets a
/// debugger write there, into a private copy.
fn room_behind_vdso(memory: &RemoteMemory, space: &AddressSpace) -> Option<Address> {
    let vdso = space.mappings().iter().find(|m| m.name == MappingName::Special("[vdso]".into()))?;
    // The last table of the object may itself end in a few zeros; what follows these is padding.
    const LAST_ZEROS: u64 = 64;
    let room = (CodeSlot::length() as u64).next_multiple_of(16);
    if !vdso.protection.execute || vdso.range.len() < room + LAST_ZEROS {
        return None;
    }
    let start = Address(vdso.range.end().0 - room);
    let mut before = [0; LAST_ZEROS as usize];
    memory.read(start - LAST_ZEROS, &mut before).ok()?;
    before.iter().all(|&byte| byte == 0).then_some(start)
}

/// Returns places in the rest of an executable segment's last page, in objects of this role; the smallest segments come first. A
/// write makes the page private, so that its huge page can no longer come from an image: small segments have none.
fn room_behind_segments(
    space: &AddressSpace,
    objects: &[LoadedObject],
    role: ObjectRole,
    base_page: PageSize,
) -> impl Iterator<Item = Address> {
    let objects = objects.iter().filter(move |object| object.role == role);
    let segments = objects.flat_map(|object| object.image.segments.iter().map(move |segment| (object, segment)));
    let mut segments: Vec<_> = segments.filter(|(_, s)| s.protection.execute && !s.protection.write).collect();
    segments.sort_by_key(|(_, segment)| segment.memory.len());
    segments.into_iter().filter_map(move |(object, segment)| {
        let end = segment.memory.end() + object.bias;
        let page_end = end.align_up(base_page)?;
        let start = Address((end.0 + 15) & !15);
        let mapping = space.find(end.align_down(base_page))?;
        let fits = page_end.0.saturating_sub(start.0) >= CodeSlot::length() as u64 && end.0 % base_page.bytes() != 0;
        let is_code = mapping.protection.execute && mapping.protection.read && mapping.path().is_some();
        (fits && is_code).then_some(start)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::remote::guest_code::ROOM_FOR_CODE;

    #[test]
    fn the_code_makes_as_many_calls_as_it_is_said_to() {
        // The call of the page and the signal mask; on AArch64 also the end of a call and rt_sigreturn.
        let wanted = if arch::SHOWS_CALLS { 2 } else { 4 };
        assert_eq!(call_sites(&arch::LOOP_CODE).count(), wanted);
        // mmap, munmap and the signal mask.
        assert_eq!(call_sites(&arch::ONCE_CODE).count(), 3);
        assert_eq!(call_sites(&arch::ONCE_CODE).next(), Some(arch::SYSCALL_INSTRUCTION.len()));
    }

    #[test]
    fn a_slot_fits_behind_a_vdso() {
        assert!(CodeSlot::length() + 64 <= ROOM_FOR_CODE, "{} bytes", CodeSlot::length());
    }

    #[test]
    fn a_slot_tells_what_it_holds_and_which_page() {
        let padded = |mut bytes: Vec<u8>| {
            bytes.resize(CodeSlot::length(), 0);
            bytes
        };
        let once = padded(with_words(&arch::ONCE_CODE, (0..ONCE_WORDS as u64).chain([0x7000])));
        let looping = padded(with_words(&arch::LOOP_CODE, [0x1234, 0x8000]));
        assert_eq!(contents(&padded(Vec::new())), Some(Contents::Nothing));
        assert_eq!(contents(&once), Some(Contents::Once(Address(0x7000))));
        assert_eq!(contents(&looping), Some(Contents::Loop(Address(0x8000))));
        for at in [0, 9, looping.len() - 1] {
            let mut changed = looping.clone();
            changed[at] ^= 1;
            assert_eq!(contents(&changed), None, "byte {at}");
        }
        assert_eq!(contents(&padded(vec![1])), None);
        // A lift that was killed while it asked whose memory this is.
        let probed = [vec![0; CodeSlot::length() - WORD], PROBE.to_ne_bytes().to_vec()].concat();
        assert_eq!(contents(&probed), Some(Contents::Nothing));
    }
}
