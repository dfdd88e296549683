//! Frames on x86-64 (`struct rt_sigframe`, `arch/x86/kernel/signal_64.c`).

use super::{Frame, State};
use crate::call::Call;
use crate::sys::read_own;
use core::arch::{asm, global_asm};
use core::ffi::c_int;
use core::mem::offset_of;
use core::ptr::NonNull;
use libc::{mcontext_t, ucontext_t};

const CALL: [u8; 2] = [0x0f, 0x05];
const INTERRUPTED: i64 = -(libc::EINTR as i64);
/// `SS_AUTODISARM` (sigaltstack(2)).
const SS_AUTODISARM: c_int = 1 << 31;
/// Alignment of the saved floating-point state for XRSTOR, in bytes.
const STATE_ALIGNMENT: usize = 64;

/// Bytes from a frame's beginning to one of its registers.
const fn offset_of_register(number: c_int) -> usize {
    offset_of!(ucontext_t, uc_mcontext) + offset_of!(mcontext_t, gregs) + number as usize * size_of::<i64>()
}

unsafe extern "C" {
    /// The code below. Takes the frame in r12.
    fn pagelift_leave_handler();
    /// The address after the call that sets the mask; the frame is in r12.
    static pagelift_leaving: u8;
    /// The last instruction: everything is loaded, r11 has the target.
    static pagelift_left: u8;
}

// `struct _fpx_sw_bytes` (`asm/sigcontext.h`) occupies the last 48 of the 512 bytes of the legacy state.
global_asm!(
    ".pushsection .text.pagelift_leave_handler, \"ax\", @progbits",
    ".hidden pagelift_leave_handler",
    ".globl pagelift_leave_handler",
    ".type pagelift_leave_handler, @function",
    ".hidden pagelift_leaving",
    ".globl pagelift_leaving",
    ".hidden pagelift_left",
    ".globl pagelift_left",
    "pagelift_leave_handler:",
    "mov rdi, [r12 + {state}]",
    "cmp dword ptr [rdi + 464], 0x46505853", // FP_XSTATE_MAGIC1
    "jne 2f",
    "mov eax, [rdi + 472]", // the parts of the state that are saved
    "mov edx, [rdi + 476]",
    "xrstor64 [rdi]",
    "jmp 3f",
    "2:",
    "fxrstor64 [rdi]",
    "3:",
    "mov eax, {rt_sigprocmask}",
    "mov edi, {setmask}",
    "lea rsi, [r12 + {mask}]",
    "xor edx, edx",
    "mov r10d, 8",
    "syscall",
    "pagelift_leaving:",
    "mov rcx, r12",
    "mov rax, [rcx + {flags}]",
    "and eax, 0xfffffeff", // without the trap flag
    "push rax",
    "popfq",
    "mov rax, [rcx + {rax}]",
    "mov rbx, [rcx + {rbx}]",
    "mov rdx, [rcx + {rdx}]",
    "mov rsi, [rcx + {rsi}]",
    "mov rdi, [rcx + {rdi}]",
    "mov rbp, [rcx + {rbp}]",
    "mov r8, [rcx + {r8}]",
    "mov r9, [rcx + {r9}]",
    "mov r10, [rcx + {r10}]",
    "mov r12, [rcx + {r12}]",
    "mov r13, [rcx + {r13}]",
    "mov r14, [rcx + {r14}]",
    "mov r15, [rcx + {r15}]",
    "mov r11, [rcx + {rip}]",
    "mov rsp, [rcx + {rsp}]",
    "pagelift_left:",
    "jmp r11", // a system call changes rcx and r11 in any case
    ".size pagelift_leave_handler, . - pagelift_leave_handler",
    ".popsection",
    state = const offset_of!(ucontext_t, uc_mcontext) + offset_of!(mcontext_t, fpregs),
    mask = const offset_of!(ucontext_t, uc_sigmask),
    rt_sigprocmask = const libc::SYS_rt_sigprocmask,
    setmask = const libc::SIG_SETMASK,
    flags = const offset_of_register(libc::REG_EFL),
    rax = const offset_of_register(libc::REG_RAX),
    rbx = const offset_of_register(libc::REG_RBX),
    rdx = const offset_of_register(libc::REG_RDX),
    rsi = const offset_of_register(libc::REG_RSI),
    rdi = const offset_of_register(libc::REG_RDI),
    rbp = const offset_of_register(libc::REG_RBP),
    r8 = const offset_of_register(libc::REG_R8),
    r9 = const offset_of_register(libc::REG_R9),
    r10 = const offset_of_register(libc::REG_R10),
    r12 = const offset_of_register(libc::REG_R12),
    r13 = const offset_of_register(libc::REG_R13),
    r14 = const offset_of_register(libc::REG_R14),
    r15 = const offset_of_register(libc::REG_R15),
    rip = const offset_of_register(libc::REG_RIP),
    rsp = const offset_of_register(libc::REG_RSP),
);

/// True if the thread has a shadow stack. It has an entry for the handler that only rt_sigreturn removes.
fn has_shadow_stack() -> bool {
    let pointer: u64;
    // SAFETY:
    // - reads a register; on CPUs and in processes without shadow stacks the instruction does nothing.
    unsafe { asm!("xor eax, eax", "rdsspq rax", out("rax") pointer, options(nomem, nostack)) };
    pointer != 0
}

impl Frame {
    /// The frame shows all arguments of a call that has ended.
    pub const SHOWS_ARGUMENTS: bool = true;

    fn register(&self, number: c_int) -> i64 {
        self.get().uc_mcontext.gregs[number as usize]
    }

    fn set_register(&mut self, number: c_int, value: i64) {
        self.get_mut().uc_mcontext.gregs[number as usize] = value;
    }

    pub fn state(&self, call: &Call) -> State {
        let arguments = [libc::REG_RDI, libc::REG_RSI, libc::REG_RDX, libc::REG_R10, libc::REG_R8, libc::REG_R9];
        let same = arguments.map(|number| self.register(number) as u64) == call.arguments
            && self.register(libc::REG_RSP) as u64 == call.stack;
        let before = call.next_instruction.wrapping_sub(CALL.len() as u64);
        match (self.register(libc::REG_RIP) as u64, self.register(libc::REG_RAX)) {
            (at, INTERRUPTED) if same && at == call.next_instruction && is_call(before) => State::Ended,
            (at, number) if same && at == before && number == call.number && is_call(before) => State::AboutToCall,
            _ => State::Elsewhere,
        }
    }

    /// `None`: the error is in place of the call's number.
    pub fn ended_call(&self) -> Option<Call> {
        None
    }

    /// True if the thread is about to make restart_syscall(2).
    pub fn is_before_restart(&self) -> bool {
        self.register(libc::REG_RAX) == libc::SYS_restart_syscall && is_call(self.register(libc::REG_RIP) as u64)
    }

    pub fn make_again(&mut self, call: &Call) {
        self.set_register(libc::REG_RAX, call.number);
        self.set_register(libc::REG_RIP, call.next_instruction.wrapping_sub(CALL.len() as u64) as i64);
    }

    pub fn make_restart(&mut self, call: &Call) {
        self.make_again(&Call { number: libc::SYS_restart_syscall, ..*call });
    }

    pub fn give_error(&mut self, call: &Call) {
        self.set_register(libc::REG_RAX, INTERRUPTED);
        self.set_register(libc::REG_RIP, call.next_instruction as i64);
    }

    /// False if the frame has state that only rt_sigreturn restores.
    pub fn can_be_left(&self) -> bool {
        let context = self.get();
        let state = context.uc_mcontext.fpregs as usize;
        state != 0
            && state.is_multiple_of(STATE_ALIGNMENT)
            && context.uc_stack.ss_flags & SS_AUTODISARM == 0
            && !has_shadow_stack()
    }

    /// The frame to be left, if the signal has come during [`Frame::leave`].
    pub fn unfinished_leave(&mut self) -> Option<Self> {
        let (leaving, left) = (&raw const pagelift_leaving as i64, &raw const pagelift_left as i64);
        let at = self.register(libc::REG_RIP);
        let outer = match at {
            _ if at == left => {
                // The stack is the program's again, and this handler's frame may overlap the other frame.
                let target = self.register(libc::REG_R11);
                self.set_register(libc::REG_RIP, target);
                self.0
            }
            _ if at == leaving => NonNull::new(self.register(libc::REG_R12) as *mut ucontext_t)?,
            _ if at > leaving && at < left => NonNull::new(self.register(libc::REG_RCX) as *mut ucontext_t)?,
            _ => return None,
        };
        Some(Self(outer))
    }

    /// Leaves the handler with the frame's registers, without rt_sigreturn(2).
    ///
    /// # Safety
    /// - Every handler that runs above this frame on the stack is abandoned, with everything that its functions hold.
    /// - [`Frame::can_be_left`] is true, and the frame's program counter is at an instruction that makes a system call.
    pub unsafe fn leave(self) -> ! {
        // SAFETY:
        // - the code loads every register that a system call keeps; the caller's promise for the rest.
        unsafe { asm!("jmp {leave}", leave = sym pagelift_leave_handler, in("r12") self.0.as_ptr(), options(noreturn)) }
    }
}

/// True if the instruction at this address makes a system call.
fn is_call(at: u64) -> bool {
    let mut code = CALL.map(|_| 0);
    read_own(at as usize, &mut code) && code == CALL
}
