//! The sources and ways in use, by the request and the machine's abilities.

use crate::oracle::chosen_pages;
use crate::support::{Program, random};
use address_space::PageSize;
use lift_plan::{
    ImageSpan, Kind, MachineFacts, Method, Pages, Part, Plan, Policy, RangeLift, Source, Step, ThpMode, WritablePages,
    plan, steps_of,
};
use proptest::prelude::*;

pub fn check(program: &Program, machine: &MachineFacts, policy: &Policy, plan: &Plan) -> Result<(), TestCaseError> {
    let pages = chosen_pages(program, policy);
    for lift in &plan.lifts {
        sources(lift, machine, policy)?;
        let pending = crate::oracle::pages_in(lift.range).any(|p| pages.get(&p).is_some_and(|p| p.relro_pending));
        for attempt in &lift.attempts {
            let pool = attempt.source == Source::Hugetlb;
            prop_assert!(!(pool && pending), "the program could not seal its RELRO: {lift:?}");
            for part in &attempt.parts {
                let in_place = matches!(part.method, Method::InPlace { .. });
                let goes_on = program.facts.running || program.facts.other_threads;
                let behind_its_back = goes_on && lift.protection.write && !in_place;
                prop_assert!(!behind_its_back, "the program may write at the same time: {part:?}");
                let aside = matches!(part.method, Method::MoveAside { .. });
                prop_assert_eq!(aside, pool && !machine.movable_hugetlb, "{:?}", part);
                prop_assert!(!(aside && program.facts.running), "threads would miss the range: {part:?}");
                if let Method::MapImage { path, offset } = &part.method {
                    let fits =
                        program.facts.images.iter().any(|span| shows(span, part, path, *offset, attempt.page_size));
                    prop_assert!(fits, "{part:?} of {:?}", program.facts.images);
                }
                if let Method::MapAgain { path, offset } = &part.method {
                    let mapping = program.facts.space.find(part.range.start()).unwrap();
                    let file = program.facts.cached.iter().find(|file| mapping.path() == Some(&file.path)).unwrap();
                    let shown = mapping.offset + (part.range.start() - mapping.range.start());
                    prop_assert_eq!((Some(path), *offset), (file.own_path.as_ref(), shown), "{:?}", part);
                    prop_assert!(mapping.range.covers(part.range) && mapping.protection == lift.protection);
                }
                if part.method == Method::Refault {
                    prop_assert!(machine.refaults_huge && !program.facts.changed.overlaps(part.range), "{part:?}");
                }
                order_of_steps(&steps_of(lift, attempt, part))?;
            }
        }
    }
    Ok(())
}

/// An image shows just this memory on huge pages: address and offset agree.
fn shows(span: &ImageSpan, part: &Part, path: &str, offset: u64, size: PageSize) -> bool {
    let into = part.range.start() - span.range.start();
    span.path == path
        && span.range.covers(part.range)
        && span.page_size == size
        && offset == span.offset + into
        && offset % size.bytes() == part.range.start().0 % size.bytes()
}

fn sources(lift: &RangeLift, machine: &MachineFacts, policy: &Policy) -> Result<(), TestCaseError> {
    let mut sources: Vec<_> = lift.attempts.iter().map(|attempt| attempt.source).collect();
    if sources.starts_with(&[Source::File; 2]) {
        sources.remove(0);
    }
    let best_first = [Source::File, Source::Image, Source::Hugetlb, Source::Thp];
    let rank = |source: &Source| best_first.iter().position(|other| other == source);
    prop_assert!(sources.windows(2).all(|pair| rank(&pair[0]) < rank(&pair[1])), "{sources:?}");
    for attempt in &lift.attempts {
        let size = attempt.page_size;
        prop_assert!(policy.page_size.is_none_or(|wanted| wanted == size));
        match attempt.source {
            Source::File => {
                prop_assert!(
                    matches!(policy.pages, Pages::Auto | Pages::File | Pages::FileThenImage) && !lift.protection.write,
                    "{lift:?}"
                );
                prop_assert!(machine.thp.is_some_and(|thp| thp.size == size && thp.mode != ThpMode::OffInProcess));
            }
            Source::Image => {
                prop_assert!(
                    matches!(policy.pages, Pages::Auto | Pages::Image | Pages::FileThenImage) && !lift.protection.write,
                    "{lift:?}"
                );
            }
            Source::Hugetlb => {
                let wanted =
                    !matches!(policy.pages, Pages::Image | Pages::File | Pages::FileThenImage) || lift.protection.write;
                prop_assert!(machine.pool(size).is_some() && policy.pages != Pages::Thp && wanted, "{lift:?}");
                prop_assert!(!lift.kinds.contains(&Kind::Heap), "brk could never grow again: {lift:?}");
                prop_assert!(!lift.protection.write || policy.writable_pages == WritablePages::Hugetlb, "{lift:?}");
            }
            Source::Thp => {
                prop_assert!(machine.thp.is_some_and(|thp| thp.size == size && thp.mode != ThpMode::Never));
                // The heap has no other source, whatever a program has made of the protection of its parts.
                let only_source = lift.protection.write || lift.kinds.contains(&Kind::Heap);
                prop_assert!(matches!(policy.pages, Pages::Auto | Pages::Thp) || only_source, "{lift:?}");
            }
        }
    }
    Ok(())
}

/// Everything that can fail comes before the one step that the program can see.
fn order_of_steps(steps: &[Step]) -> Result<(), TestCaseError> {
    let visible = |step: &Step| {
        !matches!(
            step,
            Step::MapStaging { .. }
                | Step::PopulateStaging(..)
                | Step::CollapseStaging(..)
                | Step::KeepHuge(..)
                | Step::CopyToStaging(..)
                | Step::MapFile { .. }
        )
    };
    let first = steps.iter().position(visible);
    match steps.iter().position(|step| matches!(step, Step::Swap(..) | Step::ShowImage { .. })) {
        Some(swap) => {
            let rest = &steps[swap + 1..];
            let nothing_can_fail = rest.iter().all(|step| matches!(step, Step::Touch(_)));
            prop_assert!(first == Some(swap) && nothing_can_fail, "{steps:?}");
        }
        None => prop_assert!(first == Some(0), "{steps:?}"),
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn only_what_was_asked_for_and_can_be_had_is_planned(
        program in random::program(),
        machine in random::machine(),
        policy in random::policy(),
    ) {
        let made = plan(&program.facts, &machine, &policy);
        check(&program, &machine, &policy, &made)?;
    }

    #[test]
    fn who_may_not_take_from_the_pools_need_not_know_them(
        program in random::program(),
        machine in random::machine(),
        policy in random::policy(),
    ) {
        let made = plan(&program.facts, &machine, &policy);
        let without = plan(&program.facts, &MachineFacts { pools: Vec::new(), ..machine.clone() }, &policy);
        // Without THP and a default size in meminfo, the smallest pool determines the size.
        let size_is_known = machine.thp.is_some() || machine.default_hugetlb.is_some();
        prop_assert!(policy.may_take_from_pools() || !size_is_known || made == without, "{made:?}\n{without:?}");
    }

    #[test]
    fn who_may_not_fill_memory_need_not_know_how_much_is_left(
        program in random::program(),
        machine in random::machine(),
        policy in random::policy(),
    ) {
        let made = plan(&program.facts, &machine, &policy);
        let unbounded = MachineFacts { memory_available: u64::MAX, memory_bound: String::new(), ..machine.clone() };
        let without = plan(&program.facts, &unbounded, &policy);
        prop_assert!(policy.may_fill_memory() || made == without, "{made:?}\n{without:?}");
    }
}
