//! Pages and memory count on the nodes that may use them, and new pages get a policy if the user chooses nodes.

use crate::support::{PAGE, Program, Segment, Shape, machine_with, page_size, range};
use address_space::{ObjectRole, Protection};
use lift_plan::{
    MachineFacts, NodeFacts, Nodes, Numa, NumaFacts, Pages, Placement, Plan, Policy, Preference, Reason, Source, Step,
    plan, steps_of,
};

const HUGE: u64 = 4 * PAGE;

/// A program of 3 huge pages of code, in the page cache by huge folios.
fn program() -> Program {
    let mut program = Program::new("nodes");
    let segments = vec![Segment::new(Protection::READ_EXECUTE, 3 * HUGE)];
    program.load(&Shape::new("/bin/exe", ObjectRole::Executable, 16 * HUGE, segments), true);
    program.finish().all_cached()
}

fn nodes(numbers: &[u32]) -> Nodes {
    numbers.iter().copied().collect()
}

/// Two nodes with free pages of the pool on each.
fn machine(free: [u64; 2], allowed: &[u32]) -> MachineFacts {
    let node = |node: u32| NodeFacts { node, pools: vec![(page_size(HUGE), free[node as usize])], memory: 1 << 40 };
    let nodes_with_memory = vec![node(0), node(1)];
    let (allowed, cpus) = (nodes(allowed), nodes(&[0, 1]));
    let numa = NumaFacts { nodes: nodes_with_memory, allowed, bound: None, running_on: Some(1), cpus };
    MachineFacts { numa: Some(numa), ..machine_with(HUGE, free[0] + free[1]) }
}

fn made(machine: &MachineFacts, pages: Pages, numa: Numa) -> Plan {
    plan(&program().facts, machine, &Policy { pages, numa, ..Policy::default() })
}

fn sources(plan: &Plan) -> Vec<Source> {
    plan.lifts.iter().flat_map(|lift| &lift.attempts).map(|attempt| attempt.source).collect()
}

#[test]
fn pages_of_other_nodes_are_named_and_not_used() {
    let short = |numa, allowed: &[u32]| made(&machine([2, 40], allowed), Pages::Hugetlb, numa);
    for plan in [short(Numa::Own, &[0]), short(Numa::Node(0), &[0, 1]), short(Numa::Interleave, &[0])] {
        let size = page_size(HUGE);
        let expected =
            Reason::PoolOnOtherNodes { size, needed: 3, available: 2, elsewhere: 40, nodes: nodes(&[0]), whole: 3 };
        assert_eq!(plan.refusals[0].reason, expected);
        assert!(plan.lifts.is_empty());
    }
    assert_eq!(sources(&short(Numa::Own, &[0, 1])), [Source::Hugetlb]);
    assert_eq!(sources(&short(Numa::Local, &[0, 1])), [Source::Hugetlb]);
}

#[test]
fn other_nodes_are_named_only_where_their_pages_would_be_enough() {
    let size = page_size(HUGE);
    let reason = |free: [u64; 2]| {
        let plan = made(&machine(free, &[0, 1]), Pages::Hugetlb, Numa::Node(0));
        plan.refusals[0].reason.clone()
    };
    let too_small = |available, total| Reason::PoolTooSmall { size, needed: 3, available, total, whole: 3 };
    assert_eq!(reason([2, 0]), too_small(2, 2));
    assert_eq!(reason([1, 1]), too_small(1, 2));
    let elsewhere =
        Reason::PoolOnOtherNodes { size, needed: 3, available: 0, elsewhere: 3, nodes: nodes(&[0]), whole: 3 };
    assert_eq!(reason([0, 3]), elsewhere);
}

#[test]
fn a_node_that_may_not_be_used_is_named_for_every_source_that_copies() {
    for pages in [Pages::Hugetlb, Pages::Thp, Pages::Auto] {
        let plan = made(&machine([40, 40], &[0]), pages, Numa::Node(1));
        assert_eq!(plan.refusals[0].reason, Reason::NodeForbidden { node: 1, allowed: nodes(&[0]) });
    }
}

#[test]
fn what_is_shared_is_not_placed() {
    let machine = machine([40, 40], &[0, 1]);
    assert_eq!(made(&machine, Pages::File, Numa::Node(1)).refusals[0].reason, Reason::SharedPages);
    assert_eq!(sources(&made(&machine, Pages::Auto, Numa::Node(1))), [Source::Hugetlb, Source::Thp]);
    assert_eq!(sources(&made(&machine, Pages::Auto, Numa::Own))[0], Source::File);
}

#[test]
fn a_copy_for_the_node_goes_before_the_page_cache_and_before_a_copy_for_another() {
    let mut program = program().imaged(HUGE);
    let on = |program: &mut Program, node| program.facts.images.iter_mut().for_each(|span| span.node = node);
    let machine = machine([40, 40], &[0, 1]);
    let made =
        |program: &Program, pages, numa| plan(&program.facts, &machine, &Policy { pages, numa, ..Policy::default() });
    let sources_of = |program: &Program, numa| sources(&made(program, Pages::Auto, numa));
    assert_eq!(sources_of(&program, Numa::Own)[0], Source::File);
    assert_eq!(sources_of(&program, Numa::Node(1))[0], Source::Hugetlb);
    let reason = |plan: Plan| plan.refusals[0].reason.clone();
    let file = Some(program.facts.objects[0].path.clone());
    let no_image_on = |node| Reason::NoImageOnNode { nodes: nodes(&[node]), file: file.clone() };
    assert_eq!(reason(made(&program, Pages::Image, Numa::Node(1))), no_image_on(1));
    on(&mut program, Some(1));
    assert_eq!(sources_of(&program, Numa::Own)[0], Source::Image);
    assert_eq!(sources_of(&program, Numa::Node(1))[0], Source::Image);
    assert_eq!(sources_of(&program, Numa::Local)[0], Source::Image);
    assert_eq!(sources_of(&program, Numa::Node(0))[0], Source::Hugetlb);
    assert_eq!(sources_of(&program, Numa::Interleave)[0], Source::Hugetlb);
    assert_eq!(reason(made(&program, Pages::Image, Numa::Node(0))), no_image_on(0));
    assert_eq!(reason(made(&program, Pages::Image, Numa::Interleave)), Reason::SharedPages);
}

#[test]
fn memory_has_its_policy_before_its_pages() {
    for (numa, preference, on) in
        [(Numa::Node(0), Preference::Bind, [0].as_slice()), (Numa::Interleave, Preference::Interleave, &[0, 1])]
    {
        for movable_hugetlb in [true, false] {
            let machine = MachineFacts { movable_hugetlb, ..machine([40, 40], &[0, 1]) };
            for lift in made(&machine, Pages::Hugetlb, numa).lifts {
                let attempt = &lift.attempts[0];
                let steps = steps_of(&lift, attempt, &attempt.parts[0]);
                let placed = steps.iter().position(|step| match step {
                    Step::PlaceStaging(_, placement) | Step::PlaceInPlace(_, placement) => {
                        assert_eq!((placement.preference, &placement.nodes), (preference, &nodes(on)));
                        true
                    }
                    _ => false,
                });
                let fills = |step: &Step| matches!(step, Step::PopulateStaging(..) | Step::PopulateInPlace(..));
                let mapped = steps.iter().position(|s| matches!(s, Step::MapStaging { .. } | Step::MapInPlace(..)));
                assert!(mapped < placed && placed < steps.iter().position(fills), "{steps:?}");
            }
        }
    }
    let own = made(&machine([40, 40], &[0, 1]), Pages::Hugetlb, Numa::Own);
    assert_eq!(own.lifts[0].attempts[0].placement, None);
}

/// The pages of an image exist already, and memory that stays in place keeps the program's own policy.
#[test]
fn only_what_is_copied_gets_a_policy() {
    let mut program = program().imaged(HUGE);
    program.facts.images.iter_mut().for_each(|span| span.node = Some(1));
    program.heap(range(64 * HUGE, 66 * HUGE));
    let program = program.finish();
    let policy = Policy { numa: Numa::Node(1), ..Policy::default() };
    let made = plan(&program.facts, &machine([40, 40], &[0, 1]), &policy);
    let attempts = made.lifts.iter().flat_map(|lift| &lift.attempts);
    let placed: Vec<_> = attempts.map(|attempt| (attempt.source, attempt.placement.clone())).collect();
    let bound = Some(Placement { preference: Preference::Bind, nodes: nodes(&[1]) });
    let of_code = [(Source::Image, None), (Source::Hugetlb, bound.clone()), (Source::Thp, bound)];
    assert_eq!(placed, [&of_code[..], &[(Source::Thp, None)]].concat());
    // A node that may not be used is no matter to the heap, which takes no pages by the user's choice.
    let forbidden = plan(&program.facts, &machine([40, 40], &[0]), &policy);
    assert_eq!(sources(&forbidden), [Source::Thp]);
    assert_eq!(forbidden.lifts[0].object, "[heap]");
}

#[test]
fn memory_of_the_allowed_nodes_bounds_transparent_pages() {
    let mut machine = machine([0, 0], &[0]);
    let facts = machine.numa.as_mut().unwrap();
    facts.nodes[0].memory = 3 * HUGE - 1;
    let bound = "available memory of node 0".to_owned();
    let expected = Reason::Memory { needed: 3 * HUGE, left: 3 * HUGE - 1, bound };
    assert_eq!(made(&machine, Pages::Thp, Numa::Own).refusals[0].reason, expected);
    machine.numa.as_mut().unwrap().allowed = nodes(&[0, 1]);
    assert_eq!(sources(&made(&machine, Pages::Thp, Numa::Own)), [Source::Thp]);
}
