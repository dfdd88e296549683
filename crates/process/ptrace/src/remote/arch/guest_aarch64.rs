//! The code that a starting program is made to execute, on AArch64. See `guest_code` for the rules.

use super::Registers;
use crate::remote::guest_code::CodeBetween;
use address_space::Address;

/// Number of bytes below the stack pointer that hold the state with which the thread continues.
pub const STATE_BYTES: usize = 128;

/// Number of bytes below the stack pointer beyond which memory for arguments may be.
pub const STACK_BYTES: u64 = 512;

/// Number of bytes by which the stack pointer is lowered in the code, so that signal handlers do not overwrite the
/// state.
const STACK_DROP: u64 = 256;

/// Offset of the program counter in the state.
pub const STATE_PC: u64 = 96;

/// The bits that show that a branch came from a register (`PSR_BTYPE_MASK` of `asm/ptrace.h`).
const PSR_BTYPE_MASK: u64 = 3 << 10;

std::arch::global_asm!(
    ".pushsection .text.pagelift_call, \"ax\", @progbits",
    ".balign 8",
    ".globl pagelift_call_start",
    ".hidden pagelift_call_start",
    ".globl pagelift_call_reported",
    ".hidden pagelift_call_reported",
    ".globl pagelift_call_end",
    ".hidden pagelift_call_end",
    "pagelift_call_start:",
    // The end of an exec sets x0 to 0 after the registers have been set.
    "2: mov x0, x19",
    "svc #0",
    "cmn x0, #4095",
    "b.cs 4f",
    "3: cbz x21, 4f",
    "ldr x8, [x21]",
    "cmn x8, #1",
    "b.eq 4f",
    "ldp x19, x1, [x21, #8]",
    "ldp x2, x3, [x21, #24]",
    "ldp x4, x5, [x21, #40]",
    "add x21, x21, #56",
    "cmn x8, #2",
    "b.ne 2b",
    "str x1, [x19]",
    "b 3b",
    "4: mov x19, x0",
    "mov x8, #131", // tgkill(process, thread, SIGURG)
    "mov x0, x22",
    "mov x1, x22",
    "mov x2, #23",
    "svc #0",
    "pagelift_call_reported:",
    "mov x8, #135", // rt_sigprocmask(SIG_SETMASK, &mask, NULL, 8)
    "mov x0, #2",
    "add x1, x20, #112",
    "mov x2, #0",
    "mov x3, #8",
    "svc #0",
    "ldr x16, [x20, #104]",
    "msr nzcv, x16",
    "ldp x0, x1, [x20]",
    "ldp x2, x3, [x20, #16]",
    "ldp x4, x5, [x20, #32]",
    "ldr x8, [x20, #48]",
    "mov x17, x20",
    "ldp x19, x20, [x17, #56]",
    "ldp x21, x22, [x17, #72]",
    // x16 and x17 are reserved for linkers and veneers: no program expects a value in them at its entry (AAPCS64,
    // 6.1.1).
    "ldr x16, [x17, #96]",
    "ldr x17, [x17, #88]",
    "mov sp, x17",
    "br x16",
    ".balign 8",
    "pagelift_call_end:",
    "nop",
    ".popsection",
    ".pushsection .text.pagelift_entry, \"ax\", @progbits",
    ".balign 8",
    ".globl pagelift_entry_start",
    ".hidden pagelift_entry_start",
    ".globl pagelift_entry_waits",
    ".hidden pagelift_entry_waits",
    ".globl pagelift_entry_goes_on",
    ".hidden pagelift_entry_goes_on",
    ".globl pagelift_entry_end",
    ".hidden pagelift_entry_end",
    "pagelift_entry_start:",
    "hint #38", // bti jc
    // Only x16 and x17 are used, which no program expects a value in at its entry, and no flags.
    "ldr x16, 4f",
    // The word must be below all memory of the stack that is in use.
    "mov x17, sp",
    "sub x17, x16, x17",
    "tbz x17, #63, 3f",
    "ldr x17, 5f",
    "pagelift_entry_waits:",
    "2: str x17, [x16]",
    // An emulator that runs all CPUs in one thread switches to the next one here; `isb` alone takes the time.
    "yield",
    "isb",
    "sub x17, x17, #1",
    "cbnz w17, 2b",
    "pagelift_entry_goes_on:",
    "3: ldr x17, 6f",
    "ldr x16, 7f",
    "cbz x17, 8f",
    "str x16, [x17]",
    "8: br x16",
    ".balign 8",
    "4: .quad 0",
    "5: .quad 0",
    "6: .quad 0",
    "7: .quad 0",
    "pagelift_entry_end:",
    "nop",
    ".popsection",
);

unsafe extern "C" {
    fn pagelift_call_start();
    fn pagelift_call_reported();
    fn pagelift_call_end();
    fn pagelift_entry_start();
    fn pagelift_entry_waits();
    fn pagelift_entry_goes_on();
    fn pagelift_entry_end();
}

/// Makes the call in the registers and those in a list, reports the end by SIGURG, and continues with the state.
///
/// Input: x8 number, x19 and x1 to x5 arguments, x22 thread ID, x21 the list or 0, x20 the state. After the signal x19
/// holds the result of the last call and x21 the position in the list.
pub const CALL: CodeBetween = CodeBetween { start: pagelift_call_start, end: pagelift_call_end };

/// Announces that the program is about to be entered, waits for a tracer, and enters it if none comes. It makes no system
/// call.
///
/// Its last words: the address of the word that it writes, which must be below the stack pointer; the announcement, in
/// whose lower half the rounds are counted down ([`ROUNDS`]); the place that gets the entry if no tracer comes, or 0; and the
/// entry.
pub const ENTRY: CodeBetween = CodeBetween { start: pagelift_entry_start, end: pagelift_entry_end };

/// Number of rounds for which [`ENTRY`] waits. A round takes 10 to 50 ns.
pub const ROUNDS: u32 = 1 << 23;

/// Offset in [`CALL`] at which its signal stops the thread.
pub fn call_reported() -> u64 {
    (pagelift_call_reported as *const () as usize - pagelift_call_start as *const () as usize) as u64
}

/// Offsets in [`ENTRY`] between which a thread waits.
pub fn entry_waits() -> std::ops::Range<u64> {
    let offset = |of: unsafe extern "C" fn()| (of as usize - pagelift_entry_start as *const () as usize) as u64;
    offset(pagelift_entry_waits)..offset(pagelift_entry_goes_on)
}

/// Returns the state of a thread that continues with these registers and this signal mask.
pub fn state(r: &Registers, mask: u64) -> [u8; STATE_BYTES] {
    let x = &r.regs;
    let words = [x[0], x[1], x[2], x[3], x[4], x[5], x[8], x[19], x[20], x[21], x[22], r.sp, r.pc, r.pstate, mask, 0];
    let mut state = [0; STATE_BYTES];
    for (bytes, word) in state.chunks_exact_mut(8).zip(words) {
        bytes.copy_from_slice(&word.to_ne_bytes());
    }
    state
}

/// Returns the registers of a thread that makes a call by [`CALL`], at address `code`, with the state at `state`.
pub fn call_registers(
    saved: &Registers,
    code: Address,
    state: Address,
    thread: i32,
    call: &super::GuestCall,
    list: Option<Address>,
) -> Registers {
    let mut r = *saved;
    r.pc = code.0;
    r.sp -= STACK_DROP;
    // No branch leads there.
    r.pstate &= !PSR_BTYPE_MASK;
    r.regs[..6].copy_from_slice(&call.arguments);
    r.regs[8] = call.number as u64;
    r.regs[19] = call.arguments[0];
    r.regs[20] = state.0;
    r.regs[21] = list.map_or(0, |list| list.0);
    r.regs[22] = thread as u64;
    r
}

/// Returns the registers of a thread that makes a call by the instructions at `at`, which return to the address in its
/// link register.
pub fn last_call(saved: &Registers, at: Address, call: &super::GuestCall) -> Registers {
    let mut r = *saved;
    r.pc = at.0;
    // No branch leads there.
    r.pstate &= !PSR_BTYPE_MASK;
    r.regs[..6].copy_from_slice(&call.arguments);
    r.regs[8] = call.number as u64;
    r.regs[30] = saved.pc;
    r
}

/// Returns the result of the last call made by [`CALL`].
pub fn call_result(r: &Registers) -> i64 {
    r.regs[19] as i64
}

/// Returns the position in the list at which [`CALL`] has stopped.
pub fn list_position(r: &Registers) -> Address {
    Address(r.regs[21])
}

/// Sets the registers with which a thread at its exec stop continues, as the kernel does at the end of the exec.
pub fn after_exec(r: &mut Registers) {
    r.regs[0] = 0;
}

/// Number of bytes that [`ENTRY`] has on the stack while it waits.
pub const ENTRY_STACK_BYTES: usize = 0;

/// Returns the registers at the entry, for a thread that waits in [`ENTRY`].
pub fn at_entry(r: &Registers, _: &[u8; ENTRY_STACK_BYTES], entry: Address) -> Registers {
    let mut registers = *r;
    registers.pc = entry.0;
    registers.pstate &= !PSR_BTYPE_MASK;
    registers
}
