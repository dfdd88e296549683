//! Waiting times of requests: the values of a window, and the result of an arm's blocks of windows.
//!
//! - **Value of a block**: the logarithm of the ratio of the 99th percentiles, treated over plain, each the geometric mean of
//!   two windows.
//! - **Interval**: as of throughput ([`crate::toggle`]), with plain against plain as the control.
//! - **Times of a state**: geometric means over the windows of the arm's own blocks, weighted as the blocks are in the centre of
//!   the ratio. So the ratio is the quotient of the two 99th percentiles beside it. Medians over all windows would not agree
//!   with it: the windows of control blocks, and of blocks that the trimmed mean cuts off, would count in one and not in the
//!   other.
//!
//! Clients that send the next request once they have the answer to the last one send fewer while a server hesitates, so that
//! long waits count less than with clients that keep their pace.

use crate::statistics::{BlockValue, Estimate, estimate, weights};
use crate::toggle::{Block, Treatment, WINDOWS};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The times until the answer of all requests of one window.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Requests that were answered.
    pub requests: u64,
    /// The median, in seconds.
    pub median: f64,
    /// 99 of 100 took no longer. Seconds.
    pub p99: f64,
}

impl Latency {
    /// From the times of all requests, in any order; absent if there are none.
    pub fn of(mut times: Vec<Duration>) -> Option<Self> {
        let last = times.len().checked_sub(1)?;
        let mut at = |hundredths: usize| {
            // The smallest time that this number of requests did not exceed.
            let place = (times.len() * hundredths).div_ceil(100).saturating_sub(1).min(last);
            times.select_nth_unstable(place).1.as_secs_f64()
        };
        Some(Self { median: at(50), p99: at(99), requests: last as u64 + 1 })
    }
}

/// The latencies of a block, in the order of its windows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BlockLatency {
    /// The order.
    pub block: Block,
    /// Number of the start of the processes.
    pub start: u32,
    /// The windows.
    pub windows: [Latency; WINDOWS],
}

impl BlockLatency {
    /// The logarithm of the ratio of the 99th percentiles, treated over plain. `None` if a time is none.
    pub fn value(&self) -> Option<f64> {
        let of = |wanted: bool| -> f64 {
            let windows = self.windows.iter().zip(self.block.treated()).filter(|(_, treated)| *treated == wanted);
            windows.map(|(window, _)| window.p99.ln()).sum::<f64>() / (WINDOWS / 2) as f64
        };
        Some(of(true) - of(false)).filter(|value| value.is_finite())
    }
}

/// The latencies of plain and of a treatment in the treatment's blocks, and their ratio.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Compared {
    /// The plain windows.
    pub plain: Latency,
    /// The treated windows.
    pub treated: Latency,
    /// Ratio of the 99th percentiles, treated over plain: below 1 is better. Absent below six blocks.
    pub p99: Option<Estimate>,
}

/// Compares a treatment with plain. `None` without a block in which each time is more than none. The seed steers only the
/// resampling.
pub fn compare(blocks: &[BlockLatency], treatment: Treatment, seed: u64) -> Option<Compared> {
    let of_arm = blocks.iter().filter(|block| block.block.treatment == treatment);
    let valued: Vec<_> = of_arm.filter_map(|block| Some((block, block.value()?))).collect();
    let values: Vec<BlockValue> =
        valued.iter().map(|(block, value)| BlockValue { generation: block.start, value: *value }).collect();
    let weighted: Vec<(&BlockLatency, f64)> = valued.iter().map(|(block, _)| *block).zip(weights(&values)).collect();
    Some(Compared {
        plain: over_windows(&weighted, false)?,
        treated: over_windows(&weighted, true)?,
        p99: estimate(&values, seed).map(|estimate| estimate.map(f64::exp)),
    })
}

/// The requests of the treated windows, or of the plain ones, and the weighted geometric means of their times.
fn over_windows(blocks: &[(&BlockLatency, f64)], treated: bool) -> Option<Latency> {
    let of_block = |(block, weight): &(&BlockLatency, f64)| {
        let weight = *weight / (WINDOWS / 2) as f64;
        let windows = block.windows.into_iter().zip(block.block.treated());
        windows.filter(|(_, is)| *is == treated).map(|(window, _)| (window, weight)).collect::<Vec<_>>()
    };
    let windows: Vec<(Latency, f64)> = blocks.iter().flat_map(of_block).collect();
    let mean = |of: fn(&Latency) -> f64| {
        let counted = windows.iter().filter(|(_, weight)| *weight > 0.0);
        counted.map(|(window, weight)| weight * of(window).ln()).sum::<f64>().exp()
    };
    let requests = windows.iter().map(|(window, _)| window.requests).sum();
    (!windows.is_empty()).then(|| Latency { requests, median: mean(|is| is.median), p99: mean(|is| is.p99) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;
    use crate::toggle::Blocks;

    fn times(micros: impl IntoIterator<Item = u64>) -> Vec<Duration> {
        micros.into_iter().map(Duration::from_micros).collect()
    }

    #[test]
    fn percentiles_are_times_that_were_measured() {
        assert_eq!(Latency::of(Vec::new()), None);
        let one = Latency::of(times([7])).unwrap();
        assert_eq!((one.requests, one.median, one.p99), (1, 7e-6, 7e-6));
        let hundred = Latency::of(times((1..=100).rev())).unwrap();
        assert_eq!((hundred.requests, hundred.median, hundred.p99), (100, 50e-6, 99e-6));
        let two = Latency::of(times([3, 1])).unwrap();
        assert_eq!((two.median, two.p99), (1e-6, 3e-6));
    }

    fn block(block: Block, factor: f64) -> BlockLatency {
        let in_force = |treated| treated && block.treatment != Treatment::Control;
        let window =
            |treated| Latency { requests: 100, median: 1e-3, p99: 4e-3 * if in_force(treated) { factor } else { 1.0 } };
        BlockLatency { block, start: 0, windows: block.treated().map(window) }
    }

    #[test]
    fn the_ratio_is_that_of_treated_to_plain_in_both_orders() {
        let blocks: Vec<BlockLatency> = Blocks::new(1, 3).take(24).map(|order| block(order, 0.8)).collect();
        let ratio = |treatment| compare(&blocks, treatment, 3).unwrap().p99.unwrap();
        let arm = ratio(Treatment::Arm(0));
        assert!((arm.centre - 0.8).abs() < 1e-9 && arm.low <= 0.8 + 1e-9 && arm.high >= 0.8 - 1e-9, "{arm:?}");
        let control = ratio(Treatment::Control);
        assert!((control.centre - 1.0).abs() < 1e-9, "{control:?}");
        assert_eq!(compare(&blocks[..5], Treatment::Arm(0), 3).unwrap().p99, None);
        assert_eq!(compare(&[], Treatment::Arm(0), 3), None);
        let mut none = blocks[0];
        none.windows[0].p99 = 0.0;
        assert_eq!(none.value(), None);
    }

    /// Noisy windows, and a control that is slower than the arm's blocks: as on a machine that others use, too.
    #[test]
    fn the_ratio_is_the_quotient_of_the_times_beside_it() {
        let mut random = Random::new(5);
        let mut noisy = |slower: f64| slower * 4e-4 * (random.below(3_000) as f64 / 1e3).exp();
        for starts in [1, 5] {
            let of = |(number, order): (usize, Block)| {
                let slower = if order.treatment == Treatment::Control { 3.0 } else { 1.0 };
                let window = |treated| {
                    let p99 = noisy(slower) * if treated { 1.5 } else { 1.0 };
                    Latency { requests: 100, median: p99 / 4.0, p99 }
                };
                BlockLatency {
                    block: order,
                    start: (number * starts / 50) as u32,
                    windows: order.treated().map(window),
                }
            };
            let blocks: Vec<BlockLatency> = Blocks::new(1, 3).take(50).enumerate().map(of).collect();
            let Compared { plain, treated, p99 } = compare(&blocks, Treatment::Arm(0), 3).unwrap();
            let ratio = p99.unwrap().centre;
            assert!((treated.p99 / plain.p99 - ratio).abs() < 1e-9, "{treated:?} {plain:?} {ratio}");
            assert_eq!((plain.requests, treated.requests), (50 * 100, 50 * 100));
        }
    }
}
