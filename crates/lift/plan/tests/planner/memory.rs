//! Copies and accounting: all necessary copies are made, and no resource is overdrawn.

use crate::oracle::{Pages, chosen_pages, heap_pages, pages_in};
use crate::support::{PAGE, Program, random};
use address_space::RangeSet;
use lift_plan::{Attempt, MachineFacts, Method, Part, Plan, Policy, Source, plan};
use proptest::prelude::*;

/// Only memory of the program itself is anonymous here, so a page that is no page of an object is one of the heap.
fn has_contents(program: &Program, pages: &Pages, page: u64) -> bool {
    match pages.get(&page) {
        Some(found) => !found.anonymous || found.touched || !found.protection.write,
        None => program.facts.touched.overlaps(crate::oracle::page_at(page)),
    }
}

fn check_way(program: &Program, pages: &Pages, attempt: &Attempt, part: &Part) -> Result<(), TestCaseError> {
    match &part.method {
        Method::Swap { copy } | Method::MoveAside { copy, .. } => {
            let within = copy.iter().all(|range| part.range.covers(range));
            prop_assert!(within, "{copy:?} reaches beyond {part:?}");
            for page in pages_in(part.range) {
                let copied = copy.covers(crate::oracle::page_at(page));
                prop_assert_eq!(copied, has_contents(program, pages, page), "page {:x} of {:?}", page, part);
            }
        }
        Method::MapImage { .. } => {
            let of_files = pages_in(part.range).all(|page| pages.get(&page).is_some_and(|found| !found.anonymous));
            prop_assert!(of_files && attempt.source == Source::Image, "{part:?}");
        }
        Method::Refault | Method::MapAgain { .. } => {
            let of_files = pages_in(part.range).all(|page| pages.get(&page).is_some_and(|found| !found.anonymous));
            prop_assert!(of_files && attempt.source == Source::File, "{part:?}");
            prop_assert!(!program.facts.changed.overlaps(part.range), "what was written would be lost: {part:?}");
        }
        Method::InPlace { collapse } => {
            prop_assert_eq!(attempt.source, Source::Thp);
            for page in pages_in(part.range) {
                let anonymous = pages.get(&page).is_none_or(|found| found.anonymous);
                prop_assert!(anonymous, "page {page:x} of a file cannot be collapsed: {part:?}");
            }
            let touched: RangeSet =
                program.facts.touched.within(part.range).map(|range| range.widened(attempt.page_size)).collect();
            prop_assert_eq!(collapse, &touched);
        }
    }
    if let Method::MoveAside { mappings, .. } = &part.method {
        let together: RangeSet = mappings.iter().copied().collect();
        prop_assert_eq!(together, RangeSet::from_iter([part.range]));
        let single = mappings.iter().all(|range| program.facts.space.overlapping(*range).len() == 1);
        prop_assert!(single, "mremap moves one mapping at a time: {part:?}");
    }
    Ok(())
}

/// Bytes that become resident, counted page by page.
fn newly_resident(program: &Program, pages: &Pages, part: &Part) -> u64 {
    let resident = |page: u64| match pages.get(&page) {
        Some(found) => found.anonymous && found.touched,
        None => program.facts.touched.overlaps(crate::oracle::page_at(page)),
    };
    let filled = match &part.method {
        Method::InPlace { collapse } => collapse.clone(),
        // The image is in memory already, shared by all processes.
        Method::MapImage { .. } | Method::Refault | Method::MapAgain { .. } => RangeSet::new(),
        _ => RangeSet::from_iter([part.range]),
    };
    filled.iter().flat_map(pages_in).filter(|&page| !resident(page)).count() as u64 * PAGE
}

pub fn check(program: &Program, machine: &MachineFacts, policy: &Policy, plan: &Plan) -> Result<(), TestCaseError> {
    let pages = chosen_pages(program, policy);
    prop_assert!(heap_pages(program).keys().all(|page| !pages.contains_key(page)));
    for attempt in plan.lifts.iter().flat_map(|lift| &lift.attempts) {
        let mut memory = 0;
        for part in &attempt.parts {
            check_way(program, &pages, attempt, part)?;
            memory += newly_resident(program, &pages, part);
        }
        prop_assert_eq!(attempt.memory, memory, "{:?}", attempt);
    }
    for pool in &machine.pools {
        prop_assert!(plan.pool_pages(pool.size) <= pool.available, "{plan:?}");
    }
    // The bounds hold for the most expensive attempt of each range together, whichever attempt succeeds.
    let dearest = |source: Option<Source>| {
        let of = |attempt: &&Attempt| source.is_none_or(|source| attempt.source == source);
        let lifts = plan.lifts.iter();
        lifts.map(|lift| lift.attempts.iter().filter(of).map(|a| a.memory).max().unwrap_or(0)).sum::<u64>()
    };
    prop_assert!(dearest(None) <= policy.max_memory.unwrap_or(u64::MAX), "{plan:?}");
    prop_assert!(dearest(Some(Source::Thp)) <= machine.memory_available, "{plan:?}");
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn all_that_holds_anything_is_copied_and_no_means_are_overdrawn(
        program in random::program(),
        machine in random::machine(),
        policy in random::policy(),
    ) {
        let made = plan(&program.facts, &machine, &policy);
        check(&program, &machine, &policy, &made)?;
    }
}
