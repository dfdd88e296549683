//! AArch64.

use super::{Interrupted, MARK, Registers, layout, signal_frame};
use crate::remote::guest_code::CodeBetween;
use crate::remote::requests;
use address_space::Address;
use linux::text::text_of;
use nix::errno::Errno;
use nix::unistd::Pid;

/// `svc #0`.
pub const SYSCALL_INSTRUCTION: &[u8] = &[0x01, 0x00, 0x00, 0xd4];
/// `svc #0` and `ret`.
pub const CALL_AND_RETURN: &[u8] = &[0x01, 0x00, 0x00, 0xd4, 0xc0, 0x03, 0x5f, 0xd6];
/// Instructions have four bytes and are aligned.
pub const INSTRUCTION_ALIGNMENT: usize = 4;
/// `AUDIT_ARCH_AARCH64` (`linux/audit.h`).
pub const AUDIT_ARCHITECTURE: u32 = 0xc000_00b7;
/// Returns the result of the system call that the thread has just left.
pub fn result(registers: &Registers) -> i64 {
    registers.regs[0] as i64
}

/// Returns the address at which the thread continues.
pub fn instruction_pointer(registers: &Registers) -> Address {
    Address(registers.pc)
}

/// Sets the address at which the thread continues.
pub fn set_instruction_pointer(registers: &mut Registers, to: Address) {
    registers.pc = to.0;
}

/// Returns the stack pointer.
pub fn stack_pointer(registers: &Registers) -> Address {
    Address(registers.sp)
}

/// Sets the stack pointer.
pub fn set_stack_pointer(registers: &mut Registers, to: Address) {
    registers.sp = to.0;
}

/// Replaces the call that the thread, stopped at its entry, is about to make; -1: by none. After it the thread
/// continues with `registers`, except for the call's result.
pub fn replace_call(thread: Pid, registers: &Registers, number: i64) -> Result<(), Errno> {
    requests::set_registers_of_same_program(thread, registers)?;
    requests::set_register_set(thread, NT_ARM_SYSTEM_CALL, &(number as i32))
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
    // x16 is reserved for linkers and veneers: no program expects a value in it at its entry (AAPCS64, 6.1.1).
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

/// Waits for a child and continues, see `start::reap_stub`.
pub const WAIT_CODE: CodeBetween = CodeBetween { start: pagelift_wait_start, end: pagelift_wait_end };

/// Returns the registers that the code above changes and restores, in the order of its words.
pub fn registers_used_by_wait(r: &Registers) -> Vec<u64> {
    vec![r.regs[0], r.regs[1], r.regs[2], r.regs[3], r.regs[8]]
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
    "str x9, [x19, #{inside}]",
    "2: ldr x8, [x19, #{number}]",
    "cmn x8, #1",
    "b.eq 3f",
    "ldp x0, x1, [x19, #{arguments}]",
    "ldp x2, x3, [x19, #{arguments} + 16]",
    "ldp x4, x5, [x19, #{arguments} + 32]",
    "mov x9, #-1",
    "str x9, [x19, #{number}]",
    "svc #0",
    "b 2b",
    "3: mov x8, #135", // rt_sigprocmask(SIG_SETMASK, &old, NULL, 8)
    "mov x0, #2",
    "add x1, x19, #{old_mask}",
    "mov x2, #0",
    "mov x3, #8",
    "svc #0",
    // A thread comes here only after Pagelift has been killed. The kernel forgets the remaining time of a call at
    // rt_sigreturn, so that such a call is completed first.
    "ldr x9, [x19, #{ends_call}]",
    "cbz x9, 4f",
    "mov x8, #128", // restart_syscall
    "svc #0",
    "str x0, [x19, #{first_register}]",
    "4: str xzr, [x19, #{inside}]",
    "add x9, x19, #{frame}",
    "mov x8, #139", // rt_sigreturn
    "mov sp, x9",
    "svc #0",
    ".balign 8",
    "pagelift_loop_end:",
    "nop",
    ".popsection",
    inside = const layout::INSIDE,
    number = const layout::NUMBER,
    arguments = const layout::ARGUMENTS,
    old_mask = const layout::OLD_MASK,
    ends_call = const layout::RETURN,
    frame = const FRAME,
    first_register = const FRAME + signal_frame::REGISTERS,
);

/// Offset of the signal frame in the call page.
const FRAME: usize = layout::RETURN + STATE_WORDS;
// The stack pointer is a multiple of 16.
const _: () = assert!(FRAME.is_multiple_of(16));

unsafe extern "C" {
    fn pagelift_loop_start();
    fn pagelift_loop_end();
}

/// Makes the system calls of a call page until there is none, and continues with the registers of the page's signal
/// frame: a jump needs a free register for its target, and only rt_sigreturn loads them all at once.
///
/// It does not change x6, x7 and all registers that are not listed above. At a system call stop x7 shows whether it is
/// entry or exit, and cannot be changed (`report_syscall` of the kernel's `ptrace.c`).
pub const LOOP_CODE: CodeBetween = CodeBetween { start: pagelift_loop_start, end: pagelift_loop_end };

std::arch::global_asm!(
    // Changes no flag.
    ".pushsection .text.pagelift_once, \"ax\", @progbits",
    ".balign 8",
    ".globl pagelift_once_start",
    ".hidden pagelift_once_start",
    ".globl pagelift_once_end",
    ".hidden pagelift_once_end",
    "pagelift_once_start:",
    "svc #0", // mmap
    "tbnz x0, #63, 3f",
    "ldr x1, 5f",
    "ldr x2, 5f + 8",
    "stp x1, x2, [x0, #{mark}]",
    "str x0, [x0, #{own_address}]",
    "b 3f",
    ".balign 8",
    "5: .8byte {mark_0}, {mark_1}",
    "svc #0", // munmap
    "3: mov x8, #135", // rt_sigprocmask(SIG_SETMASK, &old, NULL, 8)
    "mov x0, #2",
    "adr x1, 4f + 8",
    "mov x2, #0",
    "mov x3, #8",
    "svc #0",
    "ldr x0, 4f + 16",
    "ldr x1, 4f + 24",
    "ldr x2, 4f + 32",
    "ldr x3, 4f + 40",
    "ldr x4, 4f + 48",
    "ldr x5, 4f + 56",
    "ldr x8, 4f + 64",
    ".balign 8",
    // The first word after the code is a branch.
    "4:",
    "pagelift_once_end:",
    "nop",
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
pub const ONCE_WORDS: usize = 9;
/// Index among them of the signal mask.
pub const ONCE_MASK: usize = 1;

/// Maximum distance in bytes between the code and the place to which a thread returns. A branch without a register reaches
/// 128 MiB; the code itself takes less than a page.
pub const REACH: Option<u64> = Some(FARTHEST_BRANCH);
const FARTHEST_BRANCH: u64 = (128 << 20) - 0x1000;

/// Returns the words with which the thread continues after the code above, the first of which is at `at`: a branch to its
/// place, the mask, and the registers that the code changes.
///
/// # Errors
/// `ERANGE` where the place is beyond [`REACH`].
pub fn once_words(r: &Registers, mask: u64, at: Address) -> Result<Vec<u64>, Errno> {
    let distance = (r.pc.wrapping_sub(at.0) as i64) >> 2;
    if distance.unsigned_abs() << 2 > FARTHEST_BRANCH || !r.pc.is_multiple_of(4) {
        return Err(Errno::ERANGE);
    }
    let branch = 0x1400_0000 | (distance as u64 & 0x03ff_ffff);
    let [x0, x1, x2, x3, x4, x5, _, _, x8, ..] = r.regs;
    Ok(vec![branch, mask, x0, x1, x2, x3, x4, x5, x8])
}

/// Sends the thread to a system call instruction with a call.
pub fn enter_once(r: &mut Registers, instruction: Address, number: i64, arguments: [u64; 6]) {
    r.pc = instruction.0;
    r.regs[..6].copy_from_slice(&arguments);
    r.regs[8] = number as u64;
    // No branch leads there.
    r.pstate &= !PSR_BTYPE_MASK;
}

/// The bits that show that a branch came from a register (`PSR_BTYPE_MASK` of `asm/ptrace.h`).
const PSR_BTYPE_MASK: u64 = 3 << 10;

/// Returns the state with which the thread continues after the code above. `at_call`: its program counter is at a
/// system call instruction.
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

/// Length in bytes of `return_state`'s result.
pub const RETURN_BYTES: usize = STATE_WORDS + signal_frame::LENGTH;
const STATE_WORDS: usize = 16;

/// Returns the registers that take a thread out of a call which it completes in the code above: it can do so at the
/// program's own instruction as well. `state` is the state in its call page. `None` where it does anything else there.
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
    // No branch leads there.
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

/// Why a thread may be unable to make calls.
pub const UNFIT: &str =
    "is in a restartable sequence, computes with SVE or SME registers, or has a guarded control stack";

/// True if the signal frame contains all registers of the thread.
///
/// Every system call discards the SVE state beyond the vector registers, so that a thread at a call has none.
pub fn can_be_put_back(thread: Pid, at_call: bool) -> bool {
    let mut header = [0; HEADER_BYTES];
    let mut control_stack = [0; 24];
    // A kernel or a CPU without these features has no such register set.
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

/// True if a stop shows in which call the thread was, and its arguments. On AArch64 it shows neither the call nor,
/// after an error, its first argument; the kernel prepares the restart of a call before the stop (`do_signal` of its
/// `signal.c`).
pub const SHOWS_CALLS: bool = false;

/// Returns the state of the system call in which the thread was stopped, which the registers do not show on AArch64.
pub fn interrupted(_: &Registers) -> Interrupted {
    Interrupted::No
}

/// Returns number and arguments as in the registers. After a call the first argument is its result.
pub fn call_registers(r: &Registers) -> (i64, [u64; 6]) {
    (r.regs[8] as i64, [r.regs[0], r.regs[1], r.regs[2], r.regs[3], r.regs[4], r.regs[5]])
}

/// Does nothing: the kernel has prepared the restart of an interrupted call.
pub fn rewind_call(_: &mut Registers) {}

/// Does nothing and returns false: the kernel prepares every restart before a stop.
pub fn undo_rewind(_: &mut Registers) -> bool {
    false
}

/// Makes the thread, which has just left a call, restart it.
pub fn make_again(r: &mut Registers, first_argument: u64) {
    r.pc -= SYSCALL_INSTRUCTION.len() as u64;
    r.regs[0] = first_argument;
}

/// True for registers that `make_again` has changed, where the call's next instruction is at `behind`.
pub fn is_made_again(r: &Registers, behind: Address) -> bool {
    r.pc.wrapping_add(SYSCALL_INSTRUCTION.len() as u64) == behind.0
}

/// Sets an argument of a call that is made again.
pub fn set_argument(r: &mut Registers, index: usize, value: u64) {
    r.regs[index] = value;
}

/// Makes the thread, which is about to restart a call, continue with the error of that call.
pub fn give_error(r: &mut Registers) {
    r.pc += SYSCALL_INSTRUCTION.len() as u64;
    r.regs[0] = (-i64::from(libc::EINTR)) as u64;
}

/// Returns the first argument of a stopped thread's last call, as kept by the kernel; the call may have ended. The
/// call's number is set while `/proc/PID/task/TID/syscall` is read, which then shows all arguments of the call.
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

/// Makes the kernel treat the registers as those outside of a call.
pub fn forget_call(thread: Pid) -> Result<(), Errno> {
    requests::set_register_set(thread, NT_ARM_SYSTEM_CALL, &-1i32)
}
