//! The agent's budget of CPU time: a bucket that fills at a fixed rate up to its depth.

use crate::decision::{Reason, Refusal};
use crate::rules::Share;
use std::time::Duration;

/// Time for which an unused budget is kept.
const DEPTH: Duration = Duration::from_secs(60);

/// CPU time that may be spent.
#[derive(Clone, Copy, Debug)]
pub struct CpuBudget {
    rate: f64,
    /// Seconds that are left; negative after a lift that took longer than estimated.
    left: f64,
}

impl CpuBudget {
    /// A full budget of this share of one core.
    pub fn new(share: Share) -> Self {
        Self { rate: share.ratio(), left: share.ratio() * DEPTH.as_secs_f64() }
    }

    /// A budget of this share of one core with this time left.
    pub fn with(share: Share, left: Duration) -> Self {
        let budget = Self::new(share);
        Self { left: left.as_secs_f64().min(budget.depth()), ..budget }
    }

    /// Changes the share. The rest is kept, up to the new depth.
    pub fn set(&mut self, share: Share) {
        self.rate = share.ratio();
        self.left = self.left.min(self.depth());
    }

    fn depth(&self) -> f64 {
        self.rate * DEPTH.as_secs_f64()
    }

    /// Adds the share of `elapsed` and subtracts `spent`.
    pub fn advance(&mut self, elapsed: Duration, spent: Duration) {
        self.left = (self.left + elapsed.as_secs_f64() * self.rate - spent.as_secs_f64()).min(self.depth());
    }

    /// CPU time that must be left for this cost, at most half of a full budget: scans always use a part of the budget.
    pub fn needed(&self, cost: Duration) -> Duration {
        cost.min(Duration::from_secs_f64(self.depth() / 2.0))
    }

    /// True if there is room for this cost.
    pub fn permits(&self, cost: Duration) -> bool {
        self.left >= self.needed(cost).as_secs_f64()
    }

    /// Why there is no room for this cost.
    pub fn refusal(&self, cost: Duration) -> Option<Refusal> {
        let (left, needed) = (self.left().as_millis(), self.needed(cost).as_millis());
        let text = || format!("{left} ms of the agent's CPU budget are left; needed: {needed} ms");
        (!self.permits(cost)).then(|| Refusal::new(Reason::CpuBudget, text()))
    }

    /// True if a scan may begin: something is left, or the time since the last scan has paid for that scan. So a
    /// measurement that has used more than a full budget does not end the scans.
    pub fn permits_scan(&self, last_cost: Duration, since: Duration) -> bool {
        self.left > 0.0 || since.as_secs_f64() * self.rate >= last_cost.as_secs_f64()
    }

    /// CPU time that is left.
    pub fn left(&self) -> Duration {
        Duration::from_secs_f64(self.left.max(0.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_was_spent_must_be_earned_again() {
        let mut budget = CpuBudget::new(Share::percent(0.5));
        let cost = Duration::from_millis(100);
        assert_eq!(budget.left(), Duration::from_millis(300));
        assert!(budget.permits(cost));
        budget.advance(Duration::ZERO, Duration::from_millis(250));
        assert!(!budget.permits(cost));
        budget.advance(Duration::from_secs(11), Duration::ZERO);
        assert!(budget.permits(cost));
        budget.advance(Duration::from_secs(3600), Duration::ZERO);
        assert_eq!(budget.left(), Duration::from_millis(300), "nothing is caught up");
        assert!(budget.permits(Duration::from_secs(9)), "a full budget permits one large lift");
        budget.set(Share::percent(0.1));
        assert_eq!(budget.left(), Duration::from_millis(60));
    }

    #[test]
    fn scans_leave_room_for_a_large_lift() {
        let mut budget = CpuBudget::new(Share::percent(0.5));
        for _ in 0..100 {
            budget.advance(Duration::from_secs(10), Duration::from_millis(10));
        }
        let cost = Duration::from_millis(400);
        assert!(budget.permits(cost) && budget.needed(cost) == Duration::from_millis(150));
        budget.advance(Duration::ZERO, Duration::from_secs(5));
        let scan = Duration::from_millis(5);
        assert!(!budget.permits(cost) && !budget.permits_scan(scan, Duration::from_millis(999)));
        assert!(budget.permits_scan(scan, Duration::from_secs(1)), "it has been earned");
    }

    proptest! {
        /// Over any time, no more is permitted than the rate, the depth and one cost allow.
        #[test]
        fn the_rate_holds(steps in proptest::collection::vec((0u64..20_000, 0u64..500), 1..200)) {
            let (mut budget, mut spent, mut time) = (CpuBudget::new(Share::percent(0.5)), 0.0, 0.0);
            for (elapsed, cost) in steps {
                let cost = Duration::from_millis(cost);
                let spends = if budget.permits(cost) { cost } else { Duration::ZERO };
                budget.advance(Duration::from_millis(elapsed), spends);
                spent += spends.as_secs_f64();
                time += elapsed as f64 / 1e3;
                prop_assert!(spent <= 0.3 + time * 0.005 + 0.5 + 1e-6);
            }
        }
    }
}
