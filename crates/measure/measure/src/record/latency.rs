//! The latencies in a record.

use crate::latency::{BlockLatency, Compared, Latency, compare};
use crate::record::{Record, TimedBlock};
use crate::statistics::Estimate;
use crate::toggle::Treatment;
use serde::Serialize;

/// Latencies of an arm, and plain latencies in the arm's blocks.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ArmLatency {
    /// Requests of the arm's windows, and their times.
    pub latency: Latency,
    /// Requests of the plain windows of the same blocks, and their times.
    pub plain: Latency,
    /// 99th percentiles, treated over plain: below 1 is better. Absent below six blocks.
    pub p99: Option<Estimate>,
}

/// Latencies of all arms.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Latencies {
    /// The arms by number; absent without a window.
    pub arms: Vec<Option<ArmLatency>>,
    /// 99th percentiles of plain against itself.
    pub control: Option<Estimate>,
}

impl Record {
    /// The latencies of the requests; absent if none were measured.
    pub fn latencies(&self) -> Option<Latencies> {
        let block = |timed: &TimedBlock| {
            let (block, start) = (timed.measured.block, timed.measured.start);
            timed.latency.map(|windows| BlockLatency { block, start, windows })
        };
        let blocks: Vec<BlockLatency> = self.timed_blocks().filter_map(block).collect();
        let of = |treatment| compare(&blocks, treatment, self.header.seed);
        let arm = |arm| {
            let Compared { plain, treated, p99 } = of(Treatment::Arm(arm))?;
            Some(ArmLatency { latency: treated, plain, p99 })
        };
        let arms: Vec<_> = (0..self.header.arms.len()).map(arm).collect();
        let is_measured = arms.iter().any(Option::is_some);
        is_measured.then(|| Latencies { arms, control: of(Treatment::Control).and_then(|control| control.p99) })
    }
}
