//! The fate of each page: the oracle computes it page by page, huge page by huge page, and every page of a plan must
//! have exactly that fate. So a plan that widens a protection is found, and so is one that omits memory that could be
//! lifted.

use crate::oracle::{Page, Pages, chosen_pages, considered_heap, fault_of_cached, page_at, pages_in};
use crate::support::{PAGE, Program, Segment, Shape, machine_with, random, range};
use address_space::{Address, AddressRange, ElfKind, ObjectRole, PageSize, Protection, RangeSet};
use lift_plan::{
    EdgeCure, Edges, Kind, MachineFacts, ObjectChoice, Plan, Policy, Reason, ThpMode, WritablePages, plan,
};
use proptest::prelude::*;
use std::collections::BTreeMap;

/// The fate of one base page.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Fate {
    /// In a huge page of one kind of protection: lifted, or refused for want of means.
    Whole,
    /// Stays as it is since it does not fill a huge page, in a range that has others that do.
    Edge,
    /// Stays unchanged for a specific reason.
    Refused(Reason),
}

type Fates = BTreeMap<u64, Fate>;

/// True if two neighbouring pages may share a huge page.
fn may_share(a: &Page, b: &Page, policy: &Policy) -> bool {
    let never_written = |page: &Page| page.protection.read && !page.protection.write;
    let merged = policy.edges == Edges::MergeReadOnly && a.kind != Kind::Heap && never_written(a) && never_written(b);
    // Memory that the program will seal must not share a pool page with other memory.
    let apart = policy.writable_pages == WritablePages::Hugetlb && a.relro_pending != b.relro_pending;
    a.object == b.object && (a.protection == b.protection || merged) && !apart
}

/// Runs of neighbouring pages that may share huge pages.
fn groups(pages: &Pages, policy: &Policy) -> Vec<AddressRange> {
    let mut groups: Vec<AddressRange> = Vec::new();
    let mut last: Option<(u64, &Page)> = None;
    for (&at, page) in pages.iter().filter(|(_, page)| page.refused.is_none()) {
        let joins = last.is_some_and(|(before, other)| before + PAGE == at && may_share(other, page, policy));
        match groups.last_mut() {
            Some(group) if joins => *group = AddressRange::new(group.start(), page_at(at).end()),
            _ => groups.push(page_at(at)),
        }
        last = Some((at, page));
    }
    groups
}

/// Why a whole huge page of an object stays with its file, if so.
fn kept(pages: &Pages, huge: AddressRange, case: &Case) -> Option<Reason> {
    let facts = &case.program.facts;
    let has = |fits: &dyn Fn(&Page) -> bool| pages_in(huge).any(|page| fits(&pages[&page]));
    if facts.probed.overlaps(huge) {
        return Some(Reason::Probed);
    }
    if facts.semaphores.overlaps(huge) && has(&|page| page.protection.write) {
        return Some(Reason::Semaphores);
    }
    let holds_header = facts.objects.iter().any(|object| {
        let first = object.image.segments.iter().find(|segment| segment.offset == 0 && segment.file_size > 0);
        first.is_some_and(|first| huge.contains(first.memory.start() + object.bias))
    });
    let is_data = !has(&|page| page.kind != Kind::Rodata);
    (holds_header && is_data && !case.is_shown_first(huge)).then_some(Reason::FileHeader)
}

/// The inputs of a plan.
struct Case<'a> {
    program: &'a Program,
    machine: &'a MachineFacts,
    policy: &'a Policy,
    size: PageSize,
}

impl Case<'_> {
    /// True if the file itself is the first source for a read-only huge page and can show it.
    fn is_shown_first(&self, huge: AddressRange) -> bool {
        let thp = self.machine.thp.filter(|thp| thp.mode != ThpMode::OffInProcess && thp.size == self.size);
        let file = fault_of_cached(self.program, huge).ok();
        let shows = file.is_some_and(|file| self.machine.refaults_huge || file.own_path.is_some()) && thp.is_some();
        match self.policy.pages {
            lift_plan::Pages::File => true,
            lift_plan::Pages::FileThenImage | lift_plan::Pages::Auto => shows,
            _ => false,
        }
    }
}

/// The fates of the pages of one group.
fn fates_of_group(group: AddressRange, is_heap: bool, pages: &Pages, case: &Case) -> Fates {
    let size = case.size;
    let no_whole_page = |bytes: u64| Fate::Refused(Reason::NoWholePage { bytes, size });
    let wholes: Vec<u64> = pages_in(group).filter(|&page| group.covers(huge_page_at(page, size))).collect();
    let of_page = |page: u64| {
        let huge = huge_page_at(page, size);
        match (group.covers(huge), wholes.is_empty()) {
            (true, _) if is_heap => Fate::Whole,
            (true, _) => kept(pages, huge, case).map_or(Fate::Whole, Fate::Refused),
            (false, true) => no_whole_page(group.len()),
            (false, false) if !is_heap => Fate::Edge,
            (false, false) if page < wholes[0] => no_whole_page(wholes[0] - group.start().0),
            (false, false) => no_whole_page(group.end().0 - wholes[wholes.len() - 1] - PAGE),
        }
    };
    pages_in(group).map(|page| (page, of_page(page))).collect()
}

/// The huge page that contains an address.
fn huge_page_at(address: u64, size: PageSize) -> AddressRange {
    AddressRange::sized(Address(address / size.bytes() * size.bytes()), size.bytes())
}

/// The fates of all pages that a plan has to consider.
fn expected(case: &Case) -> Fates {
    let Case { program, policy, .. } = *case;
    let mut fates = Fates::new();
    for (pages, is_heap) in [(chosen_pages(program, policy), false), (considered_heap(program, policy), true)] {
        for group in groups(&pages, policy) {
            fates.extend(fates_of_group(group, is_heap, &pages, case));
        }
        let refused = pages.iter().filter_map(|(&at, page)| Some((at, Fate::Refused(page.refused.clone()?))));
        fates.extend(refused);
        if policy.objects == ObjectChoice::WorthIt && !is_heap {
            leave_out_small_objects(&mut fates, &pages, program);
        }
    }
    fates
}

/// Objects other than the executable are considered only if they contain a whole huge page.
fn leave_out_small_objects(fates: &mut Fates, pages: &Pages, program: &Program) {
    for object in program.facts.objects.iter().filter(|object| object.role != ObjectRole::Executable) {
        let own = || pages.iter().filter(|(_, page)| page.object == object.name()).map(|(&at, _)| at);
        let stays = |reason: &Reason| matches!(reason, Reason::Probed | Reason::Semaphores | Reason::FileHeader);
        let fills_one = |fate: &Fate| match fate {
            Fate::Refused(reason) => stays(reason),
            fate => *fate == Fate::Whole,
        };
        if !own().any(|page| fills_one(&fates[&page])) {
            own().for_each(|page| _ = fates.remove(&page));
        }
    }
}

/// Reasons that concern the machine's resources, not the memory.
pub fn is_want_of_means(reason: &Reason) -> bool {
    use Reason::*;
    matches!(
        reason,
        PoolTooSmall { .. }
            | PoolLimited { .. }
            | NoSuchPool { .. }
            | PoolPagesStay(_)
            | ThpOff
            | ThpOffInProcess
            | NoCachedFile
            | NotCongruent { .. }
            | SmallFolios(_)
            | WrittenTo
            | NoThp
            | ThpSize { .. }
            | NoImage { .. }
            | NotInImage
            | Memory { .. }
            | Mappings { .. }
            | ProtectionPending
    )
}

/// The fates that a plan gives.
fn planned(plan: &Plan) -> Fates {
    let mut fates = Fates::new();
    let of_reason =
        |reason: &Reason| if is_want_of_means(reason) { Fate::Whole } else { Fate::Refused(reason.clone()) };
    let lifts = plan.lifts.iter().map(|lift| (lift.range, Fate::Whole));
    let refusals = plan.refusals.iter().map(|refusal| (refusal.range, of_reason(&refusal.reason)));
    for (range, fate) in lifts.chain(refusals).chain(plan.edges.iter().map(|edge| (edge.range, Fate::Edge))) {
        fates.extend(pages_in(range).map(|page| (page, fate.clone())));
    }
    fates
}

/// Refusals and edges name exactly the kinds of memory in them, in the order of addresses.
fn kinds_are_true(program: &Program, policy: &Policy, plan: &Plan) -> Result<(), TestCaseError> {
    let mut pages = chosen_pages(program, policy);
    pages.extend(considered_heap(program, policy));
    let refusals = plan.refusals.iter().map(|refusal| (refusal.range, &refusal.object, &refusal.kinds));
    for (range, object, kinds) in refusals.chain(plan.edges.iter().map(|edge| (edge.range, &edge.object, &edge.kinds)))
    {
        let mut found: Vec<Kind> = Vec::new();
        for page in pages_in(range).map(|page| &pages[&page]) {
            prop_assert_eq!(&page.object, object, "{} in {:?}", range, plan);
            if !found.contains(&page.kind) {
                found.push(page.kind);
            }
        }
        prop_assert_eq!(kinds, &found, "{} in {:?}", range, plan);
    }
    for edge in &plan.edges {
        prop_assert_eq!(edge.protection, pages[&edge.range.start().0].protection, "{:?}", edge);
    }
    Ok(())
}

/// A plan names merging as a cure only if it covers a part of the edge, or if the joined segments can be moved
/// together.
fn cures_cure(program: &Program, machine: &MachineFacts, policy: &Policy, made: &Plan) -> Result<(), TestCaseError> {
    let merging = Policy { edges: Edges::MergeReadOnly, ..policy.clone() };
    let left: RangeSet = plan(&program.facts, machine, &merging).edges.iter().map(|edge| edge.range).collect();
    let pages = chosen_pages(program, policy);
    let page = |at: u64| pages.get(&at).filter(|page| page.refused.is_none());
    let joins = |a: u64, b: u64| {
        let both = page(a).zip(page(b));
        both.is_some_and(|(a, b)| !may_share(a, b, policy) && may_share(a, b, &merging))
    };
    for edge in &made.edges {
        let (start, end) = (edge.range.start().0, edge.range.end().0);
        let movable = !program.facts.running
            && program.facts.objects.iter().any(|object| {
                let executable = object.role == ObjectRole::Executable && object.name() == edge.object;
                executable && object.image.kind == ElfKind::PositionIndependent
            });
        let helps = !left.covers(edge.range) || movable && (joins(start - PAGE, start) || joins(end - PAGE, end));
        let expected = if helps { EdgeCure::MergeReadOnly } else { EdgeCure::Relink };
        prop_assert_eq!(edge.cure, expected, "{:?}, merged: {:?}", edge, left);
    }
    Ok(())
}

/// The size of huge pages that a plan uses.
pub fn size_of(machine: &MachineFacts, policy: &Policy) -> Option<PageSize> {
    policy.page_size.or_else(|| machine.usual_huge_page())
}

pub fn check(program: &Program, machine: &MachineFacts, policy: &Policy, plan: &Plan) -> Result<(), TestCaseError> {
    let Some(size) = size_of(machine, policy) else { return Ok(()) };
    let (expected, planned) = (expected(&Case { program, machine, policy, size }), planned(plan));
    for page in expected.keys().chain(planned.keys()) {
        prop_assert_eq!(planned.get(page), expected.get(page), "page {:x} of {:?}", page, plan);
    }
    kinds_are_true(program, policy, plan)?;
    cures_cure(program, machine, policy, plan)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn every_page_has_the_fate_that_it_must_have(
        program in random::program(),
        machine in random::machine(),
        policy in random::policy(),
    ) {
        let made = plan(&program.facts, &machine, &policy);
        check(&program, &machine, &policy, &made)?;
    }
}

/// The cures of the edges of an executable whose first segment begins a page after the border of a huge page of four.
fn cures_of(segments: Vec<Segment>, running: bool) -> Vec<(AddressRange, EdgeCure)> {
    let huge = 4 * PAGE;
    let mut program = Program::new("alone");
    program.load(&Shape::new("/bin/exe", ObjectRole::Executable, 16 * huge + PAGE, segments), true);
    let mut program = program.finish();
    program.facts.running = running;
    let made = plan(&program.facts, &machine_with(huge, 100), &Policy::default());
    made.edges.iter().map(|edge| (edge.range, edge.cure)).collect()
}

/// Merging covers no further huge page at the present base, but would at another base.
#[test]
fn merging_cures_an_edge_that_can_be_moved_together_with_what_is_joined() {
    let page = |number: u64| 64 * PAGE + number * PAGE;
    let (data, code) = (Segment::new(Protection::READ, PAGE), Segment::new(Protection::READ_EXECUTE, 8 * PAGE));
    let (merge, relink) = (EdgeCure::MergeReadOnly, EdgeCure::Relink);
    let before = [range(page(2), page(4)), range(page(8), page(10))];
    assert_eq!(cures_of(vec![data, code], false), [(before[0], merge), (before[1], relink)]);
    let behind = [range(page(1), page(4)), range(page(8), page(9))];
    assert_eq!(cures_of(vec![code, data], false), [(behind[0], relink), (behind[1], merge)]);
    // A program that runs is not moved.
    assert_eq!(cures_of(vec![code, data], true), [(behind[0], relink), (behind[1], relink)]);
}
