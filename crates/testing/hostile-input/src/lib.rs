//! Fuzz targets for everything that reads what another user controls: ELF files, the text of `/proc/PID/maps` and
//! `smaps`, symbols, records in another program's memory, orders in environment variables.
//!
//! A target must not panic, must end, and must keep its memory within [`MEMORY`], whatever the bytes are. The crate `fuzz`
//! runs the targets under libFuzzer; the test `bounded` runs them on damaged [`samples`] for a fixed number of rounds.
#![forbid(unsafe_code)]

pub mod mutation;
pub mod samples;
mod targets;

pub use targets::{TARGETS, Target, target};

/// The most memory that reading one input may take, in bytes. The inputs themselves have at most [`mutation::LONGEST`].
pub const MEMORY: u64 = 1 << 30;
