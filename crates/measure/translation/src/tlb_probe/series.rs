//! The times of one page size.

use crate::tlb_probe::Backing;
use crate::tlb_probe::curve::{Curve, Levels};
use serde::Serialize;

/// One page size's times.
#[derive(Clone, Debug, Serialize)]
pub struct Series {
    /// The pages that back the memory.
    pub backing: Backing,
    /// Its times.
    pub curve: Curve,
    /// The result.
    pub levels: Levels,
    /// The results of all passes.
    pub ranges: LevelRanges,
}

impl Series {
    /// The times of one pass.
    pub(crate) fn new(backing: Backing, curve: Curve) -> Self {
        let levels = curve.levels();
        Self { backing, curve, ranges: LevelRanges::over([&levels].into_iter()), levels }
    }
}

/// The least and the most of each field of [`Levels`] in the passes that show it.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct LevelRanges {
    /// Bytes.
    pub first_reach: Option<(u64, u64)>,
    /// ns.
    pub second_hit: Option<(f64, f64)>,
    /// Bytes.
    pub second_reach: Option<(u64, u64)>,
    /// ns.
    pub walk: Option<(f64, f64)>,
}

impl LevelRanges {
    /// The ranges over passes.
    pub(crate) fn over<'a>(passes: impl Iterator<Item = &'a Levels> + Clone) -> Self {
        let bytes = |of: fn(&Levels) -> Option<u64>| {
            let values = passes.clone().filter_map(of);
            Some((values.clone().min()?, values.max()?))
        };
        let times = |of: fn(&Levels) -> Option<f64>| {
            let values = passes.clone().filter_map(of);
            Some((values.clone().reduce(f64::min)?, values.reduce(f64::max)?))
        };
        Self {
            first_reach: bytes(|levels| levels.first_reach),
            second_hit: times(|levels| levels.second_hit),
            second_reach: bytes(|levels| levels.second_reach),
            walk: times(|levels| levels.walk),
        }
    }
}
