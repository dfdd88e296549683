//! The choice of a base: as good as any, and equal to the coverage of a later plan.

use crate::oracle::{Page, chosen_pages, pages_in};
use crate::support::{PAGE, Program, Segment, Shape, base_page, machine_with, page_size, random};
use address_space::{Address, AddressRange, ElfImage, ElfKind, ObjectRole, Protection, RangeSet};
use lift_plan::{
    BaseChoice, Coverable, Edges, Kind, Kinds, ObjectChoice, Pages, Policy, Source, cached_coverable, choose_base,
    choose_cached_base, coverable, plan,
};
use proptest::prelude::*;
use std::ops::Range;

/// The best of all offsets, the smallest of equals.
fn by_trying_all(shape: &Shape, huge: u64, kinds: Kinds, edges: Edges) -> (u64, Coverable) {
    let image = shape.object().image;
    let step = image.largest_alignment(base_page()).bytes();
    let mut best = (0, Coverable::default());
    for offset in (0..huge).step_by(step as usize) {
        let covered = coverable(&image, offset, page_size(huge), base_page(), kinds, edges);
        if covered > best.1 {
            best = (offset, covered);
        }
    }
    best
}

/// The bytes of a shape that huge pages cover in place, counted huge page by huge page.
fn counted(shape: &Shape, huge: u64, kinds: Kinds, edges: Edges) -> Coverable {
    let mut program = Program::new("alone");
    program.load(shape, true);
    let program = program.finish();
    let pages = chosen_pages(&program, &Policy { kinds, objects: ObjectChoice::All, ..Policy::default() });
    let never_written = |page: &Page| page.protection.read && !page.protection.write;
    let wholes: RangeSet = pages.keys().map(|&page| AddressRange::sized(Address(page / huge * huge), huge)).collect();
    let mut covered = Coverable::default();
    for whole in wholes.iter().flat_map(|range| range.pages(page_size(huge))) {
        let inside: Vec<&Page> = pages_in(whole).filter_map(|page| pages.get(&page)).collect();
        let full = inside.len() as u64 * PAGE == huge && inside.iter().all(|page| page.refused.is_none());
        let same = inside.iter().all(|page| page.protection == inside[0].protection);
        if full && (same || edges == Edges::MergeReadOnly && inside.iter().all(|page| never_written(page))) {
            let bytes = |which: &dyn Fn(&Page) -> bool| inside.iter().filter(|page| which(page)).count() as u64 * PAGE;
            covered.text += bytes(&|page| page.protection.execute);
            covered.read_only += bytes(&|page| !page.protection.write);
            covered.total += huge;
        }
    }
    covered
}

/// The image with each segment so many pages further up in the file than the one before it, as linkers place them that save
/// space in the file.
fn moved_in_file(mut image: ElfImage, shifts: &[u64]) -> ElfImage {
    let mut shift = 0;
    for (segment, more) in image.segments.iter_mut().zip(shifts) {
        shift += more * PAGE;
        segment.offset += shift;
    }
    image
}

/// The bytes of an image that huge folios show, counted huge page by huge page: pages of one segment that is never
/// written, which no later segment hides, whose addresses agree with their offsets.
fn shown_of_file(image: &ElfImage, parts: &[Range<u64>], bias: u64, huge: u64, kinds: Kinds) -> Coverable {
    let mut shown = Coverable::default();
    for (index, segment) in image.segments.iter().enumerate() {
        let (execute, first) = (segment.protection.execute, segment.memory.start().0 / PAGE * PAGE);
        let kind = if execute { Kind::Text } else { Kind::Rodata };
        if segment.protection.write || !segment.protection.read || segment.file_size == 0 || !kinds.contains(kind) {
            continue;
        }
        let hidden = image.segments[index + 1..].iter().map(|later| later.memory.start().0 / PAGE * PAGE).min();
        let file_end = (segment.memory.start().0 + segment.file_size).next_multiple_of(PAGE);
        let end = file_end.min(hidden.unwrap_or(u64::MAX));
        let offset = segment.offset / PAGE * PAGE;
        for address in (first..end).filter(|address| (address + bias).is_multiple_of(huge) && address + huge <= end) {
            let at = offset + (address - first);
            let in_folio = parts.iter().any(|part| part.start <= at && at + huge <= part.end);
            if at.is_multiple_of(huge) && in_folio {
                shown.total += huge;
                shown.read_only += huge;
                shown.text += if execute { huge } else { 0 };
            }
        }
    }
    shown
}

fn kinds() -> impl Strategy<Value = Kinds> {
    let all = vec![Kind::Text, Kind::Rodata, Kind::Data, Kind::Bss];
    proptest::sample::subsequence(all, 1..=4).prop_map(|kinds| Kinds::of(&kinds))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(5000))]

    #[test]
    fn no_other_base_covers_more(
        shape in random::shape(),
        huge in proptest::sample::select(random::HUGE_SIZES.to_vec()),
        kinds in kinds(),
        merge in any::<bool>(),
    ) {
        let edges = if merge { Edges::MergeReadOnly } else { Edges::Exact };
        let image = shape.object().image;
        let BaseChoice { offset, covered, .. } = choose_base(&image, page_size(huge), base_page(), kinds, edges);
        prop_assert_eq!((offset, covered), by_trying_all(&shape, huge, kinds, edges));
        prop_assert!(offset < huge);
        prop_assert!(offset.is_multiple_of(image.largest_alignment(base_page()).bytes()), "segments out of alignment");
    }

    #[test]
    fn what_is_covered_is_counted_right(
        shape in random::shape(),
        huge in proptest::sample::select(random::HUGE_SIZES.to_vec()),
        kinds in kinds(),
        merge in any::<bool>(),
    ) {
        let edges = if merge { Edges::MergeReadOnly } else { Edges::Exact };
        let object = shape.object();
        let found = coverable(&object.image, object.bias, page_size(huge), base_page(), kinds, edges);
        prop_assert_eq!(found, counted(&shape, huge, kinds, edges));
    }

    /// The planner plans exactly the coverage that the choice of a base promises, once the image is loaded there.
    #[test]
    fn what_is_promised_at_a_base_is_planned_there(
        shape in random::shape(),
        machine in random::machine(),
        kinds in kinds(),
        merge in any::<bool>(),
    ) {
        let edges = if merge { Edges::MergeReadOnly } else { Edges::Exact };
        let mut program = Program::new("alone");
        let object = program.load(&shape, true);
        let program = program.finish();
        let policy = Policy { kinds, edges, objects: ObjectChoice::All, ..Policy::default() };
        let Some(size) = machine.usual_huge_page() else { return Ok(()) };
        let made = plan(&program.facts, &machine, &policy);
        let bias = if shape.kind == ElfKind::FixedAddress { 0 } else { object.bias };
        let promised = coverable(&object.image, bias, size, base_page(), kinds, edges);
        let wholes = made.lifts.iter().map(|lift| lift.range.len());
        let refused = made.refusals.iter().map(|r| r.range.whole_pages(size)).filter(|r| !r.is_empty());
        // A range that lacks means is refused whole; one that holds no huge page has none to promise.
        let lacking = refused.filter(|range| range.start().is_aligned(size) && range.end().is_aligned(size));
        let writable_code = |p: address_space::Protection| p.write && p.execute || !p.read;
        let lacking = lacking
            .filter(|range| !program.facts.space.overlapping(*range).iter().any(|m| writable_code(m.protection)));
        prop_assert_eq!(wholes.sum::<u64>() + lacking.map(|r| r.len()).sum::<u64>(), promised.total, "{:?}", made);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// No other base shows more of a file in huge folios, for any offsets of its segments.
    #[test]
    fn no_other_base_agrees_with_more_of_the_file(
        shape in random::shape(),
        blocks in any::<u64>(),
        kinds in kinds(),
        shifts in prop::collection::vec(0..9u64, 6),
    ) {
        let image = moved_in_file(shape.object().image, &shifts);
        let (huge, parts) = (random::HUGE_SIZES[0], random::huge_parts(blocks));
        let chosen = choose_cached_base(&image, &parts, page_size(huge), base_page(), kinds);
        let step = image.largest_alignment(base_page()).bytes();
        let mut best = (0, Coverable::default());
        for bias in (0..huge).step_by(step as usize) {
            let shown = shown_of_file(&image, &parts, bias, huge, kinds);
            prop_assert_eq!(cached_coverable(&image, &parts, bias, page_size(huge), base_page(), kinds), shown);
            best = if shown > best.1 { (bias, shown) } else { best };
        }
        prop_assert_eq!((chosen.offset, chosen.covered), best);
    }

    /// A plan takes from the file the bytes that the choice of a base promises, and more if segments continue each
    /// other.
    #[test]
    fn what_is_promised_of_the_file_is_planned(shape in random::shape(), blocks in any::<u64>(), kinds in kinds()) {
        let (huge, image) = (random::HUGE_SIZES[0], shape.object().image);
        let parts = random::huge_parts(blocks);
        let shown = |bias| cached_coverable(&image, &parts, bias, page_size(huge), base_page(), kinds);
        let mut program = Program::new("alone");
        let object = program.load(&shape, true);
        program.cached(shape.path, parts.clone(), true);
        let program = program.finish();
        let policy = Policy { kinds, pages: Pages::File, objects: ObjectChoice::All, ..Policy::default() };
        let made = plan(&program.facts, &machine_with(huge, 0), &policy);
        let of_file = made.lifts.iter().filter(|lift| lift.attempts[0].source == Source::File);
        prop_assert!(of_file.map(|lift| lift.range.len()).sum::<u64>() >= shown(object.bias).read_only, "{made:?}");
    }
}

/// Zeros after the file's bytes of a read-only segment are not part of the file.
#[test]
fn zeros_of_a_read_only_segment_are_not_shown_by_its_file() {
    let huge = 4 * PAGE;
    for file in [0, 2 * huge] {
        let segment = Segment::new(Protection::READ, file).zeros(2 * huge);
        let image = Shape::new("/bin/exe", ObjectRole::Executable, 0, vec![segment]).object().image;
        let all = 0..64 * huge;
        let shown = cached_coverable(&image, std::slice::from_ref(&all), 0, page_size(huge), base_page(), Kinds::USUAL);
        assert_eq!(shown, Coverable { text: 0, read_only: file, total: file });
    }
}

/// As long as one huge page and no longer, a segment fits at one offset alone.
#[test]
fn a_segment_as_long_as_a_huge_page_gets_the_base_that_it_fits() {
    let huge = 16 * PAGE;
    let segments = vec![Segment::new(Protection::READ, 3 * PAGE), Segment::new(Protection::READ_EXECUTE, huge)];
    let image = Shape::new("/bin/exe", ObjectRole::Executable, 0, segments).object().image;
    let chosen = choose_base(&image, page_size(huge), base_page(), Kinds::USUAL, Edges::Exact);
    let covered = Coverable { text: huge, read_only: huge, total: huge };
    assert_eq!((chosen.offset, chosen.covered), (huge - 3 * PAGE, covered));
    assert_eq!(chosen.all, Coverable { text: huge, read_only: huge + 3 * PAGE, total: huge + 3 * PAGE });
}

#[test]
fn debian_mariadbd_gains_two_mebibytes_of_code() {
    let program = crate::support::programs::mariadbd();
    let image = &program.facts.objects[0].image;
    let huge = page_size(crate::support::programs::HUGE);
    let aligned = coverable(image, 0, huge, base_page(), Kinds::USUAL, Edges::Exact);
    let chosen = choose_base(image, huge, base_page(), Kinds::USUAL, Edges::Exact).covered;
    assert_eq!((aligned.text / huge.bytes(), chosen.text / huge.bytes()), (3, 4));
}
