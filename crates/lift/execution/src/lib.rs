//! Executes the steps of a plan through any [`Executor`] and verifies the outcome.
//!
//! The engine holds the promise that a range is either lifted or untouched: everything that can fail comes before the
//! one call that swaps the range. It makes no system calls; the executors do. The crate `lift-simulation` has an
//! executor that is a simulated kernel, in which every step can be made to fail.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

mod engine;
mod errno;
mod executor;
mod gap;
mod move_aside;
mod outcome;
mod report;
mod restore;
mod restoring;
mod sealing;
mod staging;
mod swapping;
mod verify;

pub use engine::{CopyLimit, execute, execute_within};
pub use errno::ErrnoText;
pub use executor::{Backing, CallError, ENOSYS, Executor, FileMapping, map_cut, persist};
pub use outcome::{FailedAttempt, LiftOutcome, RangeOutcome, Sealing, Uncovered};
pub use report::{CoveredBySource, Report};
pub use restore::{RestoredPart, RestoredRange, move_to_ordinary, restore};
pub use sealing::seal;
pub use verify::{Difference, compare, exchanges_mappings};
