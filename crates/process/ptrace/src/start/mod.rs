//! Starts a program and stops it at its exec and at its entry point.
//!
//! In the order of a start: `launch` starts the helper (on a separate `stack`; `abort` for musl) and executes the
//! `program`. In the helper, `follow` traces the process and calls a `handler` at each stop: at the exec stop,
//! `move_base` moves the executable; `entry_stop` stops the program at its entry point, which the helper polls at a
//! `pace`; there `threads` stops all other threads. `parent_waits` continues waits that the end of a child interrupts.
//! `reap_stub` lets a program that is the helper's parent wait for the helper's end.

#[cfg(target_env = "musl")]
mod abort;
mod entry_stop;
mod environment;
mod follow;
mod handler;
mod launch;
mod move_base;
mod pace;
mod parent_waits;
mod program;
mod reap_stub;
mod stack;
mod threads;

pub use follow::Follower;
pub use handler::{After, AfterExec, EntryStop, ExecStop, Handler};
pub use launch::{Helper, LaunchError, launch, leave_session_of};
pub use move_base::{MoveError, move_image};
pub use program::Program;
