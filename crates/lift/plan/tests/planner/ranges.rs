//! Which bytes a plan touches, and with which protection.

use crate::oracle::{Page, Pages, chosen_pages, heap_pages, pages_in};
use crate::support::{Program, random};
use address_space::{AddressRange, MappingName, Protection, RangeSet};
use lift_plan::{Edges, Kind, MachineFacts, ObjectChoice, Plan, Policy, RangeLift, plan, steps_of};
use proptest::prelude::*;
use std::collections::BTreeMap;

/// Every range that a step of any attempt names.
pub fn step_ranges(lift: &RangeLift) -> Vec<AddressRange> {
    let parts = lift.attempts.iter().flat_map(|attempt| attempt.parts.iter().map(move |part| (attempt, part)));
    parts.flat_map(|(attempt, part)| steps_of(lift, attempt, part)).flat_map(|step| step.ranges()).collect()
}

pub fn check(program: &Program, machine: &MachineFacts, policy: &Policy, plan: &Plan) -> Result<(), TestCaseError> {
    let (pages, heap) = (chosen_pages(program, policy), heap_pages(program));
    no_foreign_byte(plan, &pages, &heap)?;
    whole_pages_without_overlap(plan)?;
    for lift in plan.lifts.iter().filter(|lift| lift.object != "[heap]") {
        protections(lift, &pages, policy)?;
        parts_are_the_range(lift)?;
    }
    each_byte_once(program, plan, policy, &pages)?;
    prop_assert!(machine.base_page.bytes() > 0);
    Ok(())
}

fn no_foreign_byte(plan: &Plan, pages: &Pages, heap: &BTreeMap<u64, Protection>) -> Result<(), TestCaseError> {
    for lift in &plan.lifts {
        let ranges = step_ranges(lift).into_iter().chain([lift.range]);
        for page in ranges.flat_map(pages_in) {
            if lift.object == "[heap]" {
                prop_assert_eq!(heap.get(&page), Some(&lift.protection), "page {:x} of {:?}", page, lift);
                continue;
            }
            let found = pages.get(&page);
            let ours = found.is_some_and(|found| found.refused.is_none() && found.object == lift.object);
            prop_assert!(ours, "page {page:x}: {found:?} is in {lift:?}");
            prop_assert!(lift.range.covers(crate::oracle::page_at(page)));
        }
    }
    Ok(())
}

fn whole_pages_without_overlap(plan: &Plan) -> Result<(), TestCaseError> {
    let mut seen = RangeSet::new();
    for lift in &plan.lifts {
        prop_assert!(!lift.range.is_empty() && !seen.overlaps(lift.range), "{lift:?}");
        seen.insert(lift.range);
        prop_assert!(!lift.attempts.is_empty());
        for attempt in &lift.attempts {
            let whole = |range: AddressRange| range.whole_pages(attempt.page_size) == range;
            prop_assert!(whole(lift.range) && attempt.parts.iter().all(|part| whole(part.range)), "{lift:?}");
        }
    }
    Ok(())
}

fn protections(lift: &RangeLift, pages: &Pages, policy: &Policy) -> Result<(), TestCaseError> {
    let size = lift.attempts[0].page_size;
    prop_assert!(!(lift.protection.write && lift.protection.execute), "{lift:?}");
    for huge in lift.range.pages(size) {
        let here: Vec<&Page> = pages_in(huge).filter_map(|page| pages.get(&page)).collect();
        let same = here.iter().all(|page| page.protection == lift.protection);
        if same {
            continue;
        }
        prop_assert_eq!(policy.edges, Edges::MergeReadOnly, "{:?}", lift);
        // Read-only data and code side by side, never a page that is written.
        let read_only = here.iter().all(|page| page.protection.read && !page.protection.write);
        let mixed = here.iter().any(|page| page.protection.execute) && here.iter().any(|page| !page.protection.execute);
        prop_assert!(read_only && mixed && lift.protection == Protection::READ_EXECUTE, "{huge} in {lift:?}");
    }
    let mut kinds: Vec<Kind> = Vec::new();
    for page in pages_in(lift.range).filter_map(|page| pages.get(&page)) {
        if !kinds.contains(&page.kind) {
            kinds.push(page.kind);
        }
    }
    prop_assert_eq!(&kinds, &lift.kinds);
    Ok(())
}

fn parts_are_the_range(lift: &RangeLift) -> Result<(), TestCaseError> {
    for attempt in &lift.attempts {
        let mut next = lift.range.start();
        for part in &attempt.parts {
            prop_assert_eq!(part.range.start(), next, "{:?}", lift);
            next = part.range.end();
        }
        prop_assert_eq!(next, lift.range.end(), "{:?}", lift);
    }
    Ok(())
}

/// Each byte considered is in exactly one of lift, refusal and edge; with every object chosen, all are considered.
fn each_byte_once(program: &Program, plan: &Plan, policy: &Policy, pages: &Pages) -> Result<(), TestCaseError> {
    let ranges = plan.lifts.iter().map(|lift| (lift.range, &lift.object));
    let ranges = ranges.chain(plan.refusals.iter().map(|refusal| (refusal.range, &refusal.object)));
    let ranges = ranges.chain(plan.edges.iter().map(|edge| (edge.range, &edge.object)));
    let (mut seen, mut objects) = (RangeSet::new(), RangeSet::new());
    for (range, object) in ranges {
        prop_assert!(!range.is_empty() && !seen.overlaps(range), "{range} of {object} twice in {plan:?}");
        seen.insert(range);
        if object != "[heap]" {
            objects.insert(range);
        }
    }
    prop_assert_eq!(seen.bytes(), plan.considered, "{:?}", plan);
    let expected: RangeSet = pages.keys().map(|&page| crate::oracle::page_at(page)).collect();
    let beyond: Vec<_> = objects.iter().filter(|range| !expected.covers(*range)).collect();
    prop_assert!(beyond.is_empty(), "{beyond:?} is nobody's");
    if policy.objects == ObjectChoice::All {
        prop_assert_eq!(&objects, &expected);
        let heap = program.facts.space.mappings().iter().filter(|m| m.name == MappingName::Heap);
        let heap = heap.filter(|m| m.protection != Protection::NONE && policy.kinds.contains(Kind::Heap));
        let heap: RangeSet = heap.map(|m| m.range).collect();
        let with_heap = heap.iter().all(|range| seen.covers(range));
        prop_assert!(with_heap, "{heap:?} is not all considered in {plan:?}");
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn a_plan_touches_only_what_it_may_and_keeps_protections(
        program in random::program(),
        machine in random::machine(),
        policy in random::policy(),
    ) {
        let made = plan(&program.facts, &machine, &policy);
        check(&program, &machine, &policy, &made)?;
        prop_assert_eq!(plan(&program.facts, &machine, &policy), made, "not deterministic");
    }
}
