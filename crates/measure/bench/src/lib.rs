//! Measures whether a lift pays.
//!
//! [`toggle`] switches one live program between plain and lifted in random blocks and reads its work and its CPU time;
//! [`servers::live`] starts the program and its load if it does not run yet; [`whole_runs`] runs a command plain and
//! lifted in turn; [`servers`] starts servers side by side and loads one at a time. All compare plain with plain in the
//! same way, and [`record`] keeps every sample, so that the answer can be computed again from the file alone.
//! [`measure::toggle`] computes the answer from the samples.
#![forbid(unsafe_code)]

mod conduct;
mod observation;
mod postgres_address;
pub mod record;
mod retry;
pub mod servers;
pub mod toggle;
mod tree;
mod walks;
pub mod whole_runs;
pub mod work;

pub use conduct::{Limits, Progress};
pub use measure::record::Ended;
pub use tree::{forks_of, of_one_program};

/// Errors before the first window; later failures end the experiment and are part of its record.
#[derive(Debug, thiserror::Error)]
pub enum ExperimentError {
    /// The work cannot be counted.
    #[error(transparent)]
    Work(#[from] work::WorkError),
    /// The process cannot be measured.
    #[error("the CPU time of process {pid} cannot be read: {source}; needed: a process that runs")]
    NoCpuTime {
        /// The process.
        pid: i32,
        /// The kernel's error.
        source: nix::errno::Errno,
    },
    /// A switch is not possible.
    #[error("{0}")]
    Switch(String),
    /// The record cannot be written.
    #[error("the samples cannot be written")]
    Record(#[source] std::io::Error),
}
