//! The code that a starting program is made to execute, on x86-64. See `guest_code` for the rules.

use super::Registers;
use crate::remote::guest_code::CodeBetween;
use address_space::Address;

/// Number of bytes below the stack pointer that hold the state with which the thread continues. They are its red zone
/// (System V ABI for AMD64, 3.2.2), which no signal handler overwrites and which no function uses at an exec or an
/// entry.
pub const STATE_BYTES: usize = 128;

/// Number of bytes below the stack pointer beyond which memory for arguments may be: the state, and room for a push.
pub const STACK_BYTES: u64 = 512;

/// Number of bytes by which the stack pointer is lowered in the code.
const STACK_DROP: u64 = 256;

/// Offset of the program counter in the state.
pub const STATE_PC: u64 = 112;

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
    // The end of an exec sets rax to 0 after the registers have been set.
    "2: mov rax, r12",
    "syscall",
    "cmp rax, -4095",
    "jae 4f",
    "3: test r14, r14",
    "jz 4f",
    "mov r12, qword ptr [r14]",
    "cmp r12, -1",
    "je 4f",
    "mov rdi, qword ptr [r14 + 8]",
    "mov rsi, qword ptr [r14 + 16]",
    "mov rdx, qword ptr [r14 + 24]",
    "mov r10, qword ptr [r14 + 32]",
    "mov r8, qword ptr [r14 + 40]",
    "mov r9, qword ptr [r14 + 48]",
    "lea r14, [r14 + 56]",
    "cmp r12, -2",
    "jne 2b",
    "mov qword ptr [rdi], rsi",
    "jmp 3b",
    "4: mov r12, rax",
    "mov eax, 234", // tgkill(process, thread, SIGURG)
    "mov edi, r13d",
    "mov esi, r13d",
    "mov edx, 23",
    "syscall",
    "pagelift_call_reported:",
    "mov eax, 14", // rt_sigprocmask(SIG_SETMASK, &mask, NULL, 8)
    "mov edi, 2",
    "lea rsi, [rbx + 120]",
    "xor edx, edx",
    "mov r10d, 8",
    "syscall",
    "push qword ptr [rbx + 104]",
    "popfq",
    "mov rax, qword ptr [rbx]",
    "mov rcx, qword ptr [rbx + 8]",
    "mov rdx, qword ptr [rbx + 16]",
    "mov rsi, qword ptr [rbx + 24]",
    "mov rdi, qword ptr [rbx + 32]",
    "mov r8, qword ptr [rbx + 40]",
    "mov r9, qword ptr [rbx + 48]",
    "mov r10, qword ptr [rbx + 56]",
    "mov r11, qword ptr [rbx + 64]",
    "mov r12, qword ptr [rbx + 72]",
    "mov r13, qword ptr [rbx + 80]",
    "mov r14, qword ptr [rbx + 88]",
    "lea rsp, [rsp + 256]",
    "mov rbx, qword ptr [rbx + 96]",
    "jmp qword ptr [rsp - 16]",
    ".balign 8",
    "pagelift_call_end:",
    "ud2",
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
    "endbr64",
    "lea rsp, [rsp - 128]",
    "push rax",
    "push rcx",
    "pushfq",
    "mov rcx, qword ptr [rip + 4f]",
    // The word must be below all memory of the stack that is in use.
    "cmp rcx, rsp",
    "jae 3f",
    "mov rax, qword ptr [rip + 4f + 8]",
    "pagelift_entry_waits:",
    "2: mov qword ptr [rcx], rax",
    "pause",
    "dec rax",
    "test eax, eax",
    "jnz 2b",
    "pagelift_entry_goes_on:",
    "3: mov rcx, qword ptr [rip + 4f + 16]",
    "test rcx, rcx",
    "jz 5f",
    "mov rax, qword ptr [rip + 4f + 24]",
    "mov qword ptr [rcx], rax",
    "5: popfq",
    "pop rcx",
    "pop rax",
    "lea rsp, [rsp + 128]",
    "jmp qword ptr [rip + 4f + 24]",
    ".balign 8",
    "4: .quad 0, 0, 0, 0",
    "pagelift_entry_end:",
    "ud2",
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
/// Input: r12 number, rdi to r9 arguments, r13 thread ID, r14 the list or 0, rbx the state. After the signal r12 holds
/// the result of the last call and r14 the position in the list.
pub const CALL: CodeBetween = CodeBetween { start: pagelift_call_start, end: pagelift_call_end };

/// Announces that the program is about to be entered, waits for a tracer, and enters it if none comes. It makes no system
/// call.
///
/// Its last words: the address of the word that it writes, which must be below the stack pointer; the announcement, in
/// whose lower half the rounds are counted down ([`ROUNDS`]); the place that gets the entry if no tracer comes, or 0; and the
/// entry.
pub const ENTRY: CodeBetween = CodeBetween { start: pagelift_entry_start, end: pagelift_entry_end };

/// Number of rounds for which [`ENTRY`] waits. A round takes 1.3 ns, where `pause` takes three cycles, to 60 ns.
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
    let words = [
        r.rax, r.rcx, r.rdx, r.rsi, r.rdi, r.r8, r.r9, r.r10, r.r11, r.r12, r.r13, r.r14, r.rbx, r.eflags, r.rip, mask,
    ];
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
    r.rip = code.0;
    r.rsp -= STACK_DROP;
    r.rbx = state.0;
    r.r12 = call.number as u64;
    r.r13 = thread as u64;
    r.r14 = list.map_or(0, |list| list.0);
    [r.rdi, r.rsi, r.rdx, r.r10, r.r8, r.r9] = call.arguments;
    // In no system call: the kernel must not restart one.
    r.orig_rax = u64::MAX;
    r
}

/// Returns the registers of a thread that makes a call by the instructions at `at`, which return to the address at its
/// stack pointer.
pub fn last_call(saved: &Registers, at: Address, call: &super::GuestCall) -> Registers {
    let mut r = *saved;
    r.rip = at.0;
    r.rsp -= 8;
    r.rax = call.number as u64;
    [r.rdi, r.rsi, r.rdx, r.r10, r.r8, r.r9] = call.arguments;
    r.orig_rax = u64::MAX;
    r
}

/// Returns the result of the last call made by [`CALL`].
pub fn call_result(r: &Registers) -> i64 {
    r.r12 as i64
}

/// Returns the position in the list at which [`CALL`] has stopped.
pub fn list_position(r: &Registers) -> Address {
    Address(r.r14)
}

/// Sets the registers with which a thread at its exec stop continues, as the kernel does at the end of the exec.
pub fn after_exec(r: &mut Registers) {
    r.rax = 0;
    r.orig_rax = u64::MAX;
}

/// Number of bytes that [`ENTRY`] has on the stack while it waits.
pub const ENTRY_STACK_BYTES: usize = 24;

/// Returns the registers at the entry, for a thread that waits in [`ENTRY`] with this `stack`.
pub fn at_entry(r: &Registers, stack: &[u8; ENTRY_STACK_BYTES], entry: Address) -> Registers {
    let mut words = [0; ENTRY_STACK_BYTES / 8];
    for (word, bytes) in words.iter_mut().zip(stack.chunks_exact(8)) {
        *word = bytes.try_into().map_or(0, u64::from_ne_bytes);
    }
    let mut registers = *r;
    [registers.eflags, registers.rcx, registers.rax] = words;
    registers.rsp += ENTRY_STACK_BYTES as u64 + 128;
    registers.rip = entry.0;
    registers.orig_rax = u64::MAX;
    registers
}
