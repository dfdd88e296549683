//! Division of a plan into lifts at the start and lifts for which the program pays first.

use crate::support::random;
use address_space::RangeSet;
use lift_plan::{Costs, Kind, Later, Method, Paid, Part, Plan, Price, RangeLift, Reason, Terms, divide, plan, within};
use options::CostShare;
use proptest::prelude::*;
use std::time::Duration;

/// Costs that make a page take microseconds, since the programs here are small.
fn costs() -> impl Strategy<Value = Costs> {
    let per_mib = || 1..100_000_000u64;
    (per_mib(), per_mib(), 0..20_000u64, 0..50_000u64).prop_map(|(fill, copy, call, pause)| Costs {
        fill,
        copy,
        call,
        pause,
    })
}

fn terms() -> impl Strategy<Value = Terms> {
    let allowance = prop_oneof![1 => Just(0), 1 => Just(u64::MAX), 8 => 0..40_000_000u64];
    let share = prop_oneof![Just("1%"), Just("0.5%"), Just("100%")];
    let never_later = prop_oneof![4 => Just(None), 1 => Just(Some("is not made later"))];
    (costs(), allowance, share, never_later).prop_map(|(costs, allowance, share, never_later)| {
        let share: CostShare = share.parse().unwrap();
        Terms { costs, allowance: Duration::from_nanos(allowance), share, never_later }
    })
}

fn is_of(lift: &RangeLift, reason: &Reason, terms: &Terms, later: &Later) -> bool {
    match reason {
        Reason::Unpaid { price, due } => {
            later.lifts.contains(lift) && (*price, *due) == (later.price.time(), later.due)
        }
        Reason::OnlyAtStart { price, allowance, why } => {
            (lift.protection.write || terms.never_later == Some(why))
                && (*price, *allowance) == (lift.price(&terms.costs).time(), terms.allowance)
        }
        _ => false,
    }
}

/// The gain for each unit of the price: bytes, weighted by kind.
fn worth(lift: &RangeLift, costs: &Costs) -> f64 {
    let weight = |kind: &Kind| match kind {
        Kind::Rodata => 1.0,
        Kind::Text => 2.0,
        _ => 4.0,
    };
    let most = lift.kinds.iter().map(weight).fold(0.0, f64::max);
    most * lift.range.len() as f64 / lift.price(costs).nanoseconds.max(1) as f64
}

/// Nothing is lost, nothing is new, and nothing else of the plan changes.
fn check_that_nothing_is_lost(whole: &Plan, now: &Plan, later: &Later, terms: &Terms) -> Result<(), TestCaseError> {
    prop_assert_eq!((now.considered, &now.edges), (whole.considered, &whole.edges));
    prop_assert!(now.refusals.starts_with(&whole.refusals));
    let postponed = &now.refusals[whole.refusals.len()..];
    prop_assert_eq!(now.lifts.len() + postponed.len(), whole.lifts.len());
    for lift in &whole.lifts {
        let refusals = postponed.iter().filter(|refusal| refusal.range == lift.range);
        let refused = refusals.filter(|refusal| is_of(lift, &refusal.reason, terms, later)).count();
        prop_assert_eq!(usize::from(now.lifts.contains(lift)) + refused, 1, "{:?}", lift);
    }
    let price: Price = later.lifts.iter().map(|lift| lift.price(&terms.costs)).sum();
    prop_assert_eq!((later.price, later.due), (price, terms.share.time_for(price.time())));
    Ok(())
}

fn check(whole: &Plan, now: &Plan, later: &Later, terms: &Terms) -> Result<(), TestCaseError> {
    check_that_nothing_is_lost(whole, now, later, terms)?;
    // Ranges that copy nothing are lifted at once, and copies cost no more than the allowance.
    prop_assert!(later.lifts.iter().all(RangeLift::copies));
    let spent: Price = now.lifts.iter().filter(|lift| lift.copies()).map(|lift| lift.price(&terms.costs)).sum();
    prop_assert!(spent.time() <= terms.allowance, "{spent:?} of {:?}", terms.allowance);
    // A copy that is worth more than one which was made did not fit beside those worth more still.
    let made: Vec<&RangeLift> = now.lifts.iter().filter(|lift| lift.copies()).collect();
    for lift in whole.lifts.iter().filter(|lift| !now.lifts.contains(lift)) {
        let own = worth(lift, &terms.costs);
        let better = made.iter().filter(|other| worth(other, &terms.costs) >= own * 0.999_999);
        let before: Price = better.map(|other| other.price(&terms.costs)).sum();
        let all = before + lift.price(&terms.costs);
        prop_assert!(all.time() > terms.allowance, "{lift:?} would have fitted after {before:?}");
    }
    // A later lift misses no write of the program: writable ranges are lifted in place.
    for part in later.lifts.iter().filter(|lift| lift.protection.write).flat_map(|lift| &lift.attempts[0].parts) {
        prop_assert!(matches!(part.method, Method::InPlace { .. }), "{part:?}");
    }
    prop_assert!(later.lifts.is_empty() || terms.never_later.is_none());
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn a_start_copies_no_more_than_it_may_and_loses_nothing(
        program in random::program(),
        machine in random::machine(),
        policy in random::policy(),
        terms in terms(),
    ) {
        let whole = plan(&program.facts, &machine, &policy);
        let (now, later) = divide(whole.clone(), &terms);
        check(&whole, &now, &later, &terms)?;
        // The price of the whole plan is the sum of the prices of its parts.
        let only_at_start = whole.lifts.iter().filter(|lift| !now.lifts.contains(lift) && !later.lifts.contains(lift));
        let rest: Price = only_at_start.map(|lift| lift.price(&terms.costs)).sum();
        prop_assert_eq!(whole.price(&terms.costs), now.price(&terms.costs) + later.price + rest);
    }

    /// Copies that the start has left since others took too long wait with those that were postponed before.
    #[test]
    fn copies_for_which_no_time_is_left_wait_with_the_others(
        program in random::program(),
        machine in random::machine(),
        policy in random::policy(),
        terms in terms(),
        chosen in any::<u64>(),
    ) {
        let whole = plan(&program.facts, &machine, &policy);
        let (mut now, mut later) = divide(whole.clone(), &terms);
        let is_left = |(at, lift): &(usize, RangeLift)| lift.copies() && lift.may_wait() && chosen >> (at % 64) & 1 == 1;
        let (left, made): (Vec<_>, Vec<_>) = now.lifts.drain(..).enumerate().partition(is_left);
        let of = |lifts: Vec<(usize, RangeLift)>| lifts.into_iter().map(|(_, lift)| lift).collect::<Vec<_>>();
        now.lifts = of(made);
        later.add(&mut now, of(left), &terms);
        check_that_nothing_is_lost(&whole, &now, &later, &terms)?;
    }

    /// Memory that has grown since a lift was postponed makes it no dearer than the program has paid for.
    #[test]
    fn a_later_lift_costs_no_more_than_was_paid(
        program in random::program(),
        machine in random::machine(),
        policy in random::policy(),
        terms in terms(),
    ) {
        let whole = plan(&program.facts, &machine, &policy);
        let paid = Paid { costs: terms.costs, time: terms.allowance, first: RangeSet::new() };
        let (now, price) = within(whole.clone(), &paid);
        let spent: Price = now.lifts.iter().filter(|lift| lift.copies()).map(|lift| lift.price(&terms.costs)).sum();
        prop_assert_eq!(price, spent);
        prop_assert!(spent.time() <= terms.allowance);
        let refused = &now.refusals[whole.refusals.len()..];
        prop_assert_eq!(now.lifts.len() + refused.len(), whole.lifts.len());
        let is_not_paid = |reason: &Reason| matches!(reason, Reason::NotPaidFor { .. });
        prop_assert!(refused.iter().all(|refusal| is_not_paid(&refusal.reason)));
        prop_assert_eq!(now.lifts, divide(whole, &terms).0.lifts);
    }

    /// Memory for which a program has paid is copied, however much other memory of the later plan gains.
    #[test]
    fn a_later_lift_copies_first_what_was_paid_for(
        program in random::program(),
        machine in random::machine(),
        policy in random::policy(),
        costs in costs(),
        chosen in any::<u64>(),
    ) {
        let whole = plan(&program.facts, &machine, &policy);
        let copies = whole.lifts.iter().filter(|lift| lift.copies()).enumerate();
        let postponed: Vec<_> = copies.filter(|(at, _)| chosen >> (at % 64) & 1 == 1).map(|(_, lift)| lift.clone()).collect();
        let price: Price = postponed.iter().map(|lift| lift.price(&costs)).sum();
        let first = postponed.iter().map(|lift| lift.range).collect();
        let (now, _) = within(whole, &Paid { costs, time: price.time(), first });
        prop_assert!(postponed.iter().all(|lift| now.lifts.contains(lift)));
        // Nothing is left for other copies, unless they cost nothing.
        let others = now.lifts.iter().filter(|lift| lift.copies() && !postponed.contains(lift));
        prop_assert_eq!(others.map(|lift| lift.price(&costs)).sum::<Price>().time(), Duration::ZERO);
    }

    /// Collapsing a block that is huge would change nothing: it is neither planned nor priced.
    #[test]
    fn what_is_huge_already_has_no_price(
        program in random::program(),
        machine in random::machine(),
        policy in random::policy(),
        costs in costs(),
        chosen in any::<u64>(),
    ) {
        let whole = plan(&program.facts, &machine, &policy);
        let parts = whole.lifts.iter().flat_map(|lift| &lift.attempts[0].parts);
        let collapsed = |part: &Part| match &part.method {
            Method::InPlace { collapse } => collapse.clone(),
            _ => RangeSet::new(),
        };
        let size = whole.lifts.first().map(|lift| lift.attempts[0].page_size);
        let blocks = parts.clone().flat_map(|part| collapsed(part).iter().collect::<Vec<_>>());
        let blocks: Vec<_> = blocks.flat_map(|range| range.pages(size.unwrap()).collect::<Vec<_>>()).enumerate().collect();
        let huge: RangeSet = blocks.iter().filter(|(at, _)| chosen >> (at % 64) & 1 == 1).map(|(_, block)| *block).collect();
        let now = whole.clone().without_collapses_of(&huge);
        let filled: Vec<_> = now.lifts.iter().flat_map(|lift| &lift.attempts[0].parts).map(Part::filled).collect();
        let expected: Vec<_> =
            parts.map(|part| part.filled() - huge.bytes_in(part.range).min(collapsed(part).bytes())).collect();
        prop_assert_eq!(filled, expected);
        // A huge block between others leaves two ranges, which take a call more.
        let of_bytes = Costs { call: 0, ..costs };
        prop_assert!(now.price(&of_bytes).nanoseconds <= whole.price(&of_bytes).nanoseconds);
        let all: RangeSet = blocks.iter().map(|(_, block)| *block).collect();
        let none = whole.clone().without_collapses_of(&all);
        let exchanges = |part: &Part| matches!(part.method, Method::Swap { .. } | Method::MoveAside { .. });
        let is_copied = |lift: &RangeLift| lift.attempts[0].parts.iter().any(exchanges);
        let agrees = none.lifts.iter().all(|lift| lift.copies() == is_copied(lift));
        prop_assert!(agrees, "{:?}", none.lifts);
    }

    #[test]
    fn more_costly_operations_make_a_lift_no_cheaper(
        program in random::program(),
        machine in random::machine(),
        policy in random::policy(),
        costs in costs(),
    ) {
        let plan = plan(&program.facts, &machine, &policy);
        let price = plan.price(&costs);
        for more in [
            Costs { fill: costs.fill * 2, ..costs },
            Costs { copy: costs.copy * 2, ..costs },
            Costs { call: costs.call + 1, ..costs },
            Costs { pause: costs.pause + 1, ..costs },
        ] {
            prop_assert!(plan.price(&more).nanoseconds >= price.nanoseconds);
            prop_assert_eq!(plan.price(&more).private_bytes, price.private_bytes);
        }
        let memory: u64 = plan.lifts.iter().map(|lift| lift.attempts[0].memory).sum();
        prop_assert_eq!(price.private_bytes, memory);
    }
}
