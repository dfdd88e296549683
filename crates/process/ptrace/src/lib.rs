//! Acts on another process from outside.
//!
//! A process is stopped with ptrace and executes single system calls for Pagelift; no code is left in it. The callers
//! decide what to lift: this crate only carries it out.
//!
//! - [`remote`] acts on a stopped process: its memory, registers and threads, and the system calls that it is made to make.
//! - [`start`] launches a program under a helper and follows it to its entry point.
//! - [`attach`] works on a program that runs already.
#![deny(unsafe_op_in_unsafe_fn)]

pub mod attach;
#[cfg(test)]
mod counted_signals;
mod remote;
mod start;
#[cfg(test)]
mod test_program;

pub use remote::refusal::{Tracer, refusal};
pub use remote::{InjectError, Injector, OutsideExecutor, ProcessExecutor, RemoteMemory};
pub use start::{
    After, AfterExec, EntryStop, ExecStop, Follower, Handler, Helper, LaunchError, MoveError, Program, launch,
    leave_session_of, move_image,
};
