//! The steps of each way, in their order.

use crate::support::{page_size, range};
use address_space::{Protection, RangeSet};
use lift_plan::{Attempt, Kind, Method, Part, RangeLift, Source, Step, steps_of};

fn steps(source: Source, method: Method) -> Vec<Step> {
    let (all, page_size) = (range(0x10_0000, 0x12_0000), page_size(0x1_0000));
    let part = Part { range: all, method };
    let attempt = Attempt { source, page_size, parts: vec![part.clone()], memory: 0, placement: None };
    let (object, kinds) = ("prog".to_owned(), vec![Kind::Text]);
    let lift = RangeLift { object, kinds, range: all, protection: Protection::READ_EXECUTE, attempts: vec![attempt] };
    steps_of(&lift, &lift.attempts[0], &part)
}

#[test]
fn pool_pages_are_populated_filled_and_swapped_in() {
    let (all, size) = (range(0x10_0000, 0x12_0000), page_size(0x1_0000));
    let copy = RangeSet::from_iter([range(0x10_0000, 0x10_3000), range(0x11_0000, 0x12_0000)]);
    let found = steps(Source::Hugetlb, Method::Swap { copy: copy.clone() });
    let expected = [
        Step::MapStaging { range: all, source: Source::Hugetlb, size },
        Step::PopulateStaging(all, size),
        Step::CopyToStaging(copy.clone()),
        Step::Swap(all, Some(Protection::READ_EXECUTE)),
    ];
    assert_eq!(found, expected);
    let named: Vec<_> = found.iter().map(Step::ranges).collect();
    assert_eq!(named, [vec![all], vec![all], copy.iter().collect(), vec![all]]);
}

/// The pages are checked twice: the kernel may split a huge page of zeros before it is filled.
#[test]
fn transparent_pages_are_collapsed_before_and_after_they_are_filled() {
    let (all, size) = (range(0x10_0000, 0x12_0000), page_size(0x1_0000));
    let copy = RangeSet::from_iter([all]);
    let expected = [
        Step::MapStaging { range: all, source: Source::Thp, size },
        Step::PopulateStaging(all, size),
        Step::CollapseStaging(all, size),
        Step::KeepHuge(all, size),
        Step::CopyToStaging(copy.clone()),
        Step::CollapseStaging(all, size),
        Step::KeepHuge(all, size),
        Step::Swap(all, Some(Protection::READ_EXECUTE)),
    ];
    assert_eq!(steps(Source::Thp, Method::Swap { copy }), expected);
}

#[test]
fn what_cannot_be_moved_goes_aside_mapping_by_mapping() {
    let (all, size) = (range(0x10_0000, 0x12_0000), page_size(0x1_0000));
    let mappings = vec![range(0x10_0000, 0x11_0000), range(0x11_0000, 0x12_0000)];
    let copy = RangeSet::from_iter([all]);
    let expected = [
        Step::MoveAside(mappings[0]),
        Step::MoveAside(mappings[1]),
        Step::MapInPlace(all, size),
        Step::PopulateInPlace(all, size),
        Step::CopyBack(copy.clone()),
        Step::SealInPlace(all, Protection::READ_EXECUTE),
        Step::DropAside(all),
    ];
    assert_eq!(steps(Source::Hugetlb, Method::MoveAside { copy, mappings }), expected);
}

#[test]
fn a_file_is_refaulted_or_mapped_again_and_touched_at_its_place() {
    let (all, size) = (range(0x10_0000, 0x12_0000), page_size(0x1_0000));
    assert_eq!(steps(Source::File, Method::Refault), [Step::Refault(all, size)]);
    let (path, protection) = ("/proc/self/exe".to_owned(), Protection::READ_EXECUTE);
    let again = steps(Source::File, Method::MapAgain { path: path.clone(), offset: 0x3_0000 });
    let map = Step::MapFile { range: all, path, offset: 0x3_0000, protection };
    assert_eq!(again, [map, Step::Swap(all, None), Step::Touch(all)]);
    assert!(again.iter().all(|step| step.ranges() == [all]));
}

#[test]
fn an_image_is_shown_and_anonymous_memory_is_advised_by_one_step() {
    let all = range(0x10_0000, 0x12_0000);
    let (path, protection) = ("/run/images/1".to_owned(), Protection::READ_EXECUTE);
    let shown = steps(Source::Image, Method::MapImage { path: path.clone(), offset: 0x3000 });
    assert_eq!(shown, [Step::ShowImage { range: all, path, offset: 0x3000, protection }]);
    let page = all.pages(page_size(0x1_0000)).next().unwrap();
    let advised = steps(Source::Thp, Method::InPlace { collapse: RangeSet::from_iter([page]) });
    assert_eq!(advised, [Step::AdviseInPlace(all), Step::CollapseInPlace(page)]);
}
