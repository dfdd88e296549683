//! The page by which a thread of a running program makes calls, and in which a lift notes what the next one has to know.
//!
//! It is a mapping of Pagelift's own, which a thread of the program maps and unmaps by the code for one call
//! (`code_slot`). The slot names it, and it names itself and its process: only what does so is taken for a call page.

use super::code_slot::{CodeSlot, call_sites};
use crate::remote::RemoteMemory;
use crate::remote::arch::layout::{self, MOST_STAGING, STAGING_LIST};
use crate::remote::arch::{self, MARK, Registers};
use crate::remote::inflight_syscall::is_at_call;
use crate::remote::requests;
use address_space::{Address, AddressRange, AddressSpace, PageSize, RangeSet};
use nix::unistd::Pid;
use std::io;

/// Code and call page in one program.
pub struct CallPage {
    slot: CodeSlot,
    data: Address,
}

impl CallPage {
    /// Returns the call page at the address that the slot names, which need not be mapped.
    pub fn of(slot: CodeSlot, data: Address) -> Self {
        Self { slot, data }
    }

    /// True for the address of a call page: private anonymous memory with the marks of a call page.
    pub fn is_at(data: Address, memory: &RemoteMemory, space: &AddressSpace) -> bool {
        let mapping = space.find(data);
        let is_ours = mapping.is_some_and(|mapping| {
            let of_page = mapping.range.covers(AddressRange::sized(data, layout::BYTES as u64));
            of_page && mapping.is_plain_anonymous() && mapping.protection == address_space::Protection::READ_WRITE
        });
        is_ours && has_marks(memory, data)
    }

    /// True if the page is still mapped.
    pub fn is_there(&self, memory: &RemoteMemory) -> bool {
        has_marks(memory, self.data)
    }

    /// Writes the code, for the process of this number. No thread may be in it. `thread` is stopped.
    ///
    /// # Errors
    /// Where the memory is gone.
    pub fn install(&self, memory: &RemoteMemory, thread: Pid, owner: u64) -> io::Result<()> {
        // Before anything that makes the page usable: a child must not pass for the owner.
        self.write(memory, layout::OWNER, owner)?;
        self.write(memory, layout::INSIDE, 0)?;
        self.write(memory, layout::NUMBER, u64::MAX)?;
        self.slot.write_loop(memory, thread, self.data, Address(0))
    }

    /// The number of the process for which the page was written; 0 where it names none.
    pub fn owner(&self, memory: &RemoteMemory) -> u64 {
        self.read(memory, layout::OWNER)
    }

    /// True if a thread is in the code, or in a signal handler that returns to it; or, in a child, if a thread was in
    /// the parent's code at the fork ([`super::inherited`]).
    pub fn is_occupied(&self, memory: &RemoteMemory) -> bool {
        self.is_there(memory) && self.read(memory, layout::INSIDE) != 0
    }

    /// Records that the thread has been taken out of the code.
    ///
    /// # Errors
    /// Where the memory is gone.
    pub fn set_outside(&self, memory: &RemoteMemory) -> io::Result<()> {
        self.write(memory, layout::INSIDE, 0)
    }

    /// Takes a stopped thread out of the code, if it waits there because of a lift that was killed.
    ///
    /// # Errors
    /// Where the thread or the memory is gone.
    pub fn take_out(&self, memory: &RemoteMemory, thread: Pid) -> io::Result<()> {
        let registers = requests::registers(thread)?;
        if !self.code().contains(arch::instruction_pointer(&registers)) {
            return Ok(());
        }
        let mut state = [0; arch::RETURN_BYTES];
        memory.read(self.data + layout::RETURN as u64, &mut state)?;
        if let Some(registers) = arch::way_out(&registers, self.data, &state, is_at_call(memory, &registers)) {
            // In this order: a thread inside the code is found there even without the record.
            self.set_outside(memory)?;
            requests::set_registers_of_same_program(thread, &registers)?;
        }
        Ok(())
    }

    /// The room for the code.
    pub fn slot(&self) -> &CodeSlot {
        &self.slot
    }

    /// The room for the code, for a page that is no longer used.
    pub fn into_slot(self) -> CodeSlot {
        self.slot
    }

    /// The range of the code and the words after it.
    pub fn code(&self) -> AddressRange {
        self.slot.range()
    }

    /// The call page.
    pub fn data(&self) -> Address {
        self.data
    }

    /// True if a stopped thread has this memory now, and not the memory of another program that it has executed since
    /// the memory was opened: bytes written to `memory` are read back through ptrace. If another process keeps the
    /// previous memory alive, that can still be written, but ptrace does not read the written bytes.
    ///
    /// # Errors
    /// Where the thread or the memory is gone, or the page is.
    pub fn is_memory_of(&self, thread: Pid, memory: &RemoteMemory) -> io::Result<bool> {
        self.expect_there(memory)?;
        let at = self.data + layout::PROBE as u64;
        let other = requests::word_of(thread, at)?.wrapping_add(1);
        self.write(memory, layout::PROBE, other)?;
        Ok(requests::word_of(thread, at)? == other)
    }

    /// The address after the instruction that makes the calls of the page.
    pub fn behind_call(&self) -> Address {
        self.code().start() + call_sites(&arch::LOOP_CODE).next().unwrap_or_default() as u64
    }

    /// The address of the signal mask with which a thread leaves the code.
    pub fn mask(&self) -> Address {
        self.data + layout::OLD_MASK as u64
    }

    /// Writes the registers, signal mask and address with which a stopped thread continues afterwards.
    pub fn set_return(&self, memory: &RemoteMemory, thread: Pid, registers: &Registers, mask: u64) -> io::Result<()> {
        let state = arch::return_state(thread, registers, mask, is_at_call(memory, registers))?;
        self.write(memory, layout::NUMBER, u64::MAX)?;
        self.write(memory, layout::OLD_MASK, mask)?;
        self.write_bytes(memory, layout::RETURN, &state)?;
        self.slot.write_loop(memory, thread, self.data, arch::instruction_pointer(registers))
    }

    /// Writes the next call. The number comes last, since it makes the call valid.
    pub fn set_call(&self, memory: &RemoteMemory, number: i64, arguments: [u64; 6]) -> io::Result<()> {
        let bytes: Vec<u8> = arguments.into_iter().flat_map(u64::to_ne_bytes).collect();
        self.write_bytes(memory, layout::ARGUMENTS, &bytes)?;
        self.write(memory, layout::NUMBER, number as u64)
    }

    /// Takes back the next call, unless a thread is making it already.
    ///
    /// # Errors
    /// Where the memory is gone.
    pub fn withdraw_call(&self, memory: &RemoteMemory) -> io::Result<()> {
        self.write(memory, layout::NUMBER, u64::MAX)
    }

    /// Reads the recorded staging copies.
    pub fn staging(&self, memory: &RemoteMemory) -> RangeSet {
        let word = |index: usize| self.read(memory, STAGING_LIST + index * 8);
        (0..MOST_STAGING).map(|i| AddressRange::sized(Address(word(i * 2)), word(i * 2 + 1))).collect()
    }

    /// Records the staging copies; those that do not fit are left out.
    pub fn set_staging(&self, memory: &RemoteMemory, staging: &RangeSet) -> io::Result<()> {
        let mut words = vec![0; MOST_STAGING * 2];
        for (pair, range) in words.chunks_exact_mut(2).zip(staging.iter()) {
            pair.copy_from_slice(&[range.start().0, range.len()]);
        }
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        self.write_bytes(memory, STAGING_LIST, &bytes)
    }

    /// The address to which a staging copy was to be moved by the last swap that was begun.
    pub fn swap_of(&self, memory: &RemoteMemory, copy: AddressRange) -> Option<Address> {
        let [start, length, to] = [0, 8, 16].map(|at| self.read(memory, layout::SWAP + at));
        (AddressRange::sized(Address(start), length) == copy).then_some(Address(to))
    }

    /// Records that a staging copy is about to be moved.
    ///
    /// # Errors
    /// Where the memory is gone.
    pub fn set_swap(&self, memory: &RemoteMemory, copy: AddressRange, to: Address) -> io::Result<()> {
        let words = [copy.start().0, copy.len(), to.0];
        self.write_bytes(memory, layout::SWAP, &words.map(u64::to_ne_bytes).concat())
    }

    /// The bytes that were last placed for a call, up to the first NUL.
    pub fn placed(&self, memory: &RemoteMemory) -> Vec<u8> {
        let mut bytes = vec![0; layout::SCRATCH_BYTES];
        let read = memory.read(self.data + layout::SCRATCH as u64, &mut bytes);
        let end = bytes.iter().position(|&byte| byte == 0).filter(|_| read.is_ok()).unwrap_or(0);
        bytes.truncate(end);
        bytes
    }

    /// The program's own PR_SET_THP_DISABLE, as PR_GET_THP_DISABLE gave it, where a lift has suspended it; 0 otherwise.
    pub fn suspended_setting(&self, memory: &RemoteMemory) -> u64 {
        self.read(memory, layout::SUSPENDED)
    }

    /// Records that setting; 0 records that it is in force again.
    ///
    /// # Errors
    /// Where the memory is gone.
    pub fn set_suspended_setting(&self, memory: &RemoteMemory, setting: u64) -> io::Result<()> {
        self.write(memory, layout::SUSPENDED, setting)
    }

    /// Writes bytes, at most `SCRATCH_BYTES`, to the memory for arguments of calls, and returns its address.
    ///
    /// # Errors
    /// Where the memory is gone.
    pub fn place(&self, memory: &RemoteMemory, bytes: &[u8]) -> io::Result<Address> {
        self.write_bytes(memory, layout::SCRATCH, bytes)?;
        Ok(self.data + layout::SCRATCH as u64)
    }

    fn read(&self, memory: &RemoteMemory, offset: usize) -> u64 {
        memory.read_word(self.data + offset as u64).unwrap_or(0)
    }

    fn write(&self, memory: &RemoteMemory, offset: usize, value: u64) -> io::Result<()> {
        self.write_bytes(memory, offset, &value.to_ne_bytes())
    }

    /// Writes to the page, if the program has not mapped anything else there.
    fn write_bytes(&self, memory: &RemoteMemory, offset: usize, bytes: &[u8]) -> io::Result<()> {
        self.expect_there(memory)?;
        memory.write(self.data + offset as u64, bytes)
    }

    fn expect_there(&self, memory: &RemoteMemory) -> io::Result<()> {
        if self.is_there(memory) {
            return Ok(());
        }
        Err(io::Error::other(format!("the program has unmapped the page for calls at {}", self.data)))
    }
}

/// Reads all marks by one call: this precedes each write.
fn has_marks(memory: &RemoteMemory, data: Address) -> bool {
    let mut start = [0; layout::OWN_ADDRESS + 8];
    let word = |start: &[u8], offset: usize| start[offset..].first_chunk().map(|word| u64::from_ne_bytes(*word));
    memory.read(data, &mut start).is_ok()
        && [layout::MARK, layout::MARK + 8, layout::OWN_ADDRESS].map(|offset| word(&start, offset))
            == [Some(MARK[0]), Some(MARK[1]), Some(data.0)]
}

/// Flags of the mapping of a call page.
pub const MAPPING_FLAGS: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;

/// Length in bytes of the mapping of a call page.
pub fn mapping_length(base_page: PageSize) -> u64 {
    (layout::BYTES as u64).next_multiple_of(base_page.bytes())
}
