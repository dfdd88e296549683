//! Divides a plan into ranges that are lifted at the start of a program, and ranges that are lifted when it has paid
//! for them.

use crate::{Costs, Method, Part, Plan, Price, RangeLift, Reason, Refusal};
use address_space::RangeSet;
use alloc::vec::Vec;
use core::cmp::Reverse;
use core::time::Duration;
use options::CostShare;

/// Costs and limits by which a plan is divided into lifts at the start and later lifts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// The costs of this machine.
    pub costs: Costs,
    /// Time that copies may take at the start.
    pub allowance: Duration,
    /// The largest share of the program's CPU time for the rest.
    pub share: CostShare,
    /// Why the rest is not lifted later, if so: a clause about the copy.
    pub never_later: Option<&'static str>,
}

/// The costs that a program has paid for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Paid {
    /// The costs of this machine.
    pub costs: Costs,
    /// The price of all copies may be this time.
    pub time: Duration,
    /// The memory for which it has paid: other memory is copied with the time that is left.
    pub first: RangeSet,
}

/// Why a copy of memory that the program writes is made at the start only.
const WOULD_MISS_WRITES: &str = "cannot be made while the program runs";

/// Ranges that are lifted later.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Later {
    /// The ranges. Ranges that were added after the division follow the others.
    pub lifts: Vec<RangeLift>,
    /// Their price.
    pub price: Price,
    /// CPU time that the program has used when it has paid for them.
    pub due: Duration,
}

/// Divides a plan. Ranges that copy nothing are lifted at the start. Copies are chosen by their gain for each millisecond, as
/// long as the allowance covers their price. All others become refusals of the plan, with their reason: those that can be lifted
/// while the program runs are returned.
pub fn divide(mut plan: Plan, terms: &Terms) -> (Plan, Later) {
    let postponed = not_covered(&plan, &terms.costs, terms.allowance, &RangeSet::new());
    let (mut now, mut rest) = (Vec::new(), Vec::new());
    for (index, lift) in plan.lifts.drain(..).enumerate() {
        if postponed.contains(&index) { rest.push(lift) } else { now.push(lift) }
    }
    plan.lifts = now;
    let mut later = Later::default();
    later.add(&mut plan, rest, terms);
    (plan, later)
}

/// Removes from a plan the ranges for which the program has not paid: its memory may have grown since its lift was
/// postponed. Copies of the memory for which it has paid are chosen first, then others, both as by [`divide`]; the rest
/// become refusals. Returns the plan, and the price of its copies.
pub fn within(mut plan: Plan, Paid { costs, time: paid, first }: &Paid) -> (Plan, Price) {
    let paid = *paid;
    let refused = not_covered(&plan, costs, paid, first);
    let mut kept = Vec::new();
    for (index, lift) in plan.lifts.drain(..).enumerate() {
        match refused.contains(&index) {
            false => kept.push(lift),
            true => {
                let reason = Reason::NotPaidFor { price: lift.price(costs).time(), paid };
                plan.refusals.push(refusal(&lift, reason));
            }
        }
    }
    plan.lifts = kept;
    let price = plan.lifts.iter().filter(|lift| lift.copies()).map(|lift| lift.price(costs)).sum();
    (plan, price)
}

/// The indices of copies that this time does not cover, if copies of memory in `first` are chosen before others, and both by
/// their gain for each millisecond.
fn not_covered(plan: &Plan, costs: &Costs, allowance: Duration, first: &RangeSet) -> Vec<usize> {
    let mut order: Vec<(usize, (bool, u128))> = Vec::new();
    for (index, lift) in plan.lifts.iter().enumerate().filter(|(_, lift)| lift.copies()) {
        let price = lift.price(costs).nanoseconds.max(1);
        order.push((index, (first.overlaps(lift.range), (u128::from(lift.gain()) << 32) / u128::from(price))));
    }
    // A stable sort: of equal ones the first of the plan is chosen.
    order.sort_by_key(|(_, rank)| Reverse(*rank));
    let mut left = u64::try_from(allowance.as_nanos()).unwrap_or(u64::MAX);
    let mut rest: Vec<usize> = Vec::new();
    for (index, _) in order {
        match left.checked_sub(plan.lifts[index].price(costs).nanoseconds) {
            Some(remaining) => left = remaining,
            None => rest.push(index),
        }
    }
    rest
}

impl Later {
    /// Adds ranges that are not lifted at the start. They become refusals of the plan, and those that cannot be lifted while the
    /// program runs are only that.
    pub fn add(&mut self, plan: &mut Plan, lifts: Vec<RangeLift>, terms: &Terms) {
        if lifts.is_empty() {
            return;
        }
        let waits = |lift: &RangeLift| lift.may_wait() && terms.never_later.is_none();
        let (mut waiting, only_at_start): (Vec<_>, Vec<_>) = lifts.into_iter().partition(waits);
        self.lifts.append(&mut waiting);
        self.price = self.lifts.iter().map(|lift| lift.price(&terms.costs)).sum();
        self.due = terms.share.time_for(self.price.time());
        for lift in &only_at_start {
            let why = terms.never_later.filter(|_| lift.may_wait()).unwrap_or(WOULD_MISS_WRITES);
            let (price, allowance) = (lift.price(&terms.costs).time(), terms.allowance);
            plan.refusals.push(refusal(lift, Reason::OnlyAtStart { price, allowance, why }));
        }
        // Each names the price of all.
        plan.refusals.retain(|refusal| !matches!(refusal.reason, Reason::Unpaid { .. }));
        for lift in &self.lifts {
            plan.refusals.push(refusal(lift, Reason::Unpaid { price: self.price.time(), due: self.due }));
        }
    }
}

impl RangeLift {
    /// True if the range can be lifted while the program runs: a copy of memory that the program writes would miss a write.
    pub fn may_wait(&self) -> bool {
        let exchanges = |part: &Part| matches!(part.method, Method::Swap { .. } | Method::MoveAside { .. });
        let attempt = self.attempts.first();
        !(self.protection.write && attempt.is_some_and(|attempt| attempt.parts.iter().any(exchanges)))
    }
}

fn refusal(lift: &RangeLift, reason: Reason) -> Refusal {
    Refusal { object: lift.object.clone(), kinds: lift.kinds.clone(), range: lift.range, reason }
}
