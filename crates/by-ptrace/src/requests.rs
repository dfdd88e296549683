//! The ptrace requests used here (ptrace(2)), each in a safe wrapper. No policy.

#![allow(clippy::unnecessary_cast, reason = "the requests are of other types with other C libraries")]

use crate::arch::Registers;
use nix::errno::Errno;
use nix::unistd::Pid;
use std::mem::MaybeUninit;
use std::ptr;

/// Regset of the general registers (`NT_PRSTATUS`, `linux/elf.h`).
const NT_PRSTATUS: i32 = 1;
/// `PTRACE_GET_SYSCALL_INFO` (Linux 5.3).
const GET_SYSCALL_INFO: u32 = 0x420e;

/// `PTRACE_GET_RSEQ_CONFIGURATION` (Linux 5.13).
const GET_RSEQ_CONFIGURATION: u32 = 0x420f;

/// Where a stop stands in a system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallStop {
    /// Not at a system call.
    None,
    /// Before one.
    Entry,
    /// Behind one.
    Exit,
}

/// How a stopped thread goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resume {
    /// Until the next event or signal.
    Continue,
    /// Until the next system call's entry or exit, too.
    ToSystemCall,
    /// Stays stopped by its group stop, but reports when that ends.
    Listen,
}

fn request(request: u32, pid: Pid, address: usize, data: usize) -> Result<i64, Errno> {
    // SAFETY:
    // - every caller in this file passes as `address` and `data` integers, or pointers to values of its own that have
    //   the layout the request wants and outlive the call.
    let result = unsafe { libc::ptrace(request as _, pid.as_raw(), address, data) };
    Errno::result(result)
}

/// Attaches without stopping.
pub fn seize(pid: Pid, options: i32) -> Result<(), Errno> {
    request(libc::PTRACE_SEIZE as u32, pid, 0, options as usize).map(drop)
}

/// Changes the options of a stopped thread.
pub fn set_options(pid: Pid, options: i32) -> Result<(), Errno> {
    request(libc::PTRACE_SETOPTIONS as u32, pid, 0, options as usize).map(drop)
}

/// Stops a seized thread.
pub fn interrupt(pid: Pid) -> Result<(), Errno> {
    request(libc::PTRACE_INTERRUPT as u32, pid, 0, 0).map(drop)
}

/// Lets a stopped thread go on, delivering a signal (0: none).
pub fn resume(pid: Pid, how: Resume, signal: i32) -> Result<(), Errno> {
    let number = match how {
        Resume::Continue => libc::PTRACE_CONT as u32,
        Resume::ToSystemCall => libc::PTRACE_SYSCALL as u32,
        Resume::Listen => libc::PTRACE_LISTEN as u32,
    };
    request(number, pid, 0, signal as usize).map(drop)
}

/// Lets a stopped thread go for good, delivering a signal (0: none).
pub fn detach(pid: Pid, signal: i32) -> Result<(), Errno> {
    request(libc::PTRACE_DETACH as u32, pid, 0, signal as usize).map(drop)
}

/// The value that belongs to the event the thread has stopped at.
pub fn event_message(pid: Pid) -> Result<u64, Errno> {
    let mut message: libc::c_ulong = 0;
    request(libc::PTRACE_GETEVENTMSG as u32, pid, 0, &raw mut message as usize)?;
    Ok(message)
}

/// The general registers.
pub fn registers(pid: Pid) -> Result<Registers, Errno> {
    let mut registers = MaybeUninit::<Registers>::zeroed();
    let mut vector = libc::iovec { iov_base: registers.as_mut_ptr().cast(), iov_len: size_of::<Registers>() };
    request(libc::PTRACE_GETREGSET as u32, pid, NT_PRSTATUS as usize, &raw mut vector as usize)?;
    // SAFETY:
    // - the structure is plain integers, zeroed before, so that every bit pattern the kernel leaves is valid.
    Ok(unsafe { registers.assume_init() })
}

/// Reads the beginning of a register set.
#[cfg(target_arch = "aarch64")]
pub fn register_set(pid: Pid, kind: i32, into: &mut [u8]) -> Result<(), Errno> {
    let mut vector = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
    request(libc::PTRACE_GETREGSET as u32, pid, kind as usize, &raw mut vector as usize).map(drop)
}

/// Sets the general registers.
pub fn set_registers(pid: Pid, registers: &Registers) -> Result<(), Errno> {
    set_register_set(pid, NT_PRSTATUS, registers)
}

/// Sets a register set of the kind that `value` has the layout of.
pub fn set_register_set<T>(pid: Pid, kind: i32, value: &T) -> Result<(), Errno> {
    let mut vector = libc::iovec { iov_base: ptr::from_ref(value).cast_mut().cast(), iov_len: size_of::<T>() };
    request(libc::PTRACE_SETREGSET as u32, pid, kind as usize, &raw mut vector as usize).map(drop)
}

/// The signals that a thread blocks.
pub fn signal_mask(pid: Pid) -> Result<u64, Errno> {
    let mut mask: u64 = 0;
    request(libc::PTRACE_GETSIGMASK as u32, pid, size_of::<u64>(), &raw mut mask as usize)?;
    Ok(mask)
}

/// Sets the signals that a thread blocks; the kernel leaves SIGKILL and SIGSTOP out.
pub fn set_signal_mask(pid: Pid, mask: u64) -> Result<(), Errno> {
    request(libc::PTRACE_SETSIGMASK as u32, pid, size_of::<u64>(), &raw const mask as usize).map(drop)
}

/// Where the stop stands in a system call.
pub fn call_stop(pid: Pid) -> Result<CallStop, Errno> {
    // struct ptrace_syscall_info begins with the kind of stop and is at most 88 bytes long.
    let mut information = [0u8; 128];
    request(GET_SYSCALL_INFO, pid, information.len(), information.as_mut_ptr() as usize)?;
    Ok(match information[0] {
        1 => CallStop::Entry,
        2 => CallStop::Exit,
        _ => CallStop::None,
    })
}

/// Where the area of a thread's restartable sequences lies (rseq(2)); 0 where it has none.
pub fn rseq_area(pid: Pid) -> Result<u64, Errno> {
    // struct ptrace_rseq_configuration: a pointer, then three words of 32 bits and padding.
    let mut configuration = [0u64; 3];
    request(GET_RSEQ_CONFIGURATION, pid, size_of_val(&configuration), configuration.as_mut_ptr() as usize)?;
    Ok(configuration[0])
}

/// The signal that a thread has stopped for, with its payload.
pub fn signal_information(pid: Pid) -> Result<libc::siginfo_t, Errno> {
    nix::sys::ptrace::getsiginfo(pid)
}

/// The process that a signal sent by kill, tgkill or sigqueue says it comes from; its number in the receiver's PID namespace.
pub fn sender(information: &libc::siginfo_t) -> i32 {
    // SAFETY:
    // - the structure is plain integers, all of them filled by the kernel, and every bit pattern is a number.
    unsafe { information.si_pid() }
}

/// Changes the signal that a thread has stopped for.
pub fn set_signal_information(pid: Pid, information: &libc::siginfo_t) -> Result<(), Errno> {
    request(libc::PTRACE_SETSIGINFO as u32, pid, 0, ptr::from_ref(information) as usize).map(drop)
}

/// Writes one word of the process's memory, whatever its protection.
pub fn poke(pid: Pid, address: u64, value: u64) -> Result<(), Errno> {
    request(libc::PTRACE_POKEDATA as u32, pid, address as usize, value as usize).map(drop)
}
