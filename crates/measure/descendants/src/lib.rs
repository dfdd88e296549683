//! Ends started programs with all their descendants, and no other process.
//!
//! A process is identified by its PID and the time of its start: a PID can be reused by another process at any time
//! after its owner was waited for.
#![forbid(unsafe_code)]

mod earlier;
mod end;
mod started;

pub use earlier::Earlier;
pub use end::{end, kill_with_descendants};
pub use started::{StartedProcess, of_group, with_descendants};
