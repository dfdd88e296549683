//! x86-64.

use super::Registers;
use crate::requests;
use address_space::Address;
use nix::errno::Errno;
use nix::unistd::Pid;
use std::mem::offset_of;

/// `syscall`.
pub const SYSCALL_INSTRUCTION: &[u8] = &[0x0f, 0x05];
/// Instructions may begin at every byte.
pub const INSTRUCTION_ALIGNMENT: usize = 1;
/// `int3`.
pub const BREAKPOINT_INSTRUCTION: &[u8] = &[0xcc];
/// The trap is reported behind the instruction.
pub const BREAKPOINT_ADVANCES: u64 = 1;

/// DR7: debug register 0 enabled for this thread, execution, length one (Intel SDM vol. 3, 19.2.4).
const ENABLE_EXECUTION_BREAKPOINT_0: u64 = 1;

/// Sets the registers for a system call at an instruction. (System V ABI, appendix A.2.1.)
pub fn set_call(registers: &mut Registers, instruction: Address, number: i64, arguments: [u64; 6]) {
    registers.rip = instruction.0;
    registers.rax = number as u64;
    // Not in a system call: the kernel must not restart one when it returns.
    registers.orig_rax = u64::MAX;
    [registers.rdi, registers.rsi, registers.rdx, registers.r10, registers.r8, registers.r9] = arguments;
}

/// What the system call returned.
pub fn result(registers: &Registers) -> i64 {
    registers.rax as i64
}

/// Where the thread goes on.
pub fn instruction_pointer(registers: &Registers) -> Address {
    Address(registers.rip)
}

/// Lets the thread go on elsewhere.
pub fn set_instruction_pointer(registers: &mut Registers, to: Address) {
    registers.rip = to.0;
}

/// The stack pointer.
pub fn stack_pointer(registers: &Registers) -> Address {
    Address(registers.rsp)
}

/// Makes the thread trap before it executes the instruction at `address`, without a change to memory.
pub fn set_hardware_breakpoint(pid: Pid, address: Address) -> Result<(), Errno> {
    requests::poke_user(pid, offset_of!(libc::user, u_debugreg), address.0)?;
    requests::poke_user(pid, offset_of!(libc::user, u_debugreg) + 7 * 8, ENABLE_EXECUTION_BREAKPOINT_0)
}

/// Takes the breakpoint back.
pub fn clear_hardware_breakpoint(pid: Pid) -> Result<(), Errno> {
    requests::poke_user(pid, offset_of!(libc::user, u_debugreg) + 7 * 8, 0)?;
    requests::poke_user(pid, offset_of!(libc::user, u_debugreg), 0)
}

/// The system calls whose numbers differ between architectures.
pub mod numbers {
    pub use libc::{
        SYS_brk, SYS_exit_group, SYS_madvise, SYS_mmap, SYS_mprotect, SYS_mremap, SYS_munmap, SYS_prctl,
        SYS_process_vm_readv, SYS_rt_sigaction,
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

/// Waits for a child and goes on, see `farewell`.
pub const WAIT_CODE: crate::farewell::CodeBetween =
    crate::farewell::CodeBetween { start: pagelift_wait_start, end: pagelift_wait_end };

/// What the code above changes and puts back, in the order of its words.
pub fn registers_used_by_wait(r: &Registers) -> Vec<u64> {
    vec![r.rax, r.rdi, r.rsi, r.rdx, r.r10, r.rcx, r.r11]
}
