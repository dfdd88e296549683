//! Models of the TLBs of known CPUs, fed by the pages that a program touches.
//!
//! [`Geometry`] describes the TLBs of a CPU, from CPUID or from [`known_cpus`] ([`own_cpu`]); [`Tlbs`] simulates it for
//! one thread that has a core for itself. Not modelled: speculative and prefetching accesses, the kernel's accesses,
//! other threads on the core, and invalidations. Entries that a CPU makes from several neighbouring pages (AMD's
//! coalescing, Arm's contiguous bit) are modelled if [`Geometry::joined`] has their number.
#![forbid(unsafe_code)]

mod array;
mod cpuid;
mod geometry;
mod known;
mod own_cpu;
mod processors;
mod sweep;
mod tlbs;
pub mod trace;

pub use cpuid::{CpuidError, Leaf, geometry_of};
pub use geometry::{ArrayShape, Geometry, Index, Joined, Replacement, Second, Sizes};
pub use known::{known_cpu, known_cpus};
pub use own_cpu::own_cpu;
pub use processors::Processor;
pub use sweep::{Shares, sweep};
pub use tlbs::{Lookup, Side, Tlbs, Translation};
