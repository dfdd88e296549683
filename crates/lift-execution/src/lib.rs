//! Executes the steps of a plan through any [`Executor`] and verifies what became of them.
//!
//! The engine holds the promise that a range is either lifted or untouched: everything that can fail comes before the
//! one call that swaps the range. It knows no system call; the executors do, and one of them is a simulated kernel in
//! which every step can be made to fail.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

mod aside;
pub mod conformance;
mod engine;
mod errno;
mod executor;
mod outcome;
mod restoring;
pub mod simulated;
mod staging;
mod verify;

pub use engine::execute;
pub use errno::ErrnoText;
pub use executor::{Backing, CallError, Executor};
pub use outcome::{FailedAttempt, Outcome, RangeOutcome, Uncovered};
pub use verify::{Difference, compare};
