//! Places code and data for a thread's calls in the program's memory.

use crate::remote::RemoteMemory;
use crate::remote::arch::{self, Registers, call_page};
use crate::remote::inflight_syscall::is_at_call;
use crate::remote::requests;
use address_space::{Address, AddressRange, AddressSpace, LoadedObject, MappingName, PageSize, RangeSet};
use linux::pagemap::Pagemap;
use nix::unistd::Pid;
use std::io;

/// First words of a call page, by which that of an earlier lift is found.
const MARK: [u64; 2] = [u64::from_le_bytes(*b"pagelift"), u64::from_le_bytes(*b"callpage")];

/// Size in bytes of the memory for arguments of calls.
pub const SCRATCH_BYTES: usize = 0x400;

/// Offset of the word of the call page by which its memory is distinguished from another.
const PROBE: u64 = 0x3f8;

/// Offset of the word of the call page with the number of its process ([`super::inherited`]). Pages of older versions hold 0.
const OWNER: u64 = 0x3f0;

/// Offset of the list of staging copies in the call page, and its maximum length.
const STAGING_LIST: u64 = 0x800;
const MOST_STAGING: u64 = 32;

/// Offset of the word of the call page that holds the program's own PR_SET_THP_DISABLE while that is suspended.
const SUSPENDED: u64 = 0xa00;

/// Why a program has no room for the code and data of calls.
#[derive(Debug, thiserror::Error)]
pub enum PageError {
    /// Neither an executable segment nor the vDSO leaves enough of its last page.
    #[error("no room for {0} bytes of code behind any of its segments, nor behind the vDSO")]
    NoRoomForCode(usize),
    /// Every page of the stack has been used.
    #[error("its main thread's stack has no page that was never used")]
    NoRoomForData,
    /// Its memory could not be accessed.
    #[error("its memory cannot be accessed: {0}")]
    Memory(#[from] io::Error),
}

/// Code and call page in one program.
pub struct CallPage {
    code: AddressRange,
    data: Address,
    /// The code of a lift that was killed is there.
    left_behind: bool,
}

impl CallPage {
    /// Finds room, without writing anything.
    ///
    /// # Errors
    /// [`PageError`].
    pub fn find(
        memory: &RemoteMemory,
        space: &AddressSpace,
        objects: &[LoadedObject],
        pagemap: &Pagemap,
        base_page: PageSize,
    ) -> Result<Self, PageError> {
        let code = arch::LOOP_CODE.code();
        let length = code.len() + size_of::<u64>();
        let place =
            room_for_code(memory, space, objects, base_page, length)?.ok_or(PageError::NoRoomForCode(length))?;
        let mut there = vec![0; length];
        memory.read(place, &mut there)?;
        let left_behind = is_ours(&there);
        let data = room_for_data(memory, space, pagemap, base_page, left_behind)?.ok_or(PageError::NoRoomForData)?;
        Ok(Self { code: AddressRange::sized(place, length as u64), data, left_behind })
    }

    /// Writes the code, for the process of this number. No thread may be in it. `thread` is stopped, if one is.
    ///
    /// # Errors
    /// Where the memory is gone; `EIO` where it can only be written through a stopped thread (see [`write_code`]).
    pub fn install(&self, memory: &RemoteMemory, thread: Option<Pid>, owner: u64) -> io::Result<()> {
        write_code(memory, thread, self.code.start(), arch::LOOP_CODE.code())?;
        // Before anything that makes the page usable: a child must not pass for the owner.
        self.write(memory, OWNER as usize, owner)?;
        self.write(memory, 0, MARK[0])?;
        self.write(memory, 8, MARK[1])?;
        self.write(memory, call_page::INSIDE, 0)?;
        self.write(memory, call_page::NUMBER, u64::MAX)
    }

    /// True where a lift that was killed has left its code, which a thread may still be executing.
    pub fn is_left_behind(&self) -> bool {
        self.left_behind
    }

    /// The number of the process for which the page was written; 0 where it names none.
    pub fn owner(&self, memory: &RemoteMemory) -> u64 {
        memory.read_word(self.data + OWNER).unwrap_or(0)
    }

    /// True where a thread is in the code, or in a signal handler that returns to it; or, in a child, where one was in the
    /// code of the parent at the fork ([`super::inherited`]).
    pub fn is_occupied(&self, memory: &RemoteMemory) -> bool {
        let words = [0, 8, call_page::INSIDE as u64].map(|offset| memory.read_word(self.data + offset).unwrap_or(0));
        words[..2] == MARK && words[2] != 0
    }

    /// Records that the thread has been taken out of the code.
    ///
    /// # Errors
    /// Where the memory is gone.
    pub fn set_outside(&self, memory: &RemoteMemory) -> io::Result<()> {
        self.write(memory, call_page::INSIDE, 0)
    }

    /// Takes a stopped thread out of the code, if it waits there because of a lift that was killed.
    ///
    /// # Errors
    /// Where the thread or the memory is gone.
    pub fn take_out(&self, memory: &RemoteMemory, thread: Pid) -> io::Result<()> {
        let registers = requests::registers(thread)?;
        if !self.code.contains(arch::instruction_pointer(&registers)) {
            return Ok(());
        }
        let mut state = [0; arch::STATE_BYTES];
        memory.read(self.data + call_page::RETURN as u64, &mut state)?;
        if let Some(registers) = arch::way_out(&registers, self.data, &state, is_at_call(memory, &registers)) {
            // In this order: a thread inside the code is found there even without the record.
            self.set_outside(memory)?;
            requests::set_registers_of_same_program(thread, &registers)?;
        }
        Ok(())
    }

    /// Erases the code. No thread may be in it. `thread` is stopped, if one is.
    ///
    /// # Errors
    /// As for [`CallPage::install`].
    pub fn erase(&self, memory: &RemoteMemory, thread: Option<Pid>) -> io::Result<()> {
        write_code(memory, thread, self.code.start(), &vec![0; self.code.len() as usize])
    }

    /// The range of the code and the word after it.
    pub fn code(&self) -> AddressRange {
        self.code
    }

    /// The call page.
    pub fn data(&self) -> Address {
        self.data
    }

    /// True where a stopped thread has this memory now, and not that of another program which it has executed since the
    /// memory was opened: what is written to `memory` is read through ptrace. Where another process keeps the previous
    /// memory alive, that can still be written, but then ptrace does not read what was written.
    ///
    /// # Errors
    /// Where the thread or the memory is gone.
    pub fn is_memory_of(&self, thread: Pid, memory: &RemoteMemory) -> io::Result<bool> {
        let at = self.data + PROBE;
        let other = requests::word_of(thread, at)?.wrapping_add(1);
        memory.write(at, &other.to_ne_bytes())?;
        Ok(requests::word_of(thread, at)? == other)
    }

    /// The address after the instruction that makes the calls of the page.
    pub fn behind_call(&self) -> Address {
        self.code.start() + call_sites().next().unwrap_or_default() as u64
    }

    /// Number and arguments of the call by which a thread that leaves the code restores its signal mask.
    pub fn mask_call(&self) -> (i64, [u64; 4]) {
        let mask = (self.data + call_page::OLD_MASK as u64).0;
        (libc::SYS_rt_sigprocmask, [libc::SIG_SETMASK as u64, mask, 0, size_of::<u64>() as u64])
    }

    /// Writes the registers, signal mask and address with which a stopped thread continues afterwards.
    pub fn set_return(&self, memory: &RemoteMemory, thread: Pid, registers: &Registers, mask: u64) -> io::Result<()> {
        let state = arch::return_state(thread, registers, mask, is_at_call(memory, registers))?;
        self.write(memory, call_page::NUMBER, u64::MAX)?;
        self.write(memory, call_page::OLD_MASK, mask)?;
        memory.write(self.data + call_page::RETURN as u64, &state)?;
        let slot = self.code.end() - size_of::<u64>() as u64;
        write_code(memory, Some(thread), slot, &arch::instruction_pointer(registers).0.to_ne_bytes())
    }

    /// Writes the next call. The number comes last, since it makes the call valid.
    pub fn set_call(&self, memory: &RemoteMemory, number: i64, arguments: [u64; 6]) -> io::Result<()> {
        for (index, argument) in arguments.into_iter().enumerate() {
            self.write(memory, call_page::ARGUMENTS + index * 8, argument)?;
        }
        self.write(memory, call_page::NUMBER, number as u64)
    }

    /// Takes back the next call, unless a thread is making it already.
    ///
    /// # Errors
    /// Where the memory is gone.
    pub fn withdraw_call(&self, memory: &RemoteMemory) -> io::Result<()> {
        self.write(memory, call_page::NUMBER, u64::MAX)
    }

    /// Reads the recorded staging copies.
    pub fn staging(&self, memory: &RemoteMemory) -> RangeSet {
        let word = |index: u64| memory.read_word(self.data + STAGING_LIST + index * 8).unwrap_or(0);
        (0..MOST_STAGING).map(|i| AddressRange::sized(Address(word(i * 2)), word(i * 2 + 1))).collect()
    }

    /// Records the staging copies; those that do not fit are left out.
    pub fn set_staging(&self, memory: &RemoteMemory, staging: &RangeSet) -> io::Result<()> {
        let mut words = vec![0; MOST_STAGING as usize * 2];
        for (pair, range) in words.chunks_exact_mut(2).zip(staging.iter()) {
            pair.copy_from_slice(&[range.start().0, range.len()]);
        }
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        memory.write(self.data + STAGING_LIST, &bytes)
    }

    /// The program's own PR_SET_THP_DISABLE, as PR_GET_THP_DISABLE gave it, where a lift has suspended it; 0 otherwise.
    pub fn suspended_setting(&self, memory: &RemoteMemory) -> u64 {
        memory.read_word(self.data + SUSPENDED).unwrap_or(0)
    }

    /// Records that setting, or by 0 that it stands again.
    ///
    /// # Errors
    /// Where the memory is gone.
    pub fn set_suspended_setting(&self, memory: &RemoteMemory, setting: u64) -> io::Result<()> {
        self.write(memory, SUSPENDED as usize, setting)
    }

    /// The address of memory for arguments of calls, within the call page.
    pub fn scratch(&self) -> Address {
        self.data + 0x400
    }

    fn write(&self, memory: &RemoteMemory, offset: usize, value: u64) -> io::Result<()> {
        memory.write(self.data + offset as u64, &value.to_ne_bytes())
    }
}

/// Writes to code, which the process itself may not write to.
///
/// Since Linux 6.12 a kernel can be built (`CONFIG_PROC_MEM_FORCE_PTRACE`, Debian's since 7.2) or booted
/// (`proc_mem.force_override=ptrace`) so that `/proc/PID/mem` writes to such pages only for the tracer of the main thread,
/// and reports `EIO` to others. Any stopped thread can be written through then.
fn write_code(memory: &RemoteMemory, thread: Option<Pid>, at: Address, bytes: &[u8]) -> io::Result<()> {
    match (memory.write(at, bytes), thread) {
        (Err(error), Some(thread)) if is_refused(&error) => Ok(requests::write_through(thread, at, bytes)?),
        (written, _) => written,
    }
}

/// True where the kernel writes to code through a stopped thread only.
pub fn is_refused(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EIO)
}

/// Finds memory for code that is readable, executable and unused by the program.
fn room_for_code(
    memory: &RemoteMemory,
    space: &AddressSpace,
    objects: &[LoadedObject],
    base_page: PageSize,
    length: usize,
) -> io::Result<Option<Address>> {
    match room_behind_segments(memory, space, objects, base_page, length)? {
        Some(place) => Ok(Some(place)),
        None => room_behind_vdso(memory, space, length),
    }
}

/// Finds padding in the vDSO, for static programs whose only code ends close to a page's end. The kernel lets a
/// debugger write there, into a private copy.
fn room_behind_vdso(memory: &RemoteMemory, space: &AddressSpace, length: usize) -> io::Result<Option<Address>> {
    let Some(vdso) = space.mappings().iter().find(|m| m.name == MappingName::Special("[vdso]".into())) else {
        return Ok(None);
    };
    // The last table of the object may itself end in a few zeros; what follows these is padding.
    const LAST_ZEROS: u64 = 64;
    let room = (length as u64).next_multiple_of(16);
    if !vdso.protection.execute || vdso.range.len() < room + LAST_ZEROS {
        return Ok(None);
    }
    let start = Address(vdso.range.end().0 - room);
    let mut there = vec![0; (LAST_ZEROS + room) as usize];
    memory.read(Address(start.0 - LAST_ZEROS), &mut there)?;
    let (before, own) = there.split_at(LAST_ZEROS as usize);
    let is_free = before.iter().all(|&byte| byte == 0) && (own.iter().all(|&byte| byte == 0) || is_ours(own));
    Ok(is_free.then_some(start))
}

/// Finds the rest of an executable segment's last page, in the smallest segment that has room there. A write makes the
/// page private, so that its huge page can no longer come from an image: small segments have none.
fn room_behind_segments(
    memory: &RemoteMemory,
    space: &AddressSpace,
    objects: &[LoadedObject],
    base_page: PageSize,
    length: usize,
) -> io::Result<Option<Address>> {
    let segments = objects.iter().flat_map(|object| object.image.segments.iter().map(move |segment| (object, segment)));
    let mut segments: Vec<_> = segments.filter(|(_, s)| s.protection.execute && !s.protection.write).collect();
    segments.sort_by_key(|(_, segment)| segment.memory.len());
    for (object, segment) in segments {
        let end = segment.memory.end() + object.bias;
        let Some(page_end) = end.align_up(base_page) else { continue };
        let start = Address((end.0 + 15) & !15);
        let Some(mapping) = space.find(end.align_down(base_page)) else { continue };
        let fits = page_end.0.saturating_sub(start.0) >= length as u64 && end.0 % base_page.bytes() != 0;
        if !fits || !mapping.protection.execute || !mapping.protection.read || mapping.path().is_none() {
            continue;
        }
        let mut there = vec![0; length];
        memory.read(start, &mut there)?;
        // Bytes other than zero do not belong to the segment: a file may map those of the next segment here.
        if there.iter().all(|&byte| byte == 0) || is_ours(&there) {
            return Ok(Some(start));
        }
    }
    Ok(None)
}

/// Returns the offsets after the system call instructions in the code.
fn call_sites() -> impl Iterator<Item = usize> {
    let (code, call) = (arch::LOOP_CODE.code(), arch::SYSCALL_INSTRUCTION);
    let ends = (call.len()..=code.len()).step_by(arch::INSTRUCTION_ALIGNMENT);
    ends.filter(move |&end| code[end - call.len()..end] == *call)
}

/// True for the code of a lift that was killed.
fn is_ours(there: &[u8]) -> bool {
    there.starts_with(arch::LOOP_CODE.code())
}

fn room_for_data(
    memory: &RemoteMemory,
    space: &AddressSpace,
    pagemap: &Pagemap,
    base_page: PageSize,
    left_behind: bool,
) -> io::Result<Option<Address>> {
    let Some(stack) = space.mappings().iter().find(|mapping| mapping.name == MappingName::Stack) else {
        return Ok(None);
    };
    let touched = pagemap.touched(stack.range)?;
    let is_marked = |page: AddressRange| -> io::Result<bool> {
        Ok([memory.read_word(page.start())?, memory.read_word(page.start() + 8)?] == MARK)
    };
    // A thread that is still in the code uses the page of that lift, below which the stack may have grown since.
    if left_behind {
        for page in stack.range.pages(base_page).filter(|&page| touched.overlaps(page)) {
            if is_marked(page)? {
                return Ok(Some(page.start()));
            }
        }
    }
    for page in stack.range.pages(base_page) {
        if !touched.overlaps(page) || is_marked(page)? {
            return Ok(Some(page.start()));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_code_makes_as_many_calls_as_it_is_said_to() {
        // The call of the page and the signal mask; on AArch64 also the end of a call and rt_sigreturn.
        let wanted = if arch::SHOWS_CALLS { 2 } else { 4 };
        assert_eq!(call_sites().count(), wanted);
    }
}
