//! A value exactly at a bound is accepted; a value below is refused with the numbers that were found.

use crate::support::{PAGE, Program, Segment, Shape, machine_with, page_size, range};
use address_space::{ObjectRole, Protection};
use lift_plan::{
    HugePool, Kind, MachineFacts, Method, Pages, Plan, Policy, PoolLimit, Reason, Source, WritablePages, plan,
};

const HUGE: u64 = 4 * PAGE;

/// A program of 2 huge pages of code and 3 of data, the last of which is bss of which 1 base page has been touched.
fn program() -> Program {
    let segments = vec![
        Segment::new(Protection::READ_EXECUTE, 2 * HUGE),
        Segment::new(Protection::READ_WRITE, 2 * HUGE).zeros(HUGE),
    ];
    let mut program = Program::new("bounds");
    program.load(&Shape::new("/bin/exe", ObjectRole::Executable, 16 * HUGE, segments), true);
    program.touch(range(20 * HUGE, 20 * HUGE + PAGE));
    program.finish()
}

fn machine() -> MachineFacts {
    machine_with(HUGE, 9)
}

fn made(machine: &MachineFacts, policy: &Policy) -> Plan {
    plan(&program().facts, machine, policy)
}

/// The sources of code and of data, best first.
fn sources(plan: &Plan) -> [Vec<Source>; 2] {
    [Kind::Text, Kind::Data].map(|kind| {
        let lift = plan.lifts.iter().find(|lift| lift.kinds.contains(&kind));
        lift.map_or(Vec::new(), |lift| lift.attempts.iter().map(|attempt| attempt.source).collect())
    })
}

fn only_refusal(plan: &Plan) -> &Reason {
    assert_eq!(plan.refusals.len(), 1, "{plan:?}");
    &plan.refusals[0].reason
}

#[test]
fn the_pool_serves_to_its_last_page() {
    let policy = Policy { pages: Pages::Hugetlb, writable_pages: WritablePages::Hugetlb, ..Policy::default() };
    let with = |available| {
        let pools = vec![HugePool { size: page_size(HUGE), total: 9, available }];
        made(&MachineFacts { pools, ..machine() }, &policy)
    };
    assert_eq!(sources(&with(5)), [vec![Source::Hugetlb], vec![Source::Hugetlb]]);
    assert_eq!(with(5).pool_pages(page_size(HUGE)), 5);
    let short = with(4);
    assert_eq!(sources(&short), [vec![Source::Hugetlb], vec![]]);
    let size = page_size(HUGE);
    let refusal = only_refusal(&short);
    assert_eq!(*refusal, Reason::PoolTooSmall { size, needed: 3, available: 2, total: 9, whole: 5 });
    assert_eq!(refusal.fix().as_deref(), Some("pagelift pool reserve 16K:5"), "the pages of code too");
    let none = with(0);
    let fixes: Vec<_> = none.refusals.iter().map(|refusal| refusal.reason.fix().unwrap()).collect();
    assert_eq!(fixes, ["pagelift pool reserve 16K:5"; 2]);
}

#[test]
fn a_cgroup_that_allows_less_than_the_pool_has_is_named() {
    let policy = Policy { pages: Pages::Hugetlb, writable_pages: WritablePages::Hugetlb, ..Policy::default() };
    let (size, file) = (page_size(HUGE), "/c/hugetlb.max".to_owned());
    let with = |pool| {
        let pools = vec![HugePool { size, total: 9, available: 4 }];
        let pool_limits = vec![PoolLimit { size, pool, limit: 4 * HUGE, file: file.clone() }];
        only_refusal(&made(&MachineFacts { pools, pool_limits, ..machine() }, &policy)).clone()
    };
    let limited = Reason::PoolLimited { size, needed: 3, available: 2, limit: 4 * HUGE, file: file.clone() };
    assert_eq!(with(5), limited);
    assert_eq!(limited.fix(), Some(format!("echo {} > /c/hugetlb.max", 5 * HUGE)));
    assert!(matches!(with(2), Reason::PoolTooSmall { .. }));
}

/// Code takes 8 base pages; of the data 8 are copied and of the bss all but the touched page become resident.
const CODE: u64 = 8 * PAGE;
const DATA: u64 = (8 + 3) * PAGE;

#[test]
fn memory_serves_to_its_last_byte() {
    let policy = Policy { pages: Pages::Thp, ..Policy::default() };
    let with = |memory_available| made(&MachineFacts { memory_available, ..machine() }, &policy);
    assert_eq!(sources(&with(CODE + DATA)), [vec![Source::Thp], vec![Source::Thp]]);
    assert_eq!(with(CODE + DATA).lifts.iter().map(|lift| lift.attempts[0].memory).sum::<u64>(), CODE + DATA);
    let short = with(CODE + DATA - 1);
    assert_eq!(sources(&short), [vec![Source::Thp], vec![]]);
    let bound = "the machine".to_owned();
    assert_eq!(*only_refusal(&short), Reason::Memory { needed: DATA, left: DATA - 1, bound });
}

#[test]
fn what_the_user_allows_is_used_to_its_last_byte() {
    for pages in [Pages::Thp, Pages::Hugetlb] {
        let policy = Policy { pages, writable_pages: WritablePages::Hugetlb, ..Policy::default() };
        let all = made(&machine(), &policy).lifts.iter().map(|lift| lift.attempts[0].memory).sum::<u64>();
        let with = |most| made(&machine(), &Policy { max_memory: Some(most), ..policy.clone() });
        assert_eq!(with(all).lifts.len(), 2, "{pages:?}");
        let short = with(all - 1);
        assert_eq!(short.lifts.len(), 1);
        let (needed, bound) = (all - CODE, "--max-memory".to_owned());
        assert_eq!(*only_refusal(&short), Reason::Memory { needed, left: needed - 1, bound });
    }
}

/// A part takes 4 mappings at most: two for the staging copy, two for the splits on both sides of the swap. `mremap` wants
/// room besides.
#[test]
fn mappings_serve_to_the_last_that_mremap_allows() {
    const ROOM: u64 = 8;
    let policy = Policy { pages: Pages::Thp, ..Policy::default() };
    let mut program = program();
    program.heap(range(32 * HUGE, 33 * HUGE));
    let program = program.finish();
    let now = program.facts.space.mappings().len() as u64;
    let with = |max_mappings| plan(&program.facts, &MachineFacts { max_mappings, ..machine() }, &policy);
    let parts = |plan: &Plan| plan.lifts.iter().map(|lift| lift.attempts[0].parts.len() as u64).collect::<Vec<_>>();
    let enough = with(now + 4 * (1 + 2 + 1) + ROOM);
    assert_eq!(parts(&enough), [1, 2, 1], "code by one swap, data by a swap and bss and heap where they lie");
    assert!(matches!(enough.lifts[1].attempts[0].parts[1].method, Method::InPlace { .. }));
    let most = now + 4 * (1 + 2 + 1) + ROOM - 1;
    let short = with(most);
    assert_eq!(parts(&short), [1, 2]);
    assert_eq!(*only_refusal(&short), Reason::Mappings { now: now + 4 * (1 + 2), most });
    assert_eq!(parts(&with(now + 4 * (1 + 2) + ROOM - 1)), [1, 1], "code and heap");
    assert!(with(now + 4 + ROOM - 1).lifts.is_empty());
}

/// A second source counts against the bounds only by its excess over the first.
#[test]
fn second_sources_are_kept_as_far_as_means_reach() {
    let policy = Policy::default();
    let with = |memory_available| sources(&made(&MachineFacts { memory_available, ..machine() }, &policy))[0].clone();
    assert_eq!(with(DATA + CODE), [Source::Hugetlb, Source::Thp]);
    assert_eq!(with(DATA + CODE - 1), [Source::Hugetlb]);
    let allowed = |most| sources(&made(&machine(), &Policy { max_memory: Some(most), ..policy.clone() }));
    assert_eq!(allowed(CODE + DATA), [vec![Source::Hugetlb, Source::Thp], vec![Source::Thp]]);
    assert_eq!(allowed(CODE + DATA - 1), [vec![Source::Hugetlb, Source::Thp], vec![]]);
}

/// A program of 2 huge pages of code and 2 of read-only data.
fn two_ranges() -> Program {
    let segments = vec![Segment::new(Protection::READ_EXECUTE, 2 * HUGE), Segment::new(Protection::READ, 2 * HUGE)];
    let mut program = Program::new("two ranges");
    program.load(&Shape::new("/bin/exe", ObjectRole::Executable, 16 * HUGE, segments), true);
    program.finish()
}

fn attempts_of_each(program: &Program, machine: &MachineFacts, policy: &Policy) -> Vec<usize> {
    plan(&program.facts, machine, policy).lifts.iter().map(|lift| lift.attempts.len()).collect()
}

#[test]
fn second_sources_of_several_ranges_count_together() {
    let with = |memory_available| {
        attempts_of_each(&two_ranges(), &MachineFacts { memory_available, ..machine() }, &Policy::default())
    };
    assert_eq!(with(4 * HUGE), [2, 2]);
    assert_eq!(with(4 * HUGE - 1), [2, 1], "each by itself would be enough for either");
    assert_eq!(with(2 * HUGE - 1), [1, 1]);
}

/// An image takes no memory, and each of the two sources behind it takes all of the range's.
#[test]
fn second_sources_behind_images_count_together_against_what_the_user_allows() {
    let program = two_ranges().imaged(HUGE);
    let allowed =
        |most| attempts_of_each(&program, &machine(), &Policy { max_memory: Some(most), ..Policy::default() });
    assert_eq!(allowed(8 * HUGE), [3, 3]);
    assert_eq!(allowed(8 * HUGE - 1), [3, 2]);
    assert_eq!(allowed(4 * HUGE), [3, 1]);
    assert_eq!(allowed(4 * HUGE - 1), [2, 1]);
    assert_eq!(allowed(2 * HUGE - 1), [1, 1]);
}

/// A program may make its heap executable (mprotect(2)); it is no more copied than other such memory.
#[test]
fn a_heap_that_is_writable_and_executable_stays() {
    let mut program = Program::new("rwx heap");
    program.heap(range(32 * HUGE, 40 * HUGE));
    // Two mappings that share a huge page, which could only be lifted by a copy.
    program.protect(range(32 * HUGE, 34 * HUGE + PAGE), crate::support::RWX);
    program.protect(range(34 * HUGE + PAGE, 40 * HUGE), crate::support::RWX);
    let made = plan(&program.finish().facts, &machine(), &Policy::default());
    assert!(made.lifts.is_empty(), "{made:?}");
    assert!(made.refusals.iter().all(|refusal| refusal.reason == Reason::WritableAndExecutable));
    assert_eq!(made.refusals.iter().map(|refusal| refusal.range.len()).sum::<u64>(), 8 * HUGE);
}

#[test]
fn without_huge_pages_and_on_another_machine_all_is_refused_for_that() {
    let without = MachineFacts { pools: Vec::new(), default_hugetlb: None, thp: None, ..machine() };
    let other = MachineFacts { elf_machine: crate::support::MACHINE + 1, ..machine() };
    let built_for = Reason::OtherMachine(crate::support::MACHINE);
    for (machine, reason) in [(without, Reason::NoHugePages), (other, built_for)] {
        let plan = made(&machine, &Policy::default());
        assert!(plan.lifts.is_empty() && plan.refusals.iter().all(|refusal| refusal.reason == reason), "{plan:?}");
        assert_eq!(plan.refusals.iter().map(|refusal| refusal.range.len()).sum::<u64>(), 5 * HUGE);
        assert_eq!(plan.considered, 5 * HUGE);
    }
}
