//! The simulated kernel, and the conformance checks that it and the real executors must pass. Only tests use this crate.
#![forbid(unsafe_code)]

pub mod conformance;
pub mod simulated;
