//! Page walks and TLB misses, counted by the CPU's performance monitoring unit.
//!
//! The events of a CPU, and the conclusions from them, differ by family. `families/` has one file for each, with its
//! source; [`Family::of`] finds the one for a CPU. [`Counting`] counts the events of a process, of a thread's
//! descendants, or of all CPUs; [`Walks`] computes their meaning. [`Sampling`] adds the duration of a walk on AMD CPUs,
//! which do not count that. A quantity that was not counted has its reason instead of a number.
#![forbid(unsafe_code)]

mod counting;
#[cfg(test)]
mod devices;
mod family;
mod formula;
mod ibs;
mod identity;

pub use counting::{Counting, NoCounters, Target};
pub use family::{EventCode, Family, Side, What, families};
pub use formula::{Counted, Counts, EventCount, Measured, SideWalks, Walks};
pub use ibs::{
    Estimate, LEAST_WALKS, Latency, Refill, SampledWalks, Samples, Sampling, Translation, WalkTime, decode_fetch,
    decode_operation,
};
pub use identity::CpuIdentity;
