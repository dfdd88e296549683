//! A simulated kernel: a model of one process's address space in which every call can be made to fail.
//!
//! It keeps the rules that decide whether a lift is safe, as strictly as the strictest kernel does: pool pages are
//! never split, are moved only if the kernel can, and run out; a mapping beyond the limit is refused; `mremap` removes
//! the mappings at its destination before all checks; new mappings are placed in the highest gap that fits, including a
//! gap that a move has just left. Accesses that the kernel would answer with a signal, and pages that are writable and
//! executable at once, are recorded as violations.
//!
//! Contents are not stored byte by byte: each range of memory records which original bytes it shows, so a model of a 1
//! GB program is as fast as one of a small program, and comparisons are still exact.

mod area;
mod calls;
mod contents;
mod files;
mod kernel;
mod other_thread;
mod script;
mod transparent;

pub use contents::SimulatedFile;
pub use contents::{Content, Stretch};
pub use kernel::{SimulatedImage, SimulatedKernel, SimulatedMachine, SimulatedThp};
pub use script::{Call, Failure, Mode, Script, TakenPart, Taking};

/// Error numbers, the same on every architecture that Pagelift runs on (errno(3)).
pub mod errno {
    #![allow(missing_docs)]
    pub const EPERM: i32 = 1;
    pub const ENOENT: i32 = 2;
    pub const ESRCH: i32 = 3;
    pub const EINTR: i32 = 4;
    pub const EIO: i32 = 5;
    pub const EAGAIN: i32 = 11;
    pub const ENOMEM: i32 = 12;
    pub const EACCES: i32 = 13;
    pub const EFAULT: i32 = 14;
    pub const EBUSY: i32 = 16;
    pub const EEXIST: i32 = 17;
    pub const EINVAL: i32 = 22;
    pub const EMFILE: i32 = 24;
    pub const EHWPOISON: i32 = 133;
}
