//! x86-64.

use super::{Interrupted, MARK, Registers, layout};
use crate::remote::guest_code::CodeBetween;
use crate::remote::requests;
use address_space::Address;
use linux::interrupted::{ends_with_any_handler, ends_without_sa_restart};
use nix::errno::Errno;
use nix::unistd::Pid;

/// `syscall`.
pub const SYSCALL_INSTRUCTION: &[u8] = &[0x0f, 0x05];
/// `syscall` and `ret`.
pub const CALL_AND_RETURN: &[u8] = &[0x0f, 0x05, 0xc3];
/// Instructions may begin at any byte.
pub const INSTRUCTION_ALIGNMENT: usize = 1;
/// `AUDIT_ARCH_X86_64` (`linux/audit.h`).
pub const AUDIT_ARCHITECTURE: u32 = 0xc000_003e;
/// Returns the result of the system call that the thread has just left.
pub fn result(registers: &Registers) -> i64 {
    registers.rax as i64
}

/// Returns the address at which the thread continues.
pub fn instruction_pointer(registers: &Registers) -> Address {
    Address(registers.rip)
}

/// Sets the address at which the thread continues.
pub fn set_instruction_pointer(registers: &mut Registers, to: Address) {
    registers.rip = to.0;
}

/// Returns the stack pointer.
pub fn stack_pointer(registers: &Registers) -> Address {
    Address(registers.rsp)
}

/// Sets the stack pointer.
pub fn set_stack_pointer(registers: &mut Registers, to: Address) {
    registers.rsp = to.0;
}

/// Replaces the call that the thread, stopped at its entry, is about to make; -1: by none. After it the thread
/// continues with `registers`, except for the call's result.
pub fn replace_call(thread: Pid, registers: &Registers, number: i64) -> Result<(), Errno> {
    requests::set_registers_of_same_program(thread, &Registers { orig_rax: number as u64, ..*registers })
}

/// The system calls whose numbers differ between architectures.
pub mod numbers {
    pub use libc::{
        SYS_brk, SYS_close, SYS_exit_group, SYS_madvise, SYS_mbind, SYS_mmap, SYS_mprotect, SYS_mremap, SYS_munmap,
        SYS_openat, SYS_prctl, SYS_pread64, SYS_process_vm_readv,
    };
}

std::arch::global_asm!(
    ".pushsection .text.pagelift_wait, \"ax\", @progbits",
    ".balign 8",
    ".globl pagelift_wait_start",
    ".hidden pagelift_wait_start",
    ".globl pagelift_wait_end",
    ".hidden pagelift_wait_end",
    "pagelift_wait_start:",
    "2: mov eax, 61", // wait4
    "mov edi, dword ptr [rip + 3f]",
    "xor esi, esi",
    "mov edx, 0x40000000", // __WALL
    "xor r10d, r10d",
    "syscall",
    "cmp rax, -4", // EINTR
    "je 2b",
    "mov rax, qword ptr [rip + 3f + 8]",
    "mov rdi, qword ptr [rip + 3f + 16]",
    "mov rsi, qword ptr [rip + 3f + 24]",
    "mov rdx, qword ptr [rip + 3f + 32]",
    "mov r10, qword ptr [rip + 3f + 40]",
    "mov rcx, qword ptr [rip + 3f + 48]",
    "mov r11, qword ptr [rip + 3f + 56]",
    "jmp qword ptr [rip + 3f + 64]",
    ".balign 8",
    "3:",
    "pagelift_wait_end:",
    "ud2",
    ".popsection",
);

unsafe extern "C" {
    fn pagelift_wait_start();
    fn pagelift_wait_end();
}

/// Waits for a child and continues, see `start::reap_stub`.
pub const WAIT_CODE: CodeBetween = CodeBetween { start: pagelift_wait_start, end: pagelift_wait_end };

/// Returns the registers that the code above changes and restores, in the order of its words.
pub fn registers_used_by_wait(r: &Registers) -> Vec<u64> {
    vec![r.rax, r.rdi, r.rsi, r.rdx, r.r10, r.rcx, r.r11]
}

std::arch::global_asm!(
    // No instruction here changes a flag: the thread's own flags stay in place, and nothing is written to its stack.
    ".pushsection .text.pagelift_loop, \"ax\", @progbits",
    ".balign 8",
    ".globl pagelift_loop_start",
    ".hidden pagelift_loop_start",
    ".globl pagelift_loop_end",
    ".hidden pagelift_loop_end",
    "pagelift_loop_start:",
    "mov qword ptr [rbx + {inside}], 1",
    "2: mov rcx, qword ptr [rbx + {number}]",
    "lea rcx, [rcx + 1]",
    "jrcxz 3f",
    "lea rax, [rcx - 1]",
    "mov rdi, qword ptr [rbx + {arguments}]",
    "mov rsi, qword ptr [rbx + {arguments} + 8]",
    "mov rdx, qword ptr [rbx + {arguments} + 16]",
    "mov r10, qword ptr [rbx + {arguments} + 24]",
    "mov r8, qword ptr [rbx + {arguments} + 32]",
    "mov r9, qword ptr [rbx + {arguments} + 40]",
    "mov qword ptr [rbx + {number}], -1",
    "syscall",
    "jmp 2b",
    "3: mov eax, 14", // rt_sigprocmask(SIG_SETMASK, &old, NULL, 8)
    "mov edi, 2",
    "lea rsi, [rbx + {old_mask}]",
    "mov edx, 0",
    "mov r10d, 8",
    "syscall",
    "mov rax, qword ptr [rbx + {registers}]",
    "mov rcx, qword ptr [rbx + {registers} + 8]",
    "mov rdx, qword ptr [rbx + {registers} + 16]",
    "mov rsi, qword ptr [rbx + {registers} + 24]",
    "mov rdi, qword ptr [rbx + {registers} + 32]",
    "mov r8, qword ptr [rbx + {registers} + 40]",
    "mov r9, qword ptr [rbx + {registers} + 48]",
    "mov r10, qword ptr [rbx + {registers} + 56]",
    "mov r11, qword ptr [rbx + {registers} + 64]",
    "mov qword ptr [rbx + {inside}], 0",
    "mov rbx, qword ptr [rbx + {registers} + 72]",
    "jmp qword ptr [rip + 4f]",
    ".balign 8",
    "4:",
    "pagelift_loop_end:",
    "ud2",
    ".popsection",
    inside = const layout::INSIDE,
    number = const layout::NUMBER,
    arguments = const layout::ARGUMENTS,
    old_mask = const layout::OLD_MASK,
    registers = const layout::RETURN,
);

unsafe extern "C" {
    fn pagelift_loop_start();
    fn pagelift_loop_end();
}

/// Makes the system calls of a call page until there is none, and continues at the address in the word after the code.
pub const LOOP_CODE: CodeBetween = CodeBetween { start: pagelift_loop_start, end: pagelift_loop_end };

/// Returns the registers that the code above changes, as the words of a call page from `RETURN` on.
pub fn return_state(_: Pid, r: &Registers, _: u64, _at_call: bool) -> Result<Vec<u8>, Errno> {
    Ok(changed_registers(r).into_iter().chain([r.rbx]).flat_map(u64::to_ne_bytes).collect())
}

/// Length in bytes of `return_state`'s result.
pub const RETURN_BYTES: usize = 10 * 8;

/// The registers that a system call and its arguments take, in the order of the code.
fn changed_registers(r: &Registers) -> [u64; 9] {
    [r.rax, r.rcx, r.rdx, r.rsi, r.rdi, r.r8, r.r9, r.r10, r.r11]
}

std::arch::global_asm!(
    ".pushsection .text.pagelift_once, \"ax\", @progbits",
    ".balign 8",
    ".globl pagelift_once_start",
    ".hidden pagelift_once_start",
    ".globl pagelift_once_end",
    ".hidden pagelift_once_end",
    "pagelift_once_start:",
    "syscall", // mmap
    // The top byte of an address is 0; the top byte of an error is not.
    "mov rcx, rax",
    "bswap rcx",
    "movzx ecx, cl",
    "jrcxz 2f",
    "jmp 3f",
    "2: movabs rcx, {mark_0}",
    "mov qword ptr [rax + {mark}], rcx",
    "movabs rcx, {mark_1}",
    "mov qword ptr [rax + {mark} + 8], rcx",
    "mov qword ptr [rax + {own_address}], rax",
    "jmp 3f",
    "syscall", // munmap
    "3: mov eax, 14", // rt_sigprocmask(SIG_SETMASK, &old, NULL, 8)
    "mov edi, 2",
    "lea rsi, [rip + 4f + 8]",
    "mov edx, 0",
    "mov r10d, 8",
    "syscall",
    "mov rax, qword ptr [rip + 4f + 16]",
    "mov rcx, qword ptr [rip + 4f + 24]",
    "mov rdx, qword ptr [rip + 4f + 32]",
    "mov rsi, qword ptr [rip + 4f + 40]",
    "mov rdi, qword ptr [rip + 4f + 48]",
    "mov r8, qword ptr [rip + 4f + 56]",
    "mov r9, qword ptr [rip + 4f + 64]",
    "mov r10, qword ptr [rip + 4f + 72]",
    "mov r11, qword ptr [rip + 4f + 80]",
    "jmp qword ptr [rip + 4f]",
    ".balign 8",
    "4:",
    "pagelift_once_end:",
    "ud2",
    ".popsection",
    mark = const layout::MARK,
    mark_0 = const MARK[0],
    mark_1 = const MARK[1],
    own_address = const layout::OWN_ADDRESS,
);

unsafe extern "C" {
    fn pagelift_once_start();
    fn pagelift_once_end();
}

/// Makes one call that needs no memory, and continues with the registers and the signal mask in the words after it: an
/// mmap, whose result it marks as a call page, or, at its second system call instruction, a munmap.
pub const ONCE_CODE: CodeBetween = CodeBetween { start: pagelift_once_start, end: pagelift_once_end };

/// Number of words after that code.
pub const ONCE_WORDS: usize = 11;
/// Index among them of the signal mask.
pub const ONCE_MASK: usize = 1;

/// Returns the words with which the thread continues after the code above, the first of which is at `at`.
///
/// # Errors
/// None on x86-64.
pub fn once_words(r: &Registers, mask: u64, _at: Address) -> Result<Vec<u64>, Errno> {
    Ok([r.rip, mask].into_iter().chain(changed_registers(r)).collect())
}

/// Maximum distance in bytes between the code and the place to which a thread returns.
pub const REACH: Option<u64> = None;

/// Returns the registers that take a thread out of a call in the code of a call page: none waits there on x86-64.
pub fn way_out(_: &Registers, _page: Address, _state: &[u8], _at_call: bool) -> Option<Registers> {
    None
}

/// Sends the thread into the code with its call page.
pub fn enter_loop(r: &mut Registers, code: Address, page: Address) {
    r.rip = code.0;
    r.rbx = page.0;
    // Not in a system call: the kernel must not restart one when the thread continues.
    r.orig_rax = u64::MAX;
}

/// Sends the thread to a system call instruction with a call.
pub fn enter_once(r: &mut Registers, instruction: Address, number: i64, arguments: [u64; 6]) {
    r.rip = instruction.0;
    r.rax = number as u64;
    [r.rdi, r.rsi, r.rdx, r.r10, r.r8, r.r9] = arguments;
    r.orig_rax = u64::MAX;
}

/// Why a thread may be unable to make calls.
pub const UNFIT: &str = "is in a restartable sequence or in 32-bit code";

/// True if the code restores all registers of the thread.
pub fn can_be_put_back(_: Pid, _at_call: bool) -> bool {
    true
}

/// True if a stop shows in which call the thread was, and its arguments.
pub const SHOWS_CALLS: bool = true;

/// Returns the state of the system call in which the thread was stopped.
pub fn interrupted(r: &Registers) -> Interrupted {
    match r.orig_rax as i64 {
        -1 => Interrupted::No,
        _ if r.rax as i64 == -i64::from(libc::EINTR) => Interrupted::WithError,
        _ => Interrupted::Yes,
    }
}

/// Returns number and arguments of the system call that the thread was in.
pub fn call_registers(r: &Registers) -> (i64, [u64; 6]) {
    (r.orig_rax as i64, [r.rdi, r.rsi, r.rdx, r.r10, r.r8, r.r9])
}

/// Results inside the kernel that ask for a restart of the call (`linux/errno.h`).
const ERESTARTSYS: i64 = 512;
const ERESTARTNOINTR: i64 = 513;
const ERESTARTNOHAND: i64 = 514;
const ERESTART_RESTARTBLOCK: i64 = 516;

/// Rewinds the registers to restart an interrupted call, as the kernel does on the return to user space.
pub fn rewind_call(r: &mut Registers) {
    let number = match -(r.rax as i64) {
        _ if r.orig_rax as i64 == -1 => return,
        ERESTARTSYS | ERESTARTNOINTR | ERESTARTNOHAND => r.orig_rax,
        // The call continues with the remaining time.
        ERESTART_RESTARTBLOCK => libc::SYS_restart_syscall as u64,
        _ => {
            r.orig_rax = u64::MAX;
            return;
        }
    };
    r.rax = number;
    r.rip -= SYSCALL_INSTRUCTION.len() as u64;
    r.orig_rax = u64::MAX;
}

/// Undoes such a rewinding by the kernel: the thread is in its interrupted call again, and a signal that is handled from
/// now on can end it. Returns false, and changes nothing, for registers that the kernel has not rewound: those that it
/// rewinds keep the call's number in `orig_rax`, until the thread makes the call or is interrupted at it.
pub fn undo_rewind(r: &mut Registers) -> bool {
    let (number, arguments) = call_registers(r);
    let error = match r.rax as i64 {
        _ if number == -1 => return false,
        libc::SYS_restart_syscall => ERESTART_RESTARTBLOCK,
        next if next != number => return false,
        _ if ends_with_any_handler(number) => ERESTARTNOHAND,
        _ if ends_without_sa_restart(number, &arguments) => ERESTARTSYS,
        _ => return false,
    };
    r.rax = (-error) as u64;
    r.rip += SYSCALL_INSTRUCTION.len() as u64;
    true
}

/// Returns `None`: a stop shows the argument.
pub fn kept_first_argument(_process: Pid, _thread: Pid, _number: i64) -> Result<Option<u64>, Errno> {
    Ok(None)
}

/// Does nothing: registers that Pagelift has set belong to no call, as their `orig_rax` shows.
pub fn forget_call(_: Pid) -> Result<(), Errno> {
    Ok(())
}

/// Makes the kernel restart a call that has failed with EINTR, unless a signal is handled first: then it fails with
/// EINTR after all. The kernel checks this result after the stop, when all signals are delivered
/// (`arch_do_signal_or_restart`).
pub fn make_again(r: &mut Registers, _first_argument: u64) {
    r.rax = (-ERESTARTNOHAND) as u64;
}

/// True for registers that `make_again` has changed, where the call's next instruction is at `behind`.
pub fn is_made_again(r: &Registers, behind: Address) -> bool {
    r.rax as i64 == -ERESTARTNOHAND && r.orig_rax as i64 != -1 && r.rip == behind.0
}

/// Sets an argument of a call that is made again.
pub fn set_argument(r: &mut Registers, index: usize, value: u64) {
    *[&mut r.rdi, &mut r.rsi, &mut r.rdx, &mut r.r10, &mut r.r8, &mut r.r9][index] = value;
}

/// Does nothing: the kernel has yet to decide whether the call is restarted.
pub fn give_error(_: &mut Registers) {}

#[cfg(test)]
mod tests {
    use super::*;

    fn interrupted_call(number: i64, error: i64) -> Registers {
        // SAFETY:
        // - the structure consists of integers.
        let mut r: Registers = unsafe { std::mem::zeroed() };
        (r.orig_rax, r.rax, r.rip) = (number as u64, (-error) as u64, 0x1002);
        r
    }

    #[test]
    fn what_is_rewound_is_put_back_into_its_call() {
        let calls = [
            (libc::SYS_pause, ERESTARTNOHAND),
            (libc::SYS_epoll_wait, ERESTARTNOHAND),
            (libc::SYS_read, ERESTARTSYS),
            (libc::SYS_nanosleep, ERESTART_RESTARTBLOCK),
            (libc::SYS_restart_syscall, ERESTART_RESTARTBLOCK),
        ];
        for (number, error) in calls {
            let before = interrupted_call(number, error);
            let mut now = before;
            rewind_call(&mut now);
            // The kernel does not change the number.
            now.orig_rax = before.orig_rax;
            assert_eq!(now.rip, 0x1000, "{number}");
            assert!(undo_rewind(&mut now), "{number}");
            assert_eq!((now.rip, now.rax as i64), (before.rip, -error), "{number}");
        }
    }

    #[test]
    fn a_thread_that_is_elsewhere_stays_there() {
        let mut in_call = interrupted_call(libc::SYS_pause, ERESTARTNOHAND);
        let mut left = interrupted_call(libc::SYS_read, -1);
        let mut in_no_call = interrupted_call(-1, -libc::SYS_pause);
        // Calls that the kernel restarts even after a handler.
        let mut always = interrupted_call(libc::SYS_clone, -libc::SYS_clone);
        for r in [&mut in_call, &mut left, &mut in_no_call, &mut always] {
            assert!(!undo_rewind(r));
            assert_eq!(r.rip, 0x1002);
        }
    }
}
