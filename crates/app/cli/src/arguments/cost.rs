//! Limits of the cost of a lift.

use clap::Args;
use options::{CostShare, Pages, StartCost};
use session::start::Payment;

/// Options of `run` about the cost of a lift.
#[derive(Args, Clone, Debug, PartialEq, Eq)]
pub struct CostArgs {
    /// Maximum time for copying memory at the start, or any. A helper lifts the rest when the program has used enough
    /// CPU time [default: 5ms with --pages auto; any with other pages or
    /// --require].
    #[arg(long, value_name = "TIME")]
    pub start_cost: Option<StartCost>,
    /// Maximum cost of the rest of the lift, as a share of the program's CPU time: the rest is lifted when the program
    /// has used enough.
    #[arg(long, value_name = "PERCENT", default_value = "1%")]
    pub cost: CostShare,
}

impl CostArgs {
    /// Limits of the cost, as [`Payment::of`].
    pub fn payment(&self, pages: Pages, require: bool) -> Option<Payment> {
        Payment::of(self.start_cost, self.cost, pages, require)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn only_auto_has_to_be_paid_for_unless_the_user_says_so() {
        let allowance = |start_cost: Option<&str>, pages, require| {
            let start_cost = start_cost.map(|word| word.parse().unwrap());
            CostArgs { start_cost, cost: CostShare::default() }.payment(pages, require).map(|paid| paid.allowance)
        };
        assert_eq!(allowance(None, Pages::Auto, false), Some(Duration::from_millis(5)));
        assert_eq!(allowance(None, Pages::Auto, true), None);
        assert_eq!(allowance(Some("any"), Pages::Auto, false), None);
        for pages in [Pages::Thp, Pages::Hugetlb, Pages::Image, Pages::File, Pages::FileThenImage] {
            assert_eq!(allowance(None, pages, false), None);
            assert_eq!(allowance(Some("2ms"), pages, true), Some(Duration::from_millis(2)));
        }
    }
}
