//! Models of the TLBs of known CPUs, fed by the pages that a program touches.
//!
//! [`Geometry`] says what a CPU has, from [`known_cpus`] or from CPUID by [`own_cpu`]; [`Tlbs`] simulates it for one
//! thread that has a core for itself. What is not modelled: speculative and prefetching accesses, the kernel's own,
//! other threads of the core, invalidations, and entries that a CPU makes of several neighbouring pages (AMD's
//! coalescing, Arm's block entries, contiguous bits).
#![forbid(unsafe_code)]

mod array;
mod cpuid;
mod geometry;
mod known;
mod own_cpu;
mod tlbs;
pub mod trace;

pub use cpuid::{CpuidError, Leaf, geometry_of};
pub use geometry::{ArrayShape, Geometry, Index, Replacement, Second, Sizes};
pub use known::{known_cpu, known_cpus};
pub use own_cpu::own_cpu;
pub use tlbs::{Outcome, Side, Tlbs, Translation};
