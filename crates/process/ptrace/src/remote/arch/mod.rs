//! Code that differs between architectures: registers, the system call instruction, injected code.

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg_attr(target_arch = "aarch64", path = "guest_aarch64.rs")]
#[cfg_attr(target_arch = "x86_64", path = "guest_x86_64.rs")]
pub mod guest;
pub mod layout;
#[cfg(any(target_arch = "aarch64", test))]
mod signal_frame;
#[cfg(any(target_arch = "aarch64", test))]
pub mod unused_aarch64;
#[cfg(any(target_arch = "x86_64", test))]
pub mod unused_x86_64;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "aarch64")]
pub use aarch64::*;
#[cfg(target_arch = "aarch64")]
pub use unused_aarch64 as unused;
#[cfg(target_arch = "x86_64")]
pub use unused_x86_64 as unused;
#[cfg(target_arch = "x86_64")]
pub use x86_64::*;

/// First words of a call page, by which it is recognized.
pub const MARK: [u64; 2] = [u64::from_le_bytes(*b"pagelift"), u64::from_le_bytes(*b"callpage")];

/// The general registers, as returned by `PTRACE_GETREGSET` with `NT_PRSTATUS`.
pub type Registers = libc::user_regs_struct;

/// State of the system call in which a thread was stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(target_arch = "aarch64", expect(dead_code, reason = "registers never tell it there"))]
pub enum Interrupted {
    /// The thread was in no call, or the registers do not show it.
    No,
    /// The call was about to be restarted by the kernel, or has ended.
    Yes,
    /// The call has failed with EINTR.
    WithError,
}

/// A system call that a starting program is made to execute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuestCall {
    /// Its number.
    pub number: i64,
    /// Its arguments.
    pub arguments: [u64; 6],
}
