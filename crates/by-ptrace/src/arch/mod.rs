//! What differs between architectures: registers, the system call instruction, breakpoints.

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(any(target_arch = "aarch64", test))]
mod signal_frame;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "aarch64")]
pub use aarch64::*;
#[cfg(target_arch = "x86_64")]
pub use x86_64::*;

/// The general registers as `PTRACE_GETREGSET` with `NT_PRSTATUS` gives them.
pub type Registers = libc::user_regs_struct;

/// How a stopped thread stands to the system call it was in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(target_arch = "aarch64", expect(dead_code, reason = "registers never tell it there"))]
pub enum Interrupted {
    /// In none, or it cannot be told.
    No,
    /// In one that was about to be made again by the kernel, or has ended.
    Yes,
    /// In one that gave EINTR.
    WithError,
}
