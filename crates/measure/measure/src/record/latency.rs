//! The latencies in a record.

use crate::latency::{BlockLatency, Latency, p99_ratio};
use crate::record::{Record, TimedBlock};
use crate::statistics::{Estimate, median};
use crate::toggle::Treatment;
use serde::Serialize;

/// Latencies of one state, and the comparison with plain.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ArmLatency {
    /// Requests of all windows, and medians over the windows.
    pub latency: Latency,
    /// 99th percentiles, treated over plain: below 1 is better. Absent below six blocks, and of plain.
    pub p99: Option<Estimate>,
}

/// Latencies of all states.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Latencies {
    /// Windows in which nothing was in force.
    pub plain: Latency,
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
        let plain = over_windows(&blocks, None)?;
        let seed = self.header.seed;
        let arm = |arm| {
            let latency = over_windows(&blocks, Some(arm))?;
            Some(ArmLatency { latency, p99: p99_ratio(&blocks, Treatment::Arm(arm), seed) })
        };
        let arms = (0..self.header.arms.len()).map(arm).collect();
        Some(Latencies { plain, arms, control: p99_ratio(&blocks, Treatment::Control, seed) })
    }
}

/// All windows in which an arm was in force, or none.
fn over_windows(blocks: &[BlockLatency], arm: Option<usize>) -> Option<Latency> {
    let of_block = |block: &BlockLatency| {
        let in_force = |treated: bool| block.block.treatment.arm().filter(|_| treated);
        let windows = block.windows.into_iter().zip(block.block.treated());
        windows.filter(|(_, treated)| in_force(*treated) == arm).map(|(window, _)| window).collect::<Vec<_>>()
    };
    let windows: Vec<Latency> = blocks.iter().flat_map(of_block).collect();
    let over = |of: fn(&Latency) -> f64| median(&windows.iter().map(of).collect::<Vec<_>>());
    Some(Latency {
        requests: windows.iter().map(|window| window.requests).sum(),
        median: over(|window| window.median)?,
        p99: over(|window| window.p99)?,
    })
}
