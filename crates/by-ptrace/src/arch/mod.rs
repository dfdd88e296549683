//! What differs between architectures: registers, the system call instruction, breakpoints.

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "aarch64")]
pub use aarch64::*;
#[cfg(target_arch = "x86_64")]
pub use x86_64::*;

/// The general registers as `PTRACE_GETREGSET` with `NT_PRSTATUS` gives them.
pub type Registers = libc::user_regs_struct;
