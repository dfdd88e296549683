//! AArch64.

use super::{Interrupted, Registers, signal_frame};
use crate::requests;
use address_space::Address;
use kernel_calls::text::text_of;
use nix::errno::Errno;
use nix::unistd::Pid;

/// `svc #0`.
pub const SYSCALL_INSTRUCTION: &[u8] = &[0x01, 0x00, 0x00, 0xd4];
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

/// The system calls whose numbers differ between architectures.
pub mod numbers {
    pub use libc::{
        SYS_brk, SYS_close, SYS_exit_group, SYS_madvise, SYS_mmap, SYS_mprotect, SYS_mremap, SYS_munmap, SYS_openat,
        SYS_prctl, SYS_pread64, SYS_process_vm_readv,
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
pub const WAIT_CODE: crate::guest_code::CodeBetween =
    crate::guest_code::CodeBetween { start: pagelift_wait_start, end: pagelift_wait_end };

/// What the code above changes and puts back, in the order of its words.
pub fn registers_used_by_wait(r: &Registers) -> Vec<u64> {
    vec![r.regs[0], r.regs[1], r.regs[2], r.regs[3], r.regs[8]]
}

/// Offsets of the words of a call page, see `live::page`. The code below knows them too.
pub mod call_page {
    /// 1 while a thread is in the code, which sets and clears it itself.
    pub const INSIDE: usize = 0x10;
    /// The thread's own signal mask.
    pub const OLD_MASK: usize = 0x18;
    /// Number of the next system call; -1: none.
    pub const NUMBER: usize = 0x20;
    /// Its six arguments.
    pub const ARGUMENTS: usize = 0x28;
    /// What `return_state` gives: whether a call is to be finished first, and at 0xa00 the frame.
    pub const RETURN: usize = 0x9f0;
}

std::arch::global_asm!(
    ".pushsection .text.pagelift_loop, \"ax\", @progbits",
    ".balign 8",
    ".globl pagelift_loop_start",
    ".hidden pagelift_loop_start",
    ".globl pagelift_loop_end",
    ".hidden pagelift_loop_end",
    "pagelift_loop_start:",
    "mov x9, #1",
    "str x9, [x19, #0x10]",
    "2: ldr x8, [x19, #0x20]",
    "cmn x8, #1",
    "b.eq 3f",
    "ldp x0, x1, [x19, #0x28]",
    "ldp x2, x3, [x19, #0x38]",
    "ldp x4, x5, [x19, #0x48]",
    "mov x9, #-1",
    "str x9, [x19, #0x20]",
    "svc #0",
    "b 2b",
    "3: mov x8, #135", // rt_sigprocmask(SIG_SETMASK, &old, NULL, 8)
    "mov x0, #2",
    "add x1, x19, #0x18",
    "mov x2, #0",
    "mov x3, #8",
    "svc #0",
    // Only where nobody lifts any more does a thread come here. What is left of a call's time is known to the kernel
    // until rt_sigreturn, so such a call is ended before.
    "ldr x9, [x19, #0x9f0]",
    "cbz x9, 4f",
    "mov x8, #128", // restart_syscall
    "svc #0",
    "str x0, [x19, #0xb38]", // The frame's x0.
    "4: str xzr, [x19, #0x10]",
    "add x9, x19, #0xa00",
    "mov x8, #139", // rt_sigreturn
    "mov sp, x9",
    "svc #0",
    ".balign 8",
    "pagelift_loop_end:",
    "nop",
    ".popsection",
);

unsafe extern "C" {
    fn pagelift_loop_start();
    fn pagelift_loop_end();
}

/// Makes the system calls of a call page until there is none, and goes on as the page's signal frame says: no register
/// is free to hold an address to go to, and a signal's return is the one way to load them all at once.
///
/// It leaves x6, x7 and everything that is not listed above alone. At a stop at a system call x7 shows which end of the
/// call it is, and cannot be changed (`report_syscall` of the kernel's `ptrace.c`).
pub const LOOP_CODE: crate::guest_code::CodeBetween =
    crate::guest_code::CodeBetween { start: pagelift_loop_start, end: pagelift_loop_end };

/// The bits that say that a branch has come from a register (`PSR_BTYPE_MASK` of `asm/ptrace.h`).
const PSR_BTYPE_MASK: u64 = 3 << 10;

/// How the thread goes on, for the code above. `at_call`: it stands at a system call instruction.
pub fn return_state(thread: Pid, r: &Registers, mask: u64, at_call: bool) -> Result<Vec<u8>, Errno> {
    let mut vectors = [0; signal_frame::VECTOR_BYTES];
    requests::register_set(thread, NT_PRFPREG, &mut vectors)?;
    let ends_call = at_call && r.regs[8] == libc::SYS_restart_syscall as u64;
    let next = if ends_call { r.pc + SYSCALL_INSTRUCTION.len() as u64 } else { r.pc };
    let mut state = u64::from(ends_call).to_ne_bytes().to_vec();
    state.resize(STATE_WORDS, 0);
    state.extend(signal_frame::frame(&r.regs, [r.sp, next, r.pstate], &vectors, mask));
    Ok(state)
}

/// Length of what `return_state` gives. In bytes.
pub const STATE_BYTES: usize = STATE_WORDS + signal_frame::LENGTH;
const STATE_WORDS: usize = 16;

/// How a thread goes on that ends a call within the code above: it can as well do so where it made it. `state` is what
/// stands in its call page. `None` where it does anything else there.
pub fn way_out(r: &Registers, page: Address, state: &[u8], at_call: bool) -> Option<Registers> {
    let (regs, [sp, pc, pstate]) = signal_frame::registers_of(state.get(STATE_WORDS..)?)?;
    let ends_call = at_call && r.regs[8] == libc::SYS_restart_syscall as u64 && r.regs[19] == page.0;
    let pc = pc - SYSCALL_INSTRUCTION.len() as u64;
    ends_call.then_some(Registers { regs, sp, pc, pstate })
}

/// Sends the thread into the code with its call page.
pub fn enter_loop(r: &mut Registers, code: Address, page: Address) {
    r.pc = code.0;
    r.regs[19] = page.0;
    // Nobody has branched there.
    r.pstate &= !PSR_BTYPE_MASK;
}

/// Register sets (`linux/elf.h`): vectors; the system call; SVE; SVE in streaming mode; SME's ZA; guarded control stack.
const NT_PRFPREG: i32 = 2;
const NT_ARM_SYSTEM_CALL: i32 = 0x404;
const NT_ARM_SVE: i32 = 0x405;
const NT_ARM_SSVE: i32 = 0x40b;
const NT_ARM_ZA: i32 = 0x40c;
const NT_ARM_GCS: i32 = 0x410;

/// `struct user_sve_header` and `struct user_za_header` (`asm/ptrace.h`): size at 0, flags at 12.
const HEADER_BYTES: usize = 16;
const HOLDS_SVE: u16 = 1;

/// Why a thread may be unfit to make calls.
pub const UNFIT: &str =
    "is in a restartable sequence, computes with SVE or SME registers, or has a guarded control stack";

/// True where the signal frame holds all that the thread has in registers.
///
/// Every system call drops what SVE has above the vector registers, so that a thread at a call has nothing there.
pub fn can_be_put_back(thread: Pid, at_call: bool) -> bool {
    let mut header = [0; HEADER_BYTES];
    let mut control_stack = [0; 24];
    // A kernel or a processor without them has no such set.
    let mut holds_sve = |kind| {
        let found = requests::register_set(thread, kind, &mut header).is_ok();
        found && u16::from_ne_bytes([header[12], header[13]]) & HOLDS_SVE != 0
    };
    let scalable = !at_call && (holds_sve(NT_ARM_SVE) || holds_sve(NT_ARM_SSVE));
    let za = requests::register_set(thread, NT_ARM_ZA, &mut header).is_ok()
        && u32::from_ne_bytes([header[0], header[1], header[2], header[3]]) as usize > HEADER_BYTES;
    let guarded = requests::register_set(thread, NT_ARM_GCS, &mut control_stack).is_ok() && control_stack[0] & 1 != 0;
    !(scalable || za || guarded)
}

/// A stop shows no longer in which call the thread was, nor its first argument where it gave an error; the kernel has
/// prepared a call that is to be made again before the stop (`do_signal` of its `signal.c`).
pub const SHOWS_CALLS: bool = false;

/// How the thread stands to a system call: not to be told from registers alone.
pub fn interrupted(_: &Registers) -> Interrupted {
    Interrupted::No
}

/// Number and arguments as the registers hold them. Behind a call the first argument is its result.
pub fn call_registers(r: &Registers) -> (i64, [u64; 6]) {
    (r.regs[8] as i64, [r.regs[0], r.regs[1], r.regs[2], r.regs[3], r.regs[4], r.regs[5]])
}

/// What an interrupted call needs to be made again, the kernel has done itself.
pub fn rewind_call(_: &mut Registers) {}

/// Lets the thread, which stands behind a call, make it again.
pub fn make_again(r: &mut Registers, first_argument: u64) {
    r.pc -= SYSCALL_INSTRUCTION.len() as u64;
    r.regs[0] = first_argument;
}

/// Lets the thread, which stands at a call that it makes again, see the error that the call gave.
pub fn give_error(r: &mut Registers) {
    r.pc += SYSCALL_INSTRUCTION.len() as u64;
    r.regs[0] = (-i64::from(libc::EINTR)) as u64;
}

/// What the kernel has kept as the first argument of a stopped thread's last call, which may have ended: its number is set
/// for as long as `/proc/PID/task/TID/syscall` is read, where it shows with all of the call's arguments.
pub fn kept_first_argument(process: Pid, thread: Pid, number: i64) -> Result<Option<u64>, Errno> {
    requests::set_register_set(thread, NT_ARM_SYSTEM_CALL, &(number as i32))?;
    let text = text_of(format!("/proc/{process}/task/{thread}/syscall"));
    forget_call(thread)?;
    let text = text.unwrap_or_default();
    let mut words = text.split_whitespace();
    let is_number = words.next().is_some_and(|word| word.parse() == Ok(number));
    let first = words.next().and_then(|word| u64::from_str_radix(word.strip_prefix("0x")?, 16).ok());
    Ok(first.filter(|_| is_number))
}

/// Lets the kernel take what is in the registers for no call's result.
pub fn forget_call(thread: Pid) -> Result<(), Errno> {
    requests::set_register_set(thread, NT_ARM_SYSTEM_CALL, &-1i32)
}
