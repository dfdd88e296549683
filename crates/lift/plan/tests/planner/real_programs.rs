//! Properties of plans on the layouts of real programs, and the expected gain of each.

use crate::support::{Program, base_page, machine_with, page_size, programs};
use address_space::format_bytes;
use lift_plan::{Edges, Kind, MachineFacts, Pages, Plan, Policy, RangeLift, Reason, WritablePages, plan};

fn machine(pool: u64) -> MachineFacts {
    machine_with(programs::HUGE, pool)
}

#[test]
fn every_property_holds_for_real_programs() {
    let imaged = programs::all().into_iter().map(|program| program.imaged(programs::HUGE));
    for program in programs::all().into_iter().chain(imaged) {
        for pages in [Pages::Auto, Pages::File, Pages::FileThenImage, Pages::Image, Pages::Hugetlb, Pages::Thp] {
            for writable_pages in [WritablePages::Thp, WritablePages::Hugetlb] {
                for (edges, pool) in [(Edges::Exact, 1000), (Edges::MergeReadOnly, 1000), (Edges::Exact, 7)] {
                    let policy = Policy { pages, writable_pages, edges, ..Policy::default() };
                    let machine = machine(pool);
                    let made = plan(&program.facts, &machine, &policy);
                    crate::ranges::check(&program, &machine, &policy, &made).unwrap();
                    crate::memory::check(&program, &machine, &policy, &made).unwrap();
                    crate::means::check(&program, &machine, &policy, &made).unwrap();
                }
            }
        }
    }
}

/// Lifted bytes of one kind, in huge pages, of the program itself.
fn huge_pages(plan: &Plan, kind: Kind) -> u64 {
    let own = |lift: &&RangeLift| !["libc.so.6", "libm.so.6", "ld.so"].contains(&lift.object.as_str());
    let lifts = plan.lifts.iter().filter(own).filter(|lift| lift.kinds.contains(&kind));
    lifts.map(|lift| lift.range.len()).sum::<u64>() / programs::HUGE
}

fn planned(program: &Program) -> Plan {
    plan(&program.facts, &machine(1000), &Policy::default())
}

#[test]
fn each_program_gains_what_its_layout_allows() {
    let expected = [
        ("mariadbd", Kind::Text, 4),
        ("node", Kind::Text, 12),
        ("go", Kind::Text, 2),
        ("rustc", Kind::Text, 42),
        ("aligned", Kind::Text, 4),
        ("big-data", Kind::Bss, 541),
        ("static-pie", Kind::Text, 3),
        ("two-segments", Kind::Text, 7),
        ("neighbours", Kind::Text, 3),
    ];
    let found: Vec<_> = programs::all()
        .iter()
        .zip(expected)
        .map(|(program, (_, kind, _))| (program.name, kind, huge_pages(&planned(program), kind)))
        .collect();
    assert_eq!(found, expected);
}

#[test]
fn untouched_bss_costs_nothing() {
    let program = programs::big_data();
    let made = planned(&program);
    let bss = made.lifts.iter().find(|lift| lift.kinds.contains(&Kind::Bss)).unwrap();
    let memory = bss.attempts[0].memory;
    assert!(memory < 3 << 20, "{} would become resident", format_bytes(memory));
}

/// Everything else is lifted as without the probe; its huge page is refused for that reason.
#[test]
fn a_huge_page_with_a_probe_stays_where_it_is() {
    for program in programs::all() {
        let plain = planned(&program);
        let Some(text) = plain.lifts.iter().find(|lift| lift.kinds == [Kind::Text]) else { continue };
        let huge = page_size(programs::HUGE);
        let page = text.range.pages(base_page()).nth(3).unwrap();
        let mut probed = program.clone();
        probed.facts.probed.insert(page);
        let made = planned(&probed);
        assert!(made.lifts.iter().all(|lift| !lift.range.overlaps(page)), "{}", program.name);
        let refusals: Vec<_> = made.refusals.iter().filter(|refusal| refusal.reason == Reason::Probed).collect();
        assert_eq!(refusals.iter().map(|r| r.range).collect::<Vec<_>>(), [page.widened(huge)], "{}", program.name);
        let bytes = |plan: &Plan| plan.lifts.iter().map(|lift| lift.range.len()).sum::<u64>();
        assert_eq!(bytes(&made) + huge.bytes(), bytes(&plain), "{}", program.name);
        assert_eq!(made.considered, plain.considered, "{}", program.name);
    }
}
