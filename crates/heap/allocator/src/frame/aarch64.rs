//! Frames on AArch64 (`struct rt_sigframe`, `arch/arm64/kernel/signal.c`).

use super::{Frame, State};
use crate::call::Call;
use crate::sys::read_own;
use core::arch::{asm, global_asm};
use core::ffi::c_int;
use core::mem::offset_of;
use core::ptr::NonNull;
use libc::{mcontext_t, ucontext_t};

const CALL: u32 = 0xd400_0001;
const INTERRUPTED: i64 = -(libc::EINTR as i64);
/// `SS_AUTODISARM` (sigaltstack(2)).
const SS_AUTODISARM: c_int = 1 << 31;

/// Register of a call's number, and the one that the code below has the frame in.
const NUMBER: usize = 8;
const FRAME: usize = 19;

/// Records of a frame (`asm/sigcontext.h`): a magic number and the size, 4 bytes each.
const FPSIMD: u32 = 0x4650_8001;
const SYNDROME: u32 = 0x4553_5201;
const SVE: u32 = 0x5356_4501;
const HEAD: usize = 8;
/// Behind the head of an SVE record: the length of vectors, and flags, 2 bytes each, of which this one means streaming.
const SVE_STREAMING: u16 = 1;

const MACHINE: usize = offset_of!(ucontext_t, uc_mcontext);
const REGISTERS: usize = MACHINE + offset_of!(mcontext_t, regs);
const STATE: usize = MACHINE + offset_of!(mcontext_t, pstate);
/// The records begin at the next multiple of 16 behind the state.
const RECORDS: usize = (STATE + size_of::<u64>()).next_multiple_of(16);
const RECORDS_BYTES: usize = 4096;

unsafe extern "C" {
    /// The code below. Takes the frame in x19 and its record of vector registers in x20.
    fn pagelift_leave_handler();
    /// The address after the call that sets the mask; the frame is in x19.
    static pagelift_leaving: u8;
    /// x0, which held the frame until then, holds the target address; x8 is the new stack pointer.
    static pagelift_pointing: u8;
    /// The stack is the program's.
    static pagelift_switched: u8;
    /// The last instruction.
    static pagelift_left: u8;
}

global_asm!(
    ".pushsection .text.pagelift_leave_handler, \"ax\", %progbits",
    ".hidden pagelift_leave_handler",
    ".globl pagelift_leave_handler",
    ".type pagelift_leave_handler, %function",
    ".hidden pagelift_leaving",
    ".globl pagelift_leaving",
    ".hidden pagelift_pointing",
    ".globl pagelift_pointing",
    ".hidden pagelift_switched",
    ".globl pagelift_switched",
    ".hidden pagelift_left",
    ".globl pagelift_left",
    "pagelift_leave_handler:",
    "ldp w1, w2, [x20, #8]",
    "msr fpsr, x1",
    "msr fpcr, x2",
    "add x20, x20, #16",
    "ldp q0, q1, [x20]",
    "ldp q2, q3, [x20, #32]",
    "ldp q4, q5, [x20, #64]",
    "ldp q6, q7, [x20, #96]",
    "ldp q8, q9, [x20, #128]",
    "ldp q10, q11, [x20, #160]",
    "ldp q12, q13, [x20, #192]",
    "ldp q14, q15, [x20, #224]",
    "ldp q16, q17, [x20, #256]",
    "ldp q18, q19, [x20, #288]",
    "ldp q20, q21, [x20, #320]",
    "ldp q22, q23, [x20, #352]",
    "ldp q24, q25, [x20, #384]",
    "ldp q26, q27, [x20, #416]",
    "ldp q28, q29, [x20, #448]",
    "ldp q30, q31, [x20, #480]",
    "mov x8, #{rt_sigprocmask}",
    "mov x0, #{setmask}",
    "add x1, x19, #{mask}",
    "mov x2, #0",
    "mov x3, #8",
    "svc #0",
    "pagelift_leaving:",
    "mov x0, x19",
    "ldr x8, [x0, #{state}]",
    "msr nzcv, x8",
    "ldr x1, [x0, #{registers} + 8]",
    "ldp x2, x3, [x0, #{registers} + 16]",
    "ldp x4, x5, [x0, #{registers} + 32]",
    "ldp x6, x7, [x0, #{registers} + 48]",
    "ldr x9, [x0, #{registers} + 72]",
    "ldp x10, x11, [x0, #{registers} + 80]",
    "ldp x12, x13, [x0, #{registers} + 96]",
    "ldp x14, x15, [x0, #{registers} + 112]",
    "ldp x16, x17, [x0, #{registers} + 128]",
    "ldp x18, x19, [x0, #{registers} + 144]",
    "ldp x20, x21, [x0, #{registers} + 160]",
    "ldp x22, x23, [x0, #{registers} + 176]",
    "ldp x24, x25, [x0, #{registers} + 192]",
    "ldp x26, x27, [x0, #{registers} + 208]",
    "ldp x28, x29, [x0, #{registers} + 224]",
    "ldr x30, [x0, #{registers} + 240]",
    "ldr x8, [x0, #{stack}]",
    "ldr x0, [x0, #{counter}]",
    "pagelift_pointing:",
    "mov sp, x8",
    "pagelift_switched:",
    "mov x8, #{restart_syscall}",
    "pagelift_left:",
    "ret x0", // a system call changes x0 in any case; `br` would need a landing pad in guarded pages
    ".size pagelift_leave_handler, . - pagelift_leave_handler",
    ".popsection",
    mask = const offset_of!(ucontext_t, uc_sigmask),
    rt_sigprocmask = const libc::SYS_rt_sigprocmask,
    restart_syscall = const libc::SYS_restart_syscall,
    setmask = const libc::SIG_SETMASK,
    state = const STATE,
    registers = const REGISTERS,
    stack = const MACHINE + offset_of!(mcontext_t, sp),
    counter = const MACHINE + offset_of!(mcontext_t, pc),
);

impl Frame {
    /// The result of a finished call replaces its first argument.
    pub const SHOWS_ARGUMENTS: bool = false;

    pub fn state(&self, call: &Call) -> State {
        let machine = &self.get().uc_mcontext;
        let same = machine.regs[NUMBER] == call.number as u64
            && machine.regs[1..6] == call.arguments[1..]
            && machine.sp == call.stack;
        let before = call.next_instruction.wrapping_sub(size_of::<u32>() as u64);
        match (machine.pc, machine.regs[0]) {
            (at, result) if same && at == call.next_instruction && result as i64 == INTERRUPTED && is_call(before) => {
                State::Ended
            }
            (at, first) if same && at == before && first == call.arguments[0] && is_call(before) => State::AboutToCall,
            _ => State::Elsewhere,
        }
    }

    /// The call just before the thread's program counter if it has returned EINTR. Its first argument is lost, because
    /// the error replaces it.
    pub fn ended_call(&self) -> Option<Call> {
        let machine = &self.get().uc_mcontext;
        let [_, b, c, d, e, f, ..] = machine.regs;
        let call = Call {
            number: machine.regs[NUMBER].cast_signed(),
            arguments: [0, b, c, d, e, f],
            stack: machine.sp,
            next_instruction: machine.pc,
            sleeps: 0,
        };
        (self.state(&call) == State::Ended).then_some(call)
    }

    /// True if the thread is about to make restart_syscall(2).
    pub fn is_before_restart(&self) -> bool {
        let machine = &self.get().uc_mcontext;
        machine.regs[NUMBER] == libc::SYS_restart_syscall as u64 && is_call(machine.pc)
    }

    pub fn make_again(&mut self, call: &Call) {
        let machine = &mut self.get_mut().uc_mcontext;
        machine.regs[0] = call.arguments[0];
        machine.regs[NUMBER] = call.number as u64;
        machine.pc = call.next_instruction.wrapping_sub(size_of::<u32>() as u64);
    }

    pub fn make_restart(&mut self, call: &Call) {
        self.make_again(&Call { number: libc::SYS_restart_syscall, ..*call });
    }

    pub fn give_error(&mut self, call: &Call) {
        let machine = &mut self.get_mut().uc_mcontext;
        machine.regs[0] = INTERRUPTED as u64;
        machine.pc = call.next_instruction;
    }

    /// False if the frame has state that only rt_sigreturn restores.
    pub fn can_be_left(&self) -> bool {
        self.get().uc_stack.ss_flags & SS_AUTODISARM == 0 && self.vector_registers().is_some()
    }

    /// The offset of the record with the vector registers, in bytes from the frame's beginning; `None` if the frame has
    /// another record that `leave` would have to load. A system call clears the longer vectors.
    fn vector_registers(&self) -> Option<usize> {
        let frame = self.0.as_ptr().cast::<u8>();
        let (mut at, mut found) = (RECORDS, None);
        while at + HEAD <= RECORDS + RECORDS_BYTES {
            // SAFETY:
            // - the kernel's frame has so many bytes of records behind the registers, each aligned to 16.
            let [magic, size] = unsafe { frame.add(at).cast::<[u32; 2]>().read() };
            match magic {
                0 => break,
                FPSIMD => found = Some(at),
                SYNDROME => {}
                SVE => {
                    // SAFETY:
                    // - as above; such a record is longer than its head and these.
                    let [_, flags] = unsafe { frame.add(at + HEAD).cast::<[u16; 2]>().read() };
                    if flags & SVE_STREAMING != 0 {
                        return None;
                    }
                }
                _ => return None,
            }
            at += (size as usize).max(HEAD);
        }
        found
    }

    /// The frame to be left, if the signal has come during [`Frame::leave`].
    pub fn unfinished_leave(&mut self) -> Option<Self> {
        let [leaving, pointing, switched, left] = [
            &raw const pagelift_leaving,
            &raw const pagelift_pointing,
            &raw const pagelift_switched,
            &raw const pagelift_left,
        ]
        .map(|label| label as u64);
        let machine = &mut self.get_mut().uc_mcontext;
        let at = machine.pc;
        let outer = match at {
            _ if [pointing, switched, left].contains(&at) => {
                // The frame's address is lost, but this handler's own frame has all values that were loaded from the
                // other frame.
                if at == pointing {
                    machine.sp = machine.regs[NUMBER];
                }
                machine.pc = machine.regs[0];
                machine.regs[NUMBER] = libc::SYS_restart_syscall as u64;
                self.0
            }
            _ if at == leaving => NonNull::new(machine.regs[FRAME] as *mut ucontext_t)?,
            _ if at > leaving && at < pointing => NonNull::new(machine.regs[0] as *mut ucontext_t)?,
            _ => return None,
        };
        Some(Self(outer))
    }

    /// Leaves the handler with the frame's registers, without rt_sigreturn(2).
    ///
    /// # Safety
    /// - Every handler that runs above this frame on the stack is abandoned, with everything that its functions hold.
    /// - [`Frame::can_be_left`] is true, and the frame's program counter is at an instruction that makes a system call,
    ///   to be replaced by restart_syscall.
    pub unsafe fn leave(self) -> ! {
        let frame = self.0.as_ptr().cast::<u8>();
        let vectors = frame.wrapping_add(self.vector_registers().unwrap_or(RECORDS));
        // SAFETY:
        // - the code loads every register that a system call keeps; the caller's promise for the rest.
        unsafe {
            asm!(
                "mov x19, {frame}",
                "mov x20, {vectors}",
                "b {leave}",
                frame = in(reg) frame,
                vectors = in(reg) vectors,
                leave = sym pagelift_leave_handler,
                options(noreturn)
            )
        }
    }
}

/// True if the instruction at this address makes a system call.
fn is_call(at: u64) -> bool {
    let mut code = [0; size_of::<u32>()];
    read_own(at as usize, &mut code) && code == CALL.to_le_bytes()
}
