//! Safe wrappers of the ptrace requests used here (ptrace(2)). No policy.

#![allow(clippy::unnecessary_cast, reason = "the requests are of other types with other C libraries")]

use crate::remote::arch::{self, Registers};
use crate::remote::seccomp::filter::Instruction;
use address_space::Address;
use nix::errno::Errno;
use nix::libc::{SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGSYS, SIGTRAP};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::mem::MaybeUninit;
use std::ptr;

/// Regset of the general registers (`NT_PRSTATUS`, `linux/elf.h`).
const NT_PRSTATUS: i32 = 1;
/// `PTRACE_GET_SYSCALL_INFO` (Linux 5.3).
const GET_SYSCALL_INFO: u32 = 0x420e;

/// `PTRACE_SECCOMP_GET_FILTER` (Linux 4.4).
const PTRACE_SECCOMP_GET_FILTER: u32 = 0x420c;

/// `PTRACE_GET_RSEQ_CONFIGURATION` (Linux 5.13).
const GET_RSEQ_CONFIGURATION: u32 = 0x420f;

/// `PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG` (Linux 6.4).
const GET_DISPATCH_CONFIG: u32 = 0x4211;

/// All signals by which the kernel reports a fault to the thread that has caused it. If the thread blocks such a signal, the
/// kernel unblocks it and replaces its handler by the default, which ends the program (`force_sig_info_to_task`).
pub const FAULTS: u64 = mask_of(&[SIGSYS, SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGTRAP]);

const fn mask_of(signals: &[i32]) -> u64 {
    let (mut mask, mut at) = (0, 0);
    while at < signals.len() {
        mask |= 1 << (signals[at] - 1);
        at += 1;
    }
    mask
}

/// Position of a stop relative to a system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallStop {
    /// Not at a system call.
    None,
    /// Before a system call.
    Entry,
    /// After a system call.
    Exit,
}

/// How a stopped thread is resumed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resume {
    /// Until the next event or signal.
    Continue,
    /// Until the next event, signal, or entry or exit of a system call.
    ToSystemCall,
    /// It stays in its group stop and reports when that ends.
    Listen,
}

/// # Safety
/// If the request takes an address of this process, a value with the required layout (ptrace(2)) is there, which
/// nothing else uses during the call.
unsafe fn request(request: u32, pid: Pid, address: usize, data: usize) -> Result<i64, Errno> {
    // SAFETY:
    // - the caller's promise.
    let result = unsafe { libc::ptrace(request as _, pid.as_raw(), address, data) };
    Errno::result(result)
}

/// Begins to trace a thread without stopping it.
pub fn seize(pid: Pid, options: i32) -> Result<(), Errno> {
    // SAFETY:
    // - takes integers, and addresses of the other process only.
    unsafe { request(libc::PTRACE_SEIZE as u32, pid, 0, options as usize) }.map(drop)
}

/// Sets the options of a stopped thread, which it passes on to the threads and processes that it makes.
pub fn set_options(pid: Pid, options: i32) -> Result<(), Errno> {
    // SAFETY:
    // - takes integers, and addresses of the other process only.
    unsafe { request(libc::PTRACE_SETOPTIONS as u32, pid, 0, options as usize) }.map(drop)
}

/// Stops a seized thread.
pub fn interrupt(pid: Pid) -> Result<(), Errno> {
    // SAFETY:
    // - takes integers, and addresses of the other process only.
    unsafe { request(libc::PTRACE_INTERRUPT as u32, pid, 0, 0) }.map(drop)
}

/// Resumes a stopped thread with a signal (0: none).
pub fn resume(pid: Pid, how: Resume, signal: i32) -> Result<(), Errno> {
    let number = match how {
        Resume::Continue => libc::PTRACE_CONT as u32,
        Resume::ToSystemCall => libc::PTRACE_SYSCALL as u32,
        Resume::Listen => libc::PTRACE_LISTEN as u32,
    };
    // SAFETY:
    // - takes integers, and addresses of the other process only.
    unsafe { request(number, pid, 0, signal as usize) }.map(drop)
}

/// Resumes a stopped thread with a signal (0: none) and stops tracing it.
pub fn detach(pid: Pid, signal: i32) -> Result<(), Errno> {
    // SAFETY:
    // - takes integers, and addresses of the other process only.
    unsafe { request(libc::PTRACE_DETACH as u32, pid, 0, signal as usize) }.map(drop)
}

/// Returns the value that belongs to the event at which the thread has stopped.
pub fn event_message(pid: Pid) -> Result<u64, Errno> {
    let mut message: libc::c_ulong = 0;
    // SAFETY:
    // - the kernel writes one word, which belongs to this function.
    unsafe { request(libc::PTRACE_GETEVENTMSG as u32, pid, 0, &raw mut message as usize) }?;
    Ok(message)
}

/// Reads the general registers.
///
/// # Errors
/// Those of ptrace; `EIO` for a thread that executes 32-bit code just now, whose registers have another layout (Wine's
/// WoW64 switches threads of a 64-bit process).
pub fn registers(pid: Pid) -> Result<Registers, Errno> {
    let mut registers = MaybeUninit::<Registers>::zeroed();
    let mut vector = libc::iovec { iov_base: registers.as_mut_ptr().cast(), iov_len: size_of::<Registers>() };
    // SAFETY:
    // - one iovec, and the kernel writes no more than the bytes that it names, which belong to this function or its
    //   caller.
    unsafe { request(libc::PTRACE_GETREGSET as u32, pid, NT_PRSTATUS as usize, &raw mut vector as usize) }?;
    // The kernel leaves the number of bytes that it has written.
    if vector.iov_len != size_of::<Registers>() {
        return Err(Errno::EIO);
    }
    // SAFETY:
    // - the structure is plain integers, zeroed before, so that every bit pattern the kernel leaves is valid.
    Ok(unsafe { registers.assume_init() })
}

/// Reads the beginning of a register set.
#[cfg(target_arch = "aarch64")]
pub fn register_set(pid: Pid, kind: i32, into: &mut [u8]) -> Result<(), Errno> {
    let mut vector = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
    // SAFETY:
    // - one iovec, and the kernel writes no more than the bytes that it names, which belong to this function or its
    //   caller.
    unsafe { request(libc::PTRACE_GETREGSET as u32, pid, kind as usize, &raw mut vector as usize) }.map(drop)
}

/// Sets the general registers.
pub fn set_registers(pid: Pid, registers: &Registers) -> Result<(), Errno> {
    set_register_set(pid, NT_PRSTATUS, registers)
}

/// Sets the general registers of a stopped thread, but never those of a program that was executed since: a thread that
/// executes one takes over the number of the first thread of its process, and its tracer.
///
/// # Errors
/// `ESRCH` where the thread has been replaced or killed.
pub fn set_registers_of_same_program(pid: Pid, registers: &Registers) -> Result<(), Errno> {
    if is_at_exec(pid)? {
        return Err(Errno::ESRCH);
    }
    set_registers(pid, registers)?;
    // A program may have been executed since the check. It is still at its exec stop, and has these registers or its
    // own.
    if !is_at_exec(pid)? {
        return Ok(());
    }
    let place = arch::instruction_pointer(registers);
    if self::registers(pid).is_ok_and(|now| arch::instruction_pointer(&now) == place) {
        // It must not run with the registers of another program.
        kill(pid, Signal::SIGKILL)?;
    }
    Err(Errno::ESRCH)
}

/// True if the thread is at the stop after an exec (`PTRACE_EVENT_EXEC`), even before that stop has been waited for.
/// Only resuming the thread ends the stop.
///
/// # Errors
/// `ESRCH` where the thread is not stopped, or not traced by this process.
pub fn is_at_exec(pid: Pid) -> Result<bool, Errno> {
    Ok(signal_information(pid)?.si_code == libc::SIGTRAP | libc::PTRACE_EVENT_EXEC << 8)
}

/// Reads a word of the memory that the stopped thread has now.
pub fn word_of(pid: Pid, at: Address) -> Result<u64, Errno> {
    nix::sys::ptrace::read(pid, at.0 as usize as *mut libc::c_void).map(|word| word as u64)
}

/// Writes to the memory that the stopped thread has now, whatever the pages' protection.
pub fn write_through(pid: Pid, at: Address, bytes: &[u8]) -> Result<(), Errno> {
    const WORD: usize = size_of::<libc::c_long>();
    for (index, part) in bytes.chunks(WORD).enumerate() {
        let at = at + (index * WORD) as u64;
        let mut word = word_of(pid, at)?.to_ne_bytes();
        word[..part.len()].copy_from_slice(part);
        nix::sys::ptrace::write(pid, at.0 as usize as *mut libc::c_void, i64::from_ne_bytes(word))?;
    }
    Ok(())
}

/// Reads a seccomp filter of a stopped thread, counted from 0 for the oldest (Linux 4.4).
///
/// # Errors
/// `ENOENT` after the last; `EACCES` without CAP_SYS_ADMIN, or if this process has a filter; `EIO` or `EINVAL` if the
/// kernel has no CONFIG_CHECKPOINT_RESTORE.
pub fn seccomp_filter(pid: Pid, index: usize) -> Result<Vec<Instruction>, Errno> {
    // SAFETY:
    // - takes integers; without an address nothing is written.
    let length = unsafe { request(PTRACE_SECCOMP_GET_FILTER, pid, index, 0) }? as usize;
    // Filters are never changed or removed (`BPF_MAXINSNS`: 4096 instructions at most).
    let mut filter = vec![Instruction::default(); length];
    // SAFETY:
    // - the kernel writes as many instructions as it has returned, and the vector has that many, with the layout of
    //   `struct sock_filter`.
    unsafe { request(PTRACE_SECCOMP_GET_FILTER, pid, index, filter.as_mut_ptr() as usize) }?;
    Ok(filter)
}

/// Sets a register set; `value` has the layout of that `kind`.
pub fn set_register_set<T>(pid: Pid, kind: i32, value: &T) -> Result<(), Errno> {
    let mut vector = libc::iovec { iov_base: ptr::from_ref(value).cast_mut().cast(), iov_len: size_of::<T>() };
    // SAFETY:
    // - one iovec, and the kernel reads no more than the bytes that it names, which outlive the call.
    unsafe { request(libc::PTRACE_SETREGSET as u32, pid, kind as usize, &raw mut vector as usize) }.map(drop)
}

/// Reads the set of signals that a thread blocks.
pub fn signal_mask(pid: Pid) -> Result<u64, Errno> {
    let mut mask: u64 = 0;
    // SAFETY:
    // - the kernel writes one word, which belongs to this function.
    unsafe { request(libc::PTRACE_GETSIGMASK as u32, pid, size_of::<u64>(), &raw mut mask as usize) }?;
    Ok(mask)
}

/// Sets the signals that a thread blocks; the kernel ignores SIGKILL and SIGSTOP in it.
pub fn set_signal_mask(pid: Pid, mask: u64) -> Result<(), Errno> {
    // SAFETY:
    // - the kernel reads one word, which outlives the call.
    unsafe { request(libc::PTRACE_SETSIGMASK as u32, pid, size_of::<u64>(), &raw const mask as usize) }.map(drop)
}

/// Returns the position of the stop relative to a system call (Linux 5.3).
pub fn call_stop(pid: Pid) -> Result<CallStop, Errno> {
    // struct ptrace_syscall_info begins with the kind of stop and is at most 88 bytes long.
    let mut information = [0u8; 128];
    // SAFETY:
    // - the kernel writes no more bytes than this length, and they belong to this function.
    unsafe { request(GET_SYSCALL_INFO, pid, information.len(), information.as_mut_ptr() as usize) }?;
    Ok(match information[0] {
        1 => CallStop::Entry,
        2 => CallStop::Exit,
        _ => CallStop::None,
    })
}

/// Returns the address of a thread's area for restartable sequences (rseq(2)); 0 where it has none.
pub fn rseq_area(pid: Pid) -> Result<u64, Errno> {
    // struct ptrace_rseq_configuration: a pointer, then three words of 32 bits and padding.
    let mut configuration = [0u64; 3];
    // SAFETY:
    // - the kernel writes no more bytes than this length, and they belong to this function.
    unsafe { request(GET_RSEQ_CONFIGURATION, pid, size_of_val(&configuration), configuration.as_mut_ptr() as usize) }?;
    Ok(configuration[0])
}

/// True if a thread's system calls, or those outside of one range of code, raise SIGSYS (Syscall User Dispatch, Linux 5.11).
/// Kernels before 6.4 do not report it.
pub fn dispatches_calls(pid: Pid) -> bool {
    // struct ptrace_sud_config: the mode, the selector's address, and the range, a word each.
    let mut configuration = [0u64; 4];
    // SAFETY:
    // - the kernel writes no more bytes than this length, and they belong to this function.
    let asked =
        unsafe { request(GET_DISPATCH_CONFIG, pid, size_of_val(&configuration), configuration.as_mut_ptr() as usize) };
    asked.is_ok() && configuration[0] != 0
}

/// True if a thread has stopped for a signal of [`FAULTS`] that a process has sent, and no fault.
pub fn is_sent_fault(pid: Pid, signal: i32) -> bool {
    let is_fault = (1..=64).contains(&signal) && FAULTS >> (signal - 1) & 1 != 0;
    is_fault && signal_information(pid).is_ok_and(|information| information.si_code <= 0)
}

/// Returns the signal for which a thread has stopped, with its payload.
pub fn signal_information(pid: Pid) -> Result<libc::siginfo_t, Errno> {
    nix::sys::ptrace::getsiginfo(pid)
}

/// Returns the sender of a signal of kill, tgkill or sigqueue: its PID in the receiver's PID namespace.
pub fn sender(information: &libc::siginfo_t) -> i32 {
    // SAFETY:
    // - the structure is plain integers, all filled by the kernel, and every bit pattern is a number.
    unsafe { information.si_pid() }
}

/// Changes the signal for which a thread has stopped.
pub fn set_signal_information(pid: Pid, information: &libc::siginfo_t) -> Result<(), Errno> {
    // SAFETY:
    // - the kernel reads one `siginfo_t`, which outlives the call.
    unsafe { request(libc::PTRACE_SETSIGINFO as u32, pid, 0, ptr::from_ref(information) as usize) }.map(drop)
}

/// Writes one word of the process's memory, whatever its protection.
pub fn poke(pid: Pid, address: u64, value: u64) -> Result<(), Errno> {
    // SAFETY:
    // - takes integers, and addresses of the other process only.
    unsafe { request(libc::PTRACE_POKEDATA as u32, pid, address as usize, value as usize) }.map(drop)
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::process::{Command, Stdio};
    use std::time::{Duration, Instant};

    /// A child of this 64-bit process that executes 32-bit code and is stopped there, as a thread under Wine may be.
    #[cfg(target_arch = "x86_64")]
    pub struct InOtherCode {
        pub pid: Pid,
    }

    #[cfg(target_arch = "x86_64")]
    impl InOtherCode {
        /// `None` where the kernel has no CONFIG_IA32_EMULATION, by which it shows other registers.
        pub fn start() -> Option<Self> {
            use nix::unistd::{ForkResult, fork};
            std::fs::metadata("/proc/sys/abi/vsyscall32").ok()?;
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_32BIT;
            let protection = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
            // SAFETY:
            // - a new mapping at an address that the kernel chooses.
            let page = unsafe { libc::mmap(ptr::null_mut(), 4096, protection, flags, -1, 0) };
            assert_ne!(page, libc::MAP_FAILED);
            // SAFETY:
            // - the page is writable and nothing else uses it; the child only executes the jump to itself, at an address
            //   below 4 GiB, by the segment that Linux has for 32-bit code (`__USER32_CS`).
            let child = unsafe {
                page.cast::<[u8; 2]>().write([0xeb, 0xfe]);
                match fork().unwrap() {
                    ForkResult::Child => {
                        std::arch::asm!("push 0x23", "push {page}", "retfq", page = in(reg) page, options(noreturn))
                    }
                    ForkResult::Parent { child } => child,
                }
            };
            let child = Self { pid: child };
            seize(child.pid, 0).unwrap();
            let deadline = Instant::now() + Duration::from_secs(30);
            let found = loop {
                interrupt(child.pid).unwrap();
                crate::remote::wait::wait_for(child.pid).unwrap();
                match registers(child.pid) {
                    // Not there yet.
                    Ok(_) if Instant::now() < deadline => resume(child.pid, Resume::Continue, 0).unwrap(),
                    found => break found.map(drop),
                }
            };
            assert_eq!(found, Err(Errno::EIO));
            Some(child)
        }
    }

    #[cfg(target_arch = "x86_64")]
    impl Drop for InOtherCode {
        fn drop(&mut self) {
            let _ = kill(self.pid, Signal::SIGKILL);
            let _ = crate::remote::wait::wait_for(self.pid);
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn registers_of_a_thread_in_32_bit_code_are_not_taken_for_others() {
        // It waits for `EIO`.
        drop(InOtherCode::start());
    }

    #[test]
    fn a_program_that_was_executed_meanwhile_keeps_its_registers() {
        let mut shell = Command::new("sh");
        shell.args(["-c", "echo ready; read line; exec sleep 60"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut shell = shell.spawn().unwrap();
        // `spawn` returns before the end of the shell's own exec, which would be reported too.
        shell.stdout.take().unwrap().read_exact(&mut [0; 6]).unwrap();
        let pid = Pid::from_raw(shell.id() as i32);
        seize(pid, libc::PTRACE_O_TRACEEXEC).unwrap();
        interrupt(pid).unwrap();
        crate::remote::wait::wait_for(pid).unwrap();
        let of_shell = registers(pid).unwrap();
        assert_eq!((is_at_exec(pid), set_registers_of_same_program(pid, &of_shell)), (Ok(false), Ok(())));
        resume(pid, Resume::Continue, 0).unwrap();
        shell.stdin.take().unwrap().write_all(b"line\n").unwrap();
        // The stop is not waited for.
        let deadline = Instant::now() + Duration::from_secs(30);
        while is_at_exec(pid) != Ok(true) {
            assert!(Instant::now() < deadline, "the shell has executed nothing");
            std::thread::sleep(Duration::from_millis(1));
        }
        let place = |registers: Registers| (arch::instruction_pointer(&registers), arch::stack_pointer(&registers));
        let before = place(registers(pid).unwrap());
        let set = set_registers_of_same_program(pid, &of_shell);
        let after = registers(pid).map(place);
        shell.kill().unwrap();
        shell.wait().unwrap();
        assert_eq!((set, after), (Err(Errno::ESRCH), Ok(before)));
    }
}
