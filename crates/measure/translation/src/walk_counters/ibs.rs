//! Instruction-based sampling of AMD CPUs (IBS): the duration of page walks, which none of their events counts.

mod decoding;
mod pmu;
mod refills;
mod sampling;

pub use decoding::{Refill, Translation, code as decode_fetch, data as decode_operation};
pub use refills::{Estimate, LEAST_WALKS, Latency, SampledWalks, Samples, WalkTime};
pub use sampling::Sampling;
