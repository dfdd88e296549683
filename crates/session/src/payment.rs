//! The permitted cost of a program's lift.

use options::{CostShare, Pages, StartCost};
use std::time::Duration;

/// Limits of the cost of a program's lift.
#[derive(Clone, Copy, Debug)]
pub struct Payment {
    /// Time that copies may take at the start.
    pub allowance: Duration,
    /// The largest share of the program's CPU time for the rest, which is lifted later.
    pub share: CostShare,
}

impl Payment {
    /// Limits of the cost of a start; `None`: any price, at once. A source that the user names, and `--require`, are orders.
    pub fn of(start_cost: Option<StartCost>, share: CostShare, pages: Pages, require: bool) -> Option<Self> {
        let is_order = pages != Pages::Auto || require;
        match start_cost.unwrap_or(if is_order { StartCost::Any } else { StartCost::USUAL }) {
            StartCost::Any => None,
            StartCost::AtMost(allowance) => Some(Self { allowance, share }),
        }
    }

    /// Limits of the cost of a start without options about the cost.
    pub fn usual(pages: Pages) -> Option<Self> {
        Self::of(None, CostShare::default(), pages, false)
    }
}
