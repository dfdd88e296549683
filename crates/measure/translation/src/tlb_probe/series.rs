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
}
