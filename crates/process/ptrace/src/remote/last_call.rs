//! The last call of a start: drops the page that the code of `guest_code` was written to.
//!
//! The kernel has given the process a copy of that page of the vDSO, 4 KiB for each process. After `MADV_DONTNEED` the
//! next access shows the kernel's own page again. The code itself cannot make this call and continue, so instructions
//! in the dynamic linker or the vDSO make it: a system call followed by a return. They are found by reading.
//!
//! The rule of `guest_code` holds. The thread has its own signal mask, and returns to the entry of the dynamic linker if
//! the helper is killed at any moment. Other registers than the stack pointer have then changed, which the entries of
//! glibc's and musl's dynamic linkers do not read ([`starts_by_stack_alone`]). The call is reported by stops for system
//! calls, which a thread without a tracer does not have.
//!
//! Where there are no such instructions, or the kernel refuses the call (a sealed vDSO, `mseal`), the copy stays.

use super::guest_code::is_vdso;
use super::memory::RemoteMemory;
use super::requests::{self, Resume};
use super::spin_wait::SpinWait;
use super::wait::{LONGEST_CALL, Stop, WaitReport};
use crate::remote::arch::{self, GuestCall, Registers, guest, numbers};
use address_space::{Address, AddressRange, AddressSpace, LoadedObject, PageSize};
use nix::errno::Errno;
use nix::unistd::Pid;
use std::io;
use std::time::Instant;

/// Bytes read at a time in search of the instructions, and the most that are searched of one mapping.
const READ_AT_A_TIME: u64 = 16 << 10;
const SEARCHED: u64 = 4 << 20;

/// How the names of glibc's and musl's dynamic linkers begin; the architecture follows.
const LINKERS: [&str; 2] = ["ld-linux-", "ld-musl-"];

/// True for an executable with a dynamic linker whose first instructions read no register but the stack pointer.
pub fn starts_by_stack_alone(executable: &LoadedObject) -> bool {
    let name = executable.image.interpreter.as_deref().and_then(|path| path.rsplit('/').next());
    name.is_some_and(|name| LINKERS.iter().any(|linker| name.starts_with(linker)))
}

/// A call that drops a page, and returns to the thread's next instruction.
#[derive(Debug)]
pub(super) struct LastCall {
    pid: Pid,
    /// The address of the instructions.
    at: Address,
    call: GuestCall,
    saved: Registers,
}

/// How the call has ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// With this result; `group_stopped` where the process has been stopped by a signal in between. The thread has all
    /// its registers again.
    Returned { result: Result<(), Errno>, group_stopped: bool },
    /// The process has ended, or executes another program.
    Gone { executed: bool },
    /// The thread has not returned from the call within [`LONGEST_CALL`], and may still be in it.
    NoReturn,
}

impl LastCall {
    /// Returns the call for the page of the vDSO with this code, for a thread that continues with the registers `saved`
    /// in `linker`. `None` if the code is not in the vDSO, or if there are no suitable instructions.
    pub fn find(
        pid: Pid,
        memory: &RemoteMemory,
        code: AddressRange,
        saved: &Registers,
        space: &AddressSpace,
        linker: AddressRange,
        base_page: PageSize,
    ) -> Option<Self> {
        let vdso = space.overlapping(code).first().filter(|mapping| is_vdso(mapping))?.range;
        let text = space.overlapping(linker).iter().filter(|mapping| mapping.protection.execute).map(|m| m.range);
        let at = [vdso].into_iter().chain(text).find_map(|text| find_in(memory, text))?;
        let pages = code.widened(base_page);
        let arguments = [pages.start().0, pages.len(), libc::MADV_DONTNEED as u64, 0, 0, 0];
        Some(Self { pid, at, call: GuestCall { number: numbers::SYS_madvise, arguments }, saved: *saved })
    }

    /// The call, and the address behind the instruction that makes it.
    pub fn made(&self) -> (&GuestCall, Address) {
        (&self.call, self.at + arch::SYSCALL_INSTRUCTION.len() as u64)
    }

    /// Sends the thread to the call. It must have its own signal mask.
    ///
    /// # Errors
    /// Where the thread is gone; it has not been sent then.
    fn send(&self, memory: &RemoteMemory) -> io::Result<()> {
        let registers = guest::last_call(&self.saved, self.at, &self.call);
        let below = arch::stack_pointer(&registers);
        if below != arch::stack_pointer(&self.saved) {
            memory.write(below, &arch::instruction_pointer(&self.saved).0.to_ne_bytes())?;
        }
        Ok(requests::set_registers_of_same_program(self.pid, &registers)?)
    }

    /// Makes the thread make the call, and gives it its registers again.
    ///
    /// # Errors
    /// Where the thread is gone.
    pub fn make(&self, memory: &RemoteMemory, spin_wait: SpinWait) -> io::Result<Ended> {
        self.send(memory)?;
        let (mut stops, mut delivered, mut group_stopped) = (0, 0, false);
        let deadline = Instant::now() + LONGEST_CALL;
        // Before the call and after it.
        while stops < 2 {
            requests::resume(self.pid, Resume::ToSystemCall, delivered)?;
            delivered = 0;
            // A thread that does not return is left alone: it continues behind the call with its own state.
            let Some(report) = spin_wait.wait_until(self.pid, deadline)? else {
                return Ok(Ended::NoReturn);
            };
            match report {
                WaitReport::Stopped(Stop::SystemCall) => stops += 1,
                // An exec has removed all handlers: a signal ends the process, stops it, or does nothing.
                WaitReport::Stopped(Stop::Signal(signal)) => delivered = signal,
                WaitReport::Stopped(Stop::Event { event: libc::PTRACE_EVENT_EXEC, .. }) => {
                    return Ok(Ended::Gone { executed: true });
                }
                // A resumed tracee runs in spite of the group stop.
                WaitReport::Stopped(stop @ Stop::Event { .. }) => group_stopped |= stop.is_group_stop(),
                WaitReport::Ended => return Ok(Ended::Gone { executed: false }),
            }
        }
        let result = arch::result(&requests::registers(self.pid)?);
        requests::set_registers_of_same_program(self.pid, &self.saved)?;
        let result = if result == 0 { Ok(()) } else { Err(Errno::from_raw(result.wrapping_neg() as i32)) };
        Ok(Ended::Returned { result, group_stopped })
    }
}

/// Returns the address of a system call followed by a return in a mapping. It is searched from its end on, where the
/// system calls of glibc's dynamic linker are.
fn find_in(memory: &RemoteMemory, text: AddressRange) -> Option<Address> {
    // Instructions that end in the last bytes read are found with the next ones.
    let overlap = (arch::CALL_AND_RETURN.len() - arch::INSTRUCTION_ALIGNMENT) as u64;
    let (mut end, mut left) = (text.end(), text.len().min(SEARCHED));
    loop {
        let mut bytes = vec![0; left.min(READ_AT_A_TIME) as usize];
        let from = Address(end.0 - bytes.len() as u64);
        memory.read(from, &mut bytes).ok()?;
        if let Some(offset) = call_and_return(&bytes) {
            return Some(from + offset as u64);
        }
        left -= bytes.len() as u64;
        if left == 0 {
            return None;
        }
        (left, end) = (left + overlap, from + overlap);
    }
}

/// Returns the offset of a system call followed by a return in code whose first byte begins an instruction.
fn call_and_return(code: &[u8]) -> Option<usize> {
    let wanted = arch::CALL_AND_RETURN;
    let last = *wanted.last()?;
    let words = code.chunks(size_of::<u64>()).enumerate().filter(|(_, bytes)| may_contain(bytes, last));
    let ends = words.flat_map(|(index, bytes)| {
        let equal = bytes.iter().enumerate().filter(move |(_, byte)| **byte == last);
        equal.map(move |(offset, _)| index * size_of::<u64>() + offset + 1)
    });
    let mut starts = ends.filter_map(|end| end.checked_sub(wanted.len()));
    starts.find(|&start| start.is_multiple_of(arch::INSTRUCTION_ALIGNMENT) && code[start..].starts_with(wanted))
}

/// False if none of these bytes is `byte`. Eight at a time: a zero byte borrows from its highest bit.
fn may_contain(bytes: &[u8], byte: u8) -> bool {
    const ONES: u64 = u64::from_ne_bytes([1; 8]);
    let Ok(word) = bytes.try_into().map(u64::from_ne_bytes) else { return true };
    let zero_where_equal = word ^ (ONES * u64::from(byte));
    zero_where_equal.wrapping_sub(ONES) & !zero_where_equal & (ONES << 7) != 0
}

#[cfg(test)]
mod tests;
