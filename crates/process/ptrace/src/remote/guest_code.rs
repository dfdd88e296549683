//! Code that Pagelift places in a program that is being started.
//!
//! The rule: the helper may be killed at any moment of a start, and the program still starts as it would without it.
//!
//! - One change of its registers sends the thread into code that makes the call in these registers, reports its end by
//!   a SIGURG to itself, and continues with the registers and the signal mask stored below its stack pointer. SIGURG is
//!   ignored by default (signal(7)): only a tracer sees it. A SIGTRAP, for example from a single step or a debug
//!   register, would kill a program whose tracer is gone.
//! - AT_ENTRY of the auxiliary vector, by which the dynamic linker enters the program, is set to code that waits for the
//!   helper for a while and continues at the real entry. It makes no call: a constructor may have installed a seccomp
//!   filter that kills the program for it.
//! - Both pieces are in the padding after the vDSO, one at a time, and are erased after use. The kernel lets a debugger
//!   write there, into a private copy of the page, which `last_call` drops if it contains no other change. Without such
//!   padding, that of an executable segment is used.
//! - Code that may stay there for longer than one stop is harmless at any moment: everything it needs is in it or on
//!   the stack.

use crate::remote::RemoteMemory;
use crate::remote::requests;
use address_space::{Address, AddressRange, AddressSpace, Mapping, MappingName, PageSize};
use nix::unistd::Pid;
use std::io;

/// Zero bytes, in number, that may belong to the last table of the vDSO and are kept free before the code.
const LAST_ZEROS: usize = 64;

/// Maximum number of bytes at the end of the vDSO that code takes, the zeros before it included. Linux 5.10 to 7.2 leave
/// at least 600 on both architectures.
pub const ROOM_FOR_CODE: usize = 512;

/// Code that has been placed in a program.
#[derive(Debug)]
pub struct GuestCode {
    at: Address,
    length: usize,
}

impl GuestCode {
    /// Writes code to unused memory: to the end of the first of these mappings that has room there.
    ///
    /// # Errors
    /// Where there is no room, or the memory cannot be written; nothing has changed then.
    pub fn place(
        pid: Pid,
        memory: &RemoteMemory,
        code: &[u8],
        mut mappings: impl Iterator<Item = AddressRange>,
    ) -> io::Result<Self> {
        let at = mappings.find_map(|mapping| padding_of(memory, mapping, code.len())).ok_or_else(|| {
            io::Error::other(format!("found no {} bytes of padding after the vDSO or its code", code.len()))
        })?;
        write_code(pid, memory, at, code)?;
        Ok(Self { at, length: code.len() })
    }

    /// The address of the code.
    pub fn at(&self) -> Address {
        self.at
    }

    /// The code's memory.
    pub fn range(&self) -> AddressRange {
        AddressRange::sized(self.at, self.length as u64)
    }

    /// Erases the code. No thread may be executing it.
    ///
    /// # Errors
    /// Where the memory is gone.
    pub fn erase(&self, pid: Pid, memory: &RemoteMemory) -> io::Result<()> {
        write_code(pid, memory, self.at, &vec![0; self.length])
    }
}

/// Returns the mappings of a process that may have room for code: the vDSO, which is never lifted, then those of files.
pub fn mappings_with_room(space: &AddressSpace) -> impl Iterator<Item = AddressRange> {
    let executable =
        || space.mappings().iter().filter(|m| m.protection.execute && m.protection.read && !m.protection.write);
    let vdso = executable().filter(|mapping| is_vdso(mapping));
    let files = executable().filter(|mapping| mapping.path().is_some());
    vdso.chain(files).map(|mapping| mapping.range)
}

/// True for the vDSO's code.
pub fn is_vdso(mapping: &Mapping) -> bool {
    matches!(&mapping.name, MappingName::Special(name) if name == "[vdso]")
}

/// Returns the mapping of the vDSO at this address (`AT_SYSINFO_EHDR`), read from its own headers, which takes a
/// twentieth of the time of reading `/proc/PID/maps`.
pub fn vdso_at(memory: &RemoteMemory, start: Address, base_page: PageSize) -> Option<AddressRange> {
    let mut head = vec![0; 1024];
    memory.read(start, &mut head).ok()?;
    let word = |at: usize, length: usize| {
        let mut bytes = [0; 8];
        bytes[..length].copy_from_slice(head.get(at..at.checked_add(length)?)?);
        Some(u64::from_le_bytes(bytes))
    };
    // Elf64_Ehdr and Elf64_Phdr of elf(5).
    let (table, entry_size, count) = (word(32, 8)?, word(54, 2)?, word(56, 2)?);
    let segments = (0..count).map_while(|index| usize::try_from(table.checked_add(index * entry_size)?).ok());
    let loaded = segments.filter(|&at| word(at, 4) == Some(PT_LOAD)).filter_map(|at| word(at.checked_add(40)?, 8));
    let length = loaded.max()?.checked_next_multiple_of(base_page.bytes())?;
    Some(AddressRange::sized(start, length))
}

/// `PT_LOAD` of elf(5).
const PT_LOAD: u64 = 1;

/// Returns the start of `length` bytes at the end of a mapping, where these are zeros.
fn padding_of(memory: &RemoteMemory, mapping: AddressRange, length: usize) -> Option<Address> {
    let room = length.next_multiple_of(16);
    let start = Address(mapping.end().0.checked_sub(room as u64)?);
    let mut there = vec![0; LAST_ZEROS + room];
    memory.read(Address(start.0.checked_sub(LAST_ZEROS as u64)?), &mut there).ok()?;
    (mapping.contains(start) && there.iter().all(|&byte| byte == 0)).then_some(start)
}

/// Writes to pages that are not writable: by `/proc/PID/mem`, or word by word with ptrace if the kernel refuses that
/// (Linux 6.12, `proc_mem.force_override=never`).
///
/// # Errors
/// Where the memory is gone.
pub fn write_code(pid: Pid, memory: &RemoteMemory, at: Address, code: &[u8]) -> io::Result<()> {
    if memory.write(at, code).is_ok() {
        return Ok(());
    }
    for (index, word) in code.chunks(8).enumerate() {
        let at = at + index as u64 * 8;
        let mut bytes = memory.read_word(at)?.to_ne_bytes();
        bytes[..word.len()].copy_from_slice(word);
        requests::poke(pid, at.0, u64::from_ne_bytes(bytes))?;
    }
    Ok(())
}

/// Code between two symbols of this program, which is only executed as a copy elsewhere.
pub struct CodeBetween {
    /// Its first byte.
    pub start: unsafe extern "C" fn(),
    /// The byte after its last.
    pub end: unsafe extern "C" fn(),
}

impl CodeBetween {
    /// The bytes of the code.
    pub fn code(&self) -> &'static [u8] {
        let (start, end) = (self.start as usize, self.end as usize);
        // SAFETY:
        // - both symbols are in this order in one block of assembly in `arch`, with only code between them.
        // - code is mapped readable for as long as the program runs.
        unsafe { std::slice::from_raw_parts(start as *const u8, end - start) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::remote::arch::guest;

    #[test]
    fn the_code_fits_behind_a_vdso() {
        for code in [guest::CALL.code(), guest::ENTRY.code()] {
            assert!(code.len() + LAST_ZEROS <= ROOM_FOR_CODE && code.len().is_multiple_of(8), "{} bytes", code.len());
        }
        assert!(guest::call_reported() < guest::CALL.code().len() as u64);
        assert!(guest::entry_waits().end < guest::ENTRY.code().len() as u64);
    }
}
