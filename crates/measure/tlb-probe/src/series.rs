//! The times of one page size.

use crate::Backing;
use crate::curve::{Curve, Levels};
use serde::Serialize;

/// One page size's times.
#[derive(Clone, Debug, Serialize)]
pub struct Series {
    /// What the memory lies on.
    pub backing: Backing,
    /// Its times.
    pub curve: Curve,
    /// What they show.
    pub levels: Levels,
}
