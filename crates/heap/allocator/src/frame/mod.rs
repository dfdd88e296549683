//! The frame that the kernel has put on the stack for a signal's handler, and a way out of the handler that leaves the
//! kernel's memory of an interrupted wait alone.
//!
//! For a timed wait, the kernel keeps the remaining time for restart_syscall(2). rt_sigreturn(2), by which a handler
//! returns, discards it. So a handler that has interrupted such a wait acts like the kernel at rt_sigreturn: it sets
//! the signal mask, loads all registers from the frame, and jumps to the instruction of the call, to make
//! restart_syscall there.
//!
//! Once the mask is set, a signal may arrive at any instruction. A handler of the program's returns by rt_sigreturn;
//! restart_syscall then gives EINTR, as the wait itself would have. A handler of ours finds the instruction that it has
//! interrupted (`unfinished_leave`), and begins again.

#[cfg_attr(target_arch = "x86_64", path = "x86_64.rs")]
#[cfg_attr(target_arch = "aarch64", path = "aarch64.rs")]
mod machine;

use core::ptr::NonNull;
use libc::ucontext_t;

/// The thread's position relative to a call that it was seen in.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Behind it, and it has given EINTR.
    Ended,
    /// Before it: the kernel makes it again.
    AboutToCall,
    Elsewhere,
}

/// The frame of a handler that runs now, on this thread.
pub struct Frame(NonNull<ucontext_t>);

impl Frame {
    /// # Safety
    /// The kernel has passed `context` to a handler with SA_SIGINFO, and that handler, on this thread, does not return
    /// as long as the value is used.
    pub unsafe fn of(context: NonNull<ucontext_t>) -> Self {
        Self(context)
    }

    fn get(&self) -> &ucontext_t {
        // SAFETY:
        // - by the promise of `of` the frame exists, and only this value's owner reads it.
        unsafe { self.0.as_ref() }
    }

    fn get_mut(&mut self) -> &mut ucontext_t {
        // SAFETY:
        // - as in `get`, and `self` is borrowed exclusively.
        unsafe { self.0.as_mut() }
    }

    /// The signals that are blocked when the handler has returned.
    pub fn signal_mask(&self) -> u64 {
        let mask = &raw const self.get().uc_sigmask;
        // SAFETY:
        // - the kernel's signal set has 8 bytes and begins at the same address as the C library's longer one.
        unsafe { mask.cast::<u64>().read() }
    }
}
