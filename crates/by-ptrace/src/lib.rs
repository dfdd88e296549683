//! Acts on another process from outside.
//!
//! A process is stopped with ptrace and executes single system calls for us; no code is written into it and nothing is
//! left in it. What to lift is decided elsewhere: here is only how.
#![deny(unsafe_op_in_unsafe_fn)]

#[cfg(target_env = "musl")]
mod abort;
mod arch;
mod auxiliary;
mod calls;
mod entry_stop;
mod executor;
mod farewell;
mod follow;
mod from_file;
mod guest_code;
mod injection;
mod launch;
pub mod live;
mod memory;
mod move_base;
mod patience;
mod program;
mod requests;
mod seccomp;
mod stack;
mod status;
mod thread_list;
mod threads;
mod wait;

pub use executor::ProcessExecutor;
pub use follow::{After, AfterExec, EntryStop, ExecStop, Follower, Handler};
pub use injection::{InjectError, Injector};
pub use launch::{Helper, LaunchError, launch};
pub use memory::RemoteMemory;
pub use move_base::{MoveError, move_image};
pub use program::Program;
pub use threads::StoppedThreads;
