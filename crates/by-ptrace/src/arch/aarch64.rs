//! AArch64.

use super::Registers;
use crate::requests;
use address_space::Address;
use nix::errno::Errno;
use nix::unistd::Pid;

/// `svc #0`.
pub const SYSCALL_INSTRUCTION: &[u8] = &[0x01, 0x00, 0x00, 0xd4];
/// Instructions are four bytes, aligned.
pub const INSTRUCTION_ALIGNMENT: usize = 4;
/// `brk #0`.
pub const BREAKPOINT_INSTRUCTION: &[u8] = &[0x00, 0x00, 0x20, 0xd4];
/// The trap is reported at the instruction.
pub const BREAKPOINT_ADVANCES: u64 = 0;

/// Regset of the hardware breakpoints (`NT_ARM_HW_BREAK`, `linux/elf.h`).
const NT_ARM_HW_BREAK: i32 = 0x402;
/// Control word: enabled, for user mode (EL0), all four bytes (Arm ARM, DBGBCR).
const ENABLE_USER_EXECUTION: u32 = 1 | 2 << 1 | 0xf << 5;

/// `struct user_hwdebug_state` of `asm/ptrace.h`, cut after its first breakpoint.
#[repr(C)]
struct HardwareBreakpoint {
    information: u32,
    padding: u32,
    address: u64,
    control: u32,
    padding_2: u32,
}

/// Steps over system calls are not used: nobody has tried them here.
pub const STEPS_OVER_CALLS: bool = false;

/// Sets the registers for a system call at an instruction.
pub fn set_call(registers: &mut Registers, instruction: Address, number: i64, arguments: [u64; 6]) {
    registers.pc = instruction.0;
    registers.regs[..6].copy_from_slice(&arguments);
    registers.regs[8] = number as u64;
}

/// What the system call returned.
pub fn result(registers: &Registers) -> i64 {
    registers.regs[0] as i64
}

/// Where the thread goes on.
pub fn instruction_pointer(registers: &Registers) -> Address {
    Address(registers.pc)
}

/// Lets the thread go on elsewhere.
pub fn set_instruction_pointer(registers: &mut Registers, to: Address) {
    registers.pc = to.0;
}

/// The stack pointer.
pub fn stack_pointer(registers: &Registers) -> Address {
    Address(registers.sp)
}

/// Makes the thread trap before it executes the instruction at `address`, without a change to memory.
pub fn set_hardware_breakpoint(pid: Pid, address: Address) -> Result<(), Errno> {
    write_breakpoint(pid, address.0, ENABLE_USER_EXECUTION)
}

/// Takes the breakpoint back.
pub fn clear_hardware_breakpoint(pid: Pid) -> Result<(), Errno> {
    write_breakpoint(pid, 0, 0)
}

fn write_breakpoint(pid: Pid, address: u64, control: u32) -> Result<(), Errno> {
    let breakpoint = HardwareBreakpoint { information: 0, padding: 0, address, control, padding_2: 0 };
    requests::set_register_set(pid, NT_ARM_HW_BREAK, &breakpoint)
}

/// The system calls whose numbers differ between architectures.
pub mod numbers {
    pub use libc::{
        SYS_brk, SYS_close, SYS_exit_group, SYS_madvise, SYS_mmap, SYS_mprotect, SYS_mremap, SYS_munmap, SYS_openat,
        SYS_prctl, SYS_pread64, SYS_process_vm_readv, SYS_rt_sigaction,
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
    "2: mov x8, #260", // wait4
    "ldr w0, 3f",
    "mov x1, #0",
    "mov x2, #0x40000000", // __WALL
    "mov x3, #0",
    "svc #0",
    "cmn x0, #4", // EINTR
    "b.eq 2b",
    "ldr x0, 3f + 8",
    "ldr x1, 3f + 16",
    "ldr x2, 3f + 24",
    "ldr x3, 3f + 32",
    "ldr x8, 3f + 40",
    // x16 belongs to linkers and veneers: no program expects anything in it at its entry (AAPCS64, 6.1.1).
    "ldr x16, 3f + 48",
    "br x16",
    ".balign 8",
    "3:",
    "pagelift_wait_end:",
    "nop",
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
    vec![r.regs[0], r.regs[1], r.regs[2], r.regs[3], r.regs[8]]
}
