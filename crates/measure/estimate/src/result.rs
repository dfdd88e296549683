//! The result.

use crate::places::Kind;
use crate::tlb_model::Geometry;
use serde::Serialize;

/// The part of a run that is traced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Slice {
    /// Instructions before it.
    pub skip: u64,
    /// Seconds before it, as long as the program takes under QEMU.
    pub after_seconds: u64,
    /// Its first instructions, which fill the TLBs and are not counted.
    pub warm_up: u64,
    /// Instructions that are counted.
    pub instructions: u64,
}

/// The counts for one side of the TLBs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Side {
    /// Accesses that the first level missed, page walks included.
    pub misses: u64,
    /// Accesses that had to walk the page tables.
    pub walks: u64,
}

/// Page walks by the kind of accessed memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct WalksOfKind {
    /// The kind.
    pub kind: Kind,
    /// By instruction fetches.
    pub code: u64,
    /// By loads and stores.
    pub data: u64,
}

/// Which pages a variant has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PagesOf {
    /// As today.
    Plain,
    /// Objects as planned.
    Lifted,
    /// Objects as planned, and the whole huge pages of anonymous memory.
    LiftedWithHeap,
}

/// The result for one variant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Variant {
    /// Its pages.
    pub pages: PagesOf,
    /// Instruction fetches.
    pub code: Side,
    /// Loads and stores.
    pub data: Side,
    /// Walks by the kind of accessed memory; only kinds with walks.
    pub walks: Vec<WalksOfKind>,
}

/// The traced run, and the tracer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Trace {
    /// QEMU and its version.
    pub tool: String,
    /// The requested part.
    pub slice: Slice,
    /// Instructions counted.
    pub instructions: u64,
    /// Threads that executed at least one.
    pub threads: usize,
    /// Cores that the threads shared; `None`: each thread had its own.
    pub cores: Option<u32>,
    /// The program or the user ended before the slice was full.
    pub ended_early: bool,
}

/// An estimate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Estimate {
    /// Always `pagelift-estimate`.
    pub format: &'static str,
    /// Grows with every change that breaks a reader.
    pub version: u32,
    /// The executed command.
    pub command: Vec<String>,
    /// The CPU that was simulated.
    pub cpu: Geometry,
    /// The trace.
    pub trace: Trace,
    /// Bytes that the plan puts on huge pages.
    pub planned_bytes: u64,
    /// Plain, lifted, lifted with the heap.
    pub variants: Vec<Variant>,
}

impl Estimate {
    /// Events per 1,000 instructions.
    pub fn per_thousand(&self, count: u64) -> f64 {
        count as f64 * 1000.0 / self.trace.instructions.max(1) as f64
    }
}

impl Side {
    /// The share of another side's walks that this one saves, from 0 to 1; negative if it has more. `None` if the other
    /// has none.
    pub fn walks_saved_of(&self, other: &Self) -> Option<f64> {
        (other.walks > 0).then(|| 1.0 - self.walks as f64 / other.walks as f64)
    }
}
