//! Page walks and TLB misses, counted by the CPU's performance monitoring unit.
//!
//! Which events a CPU has, and what a program may conclude from them, differs by family. `families/` has one file for each,
//! with its source; [`Family::of`] finds the one of a CPU. [`Counting`] counts the events of a process, of what a thread
//! starts, or of all CPUs; [`Walks`] says what the counts mean. [`Sampling`] adds how long a walk takes on AMD CPUs, which do not
//! count that. What was not counted has its reason in place of a number.
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
