//! What differs between architectures: registers, the system call instruction, code of ours.

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg_attr(target_arch = "aarch64", path = "guest_aarch64.rs")]
#[cfg_attr(target_arch = "x86_64", path = "guest_x86_64.rs")]
pub mod guest;
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

/// A system call that a starting program makes for us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuestCall {
    /// Its number.
    pub number: i64,
    /// Its arguments.
    pub arguments: [u64; 6],
}
