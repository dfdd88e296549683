//! Data files: the pages that the page cache can show, and the reason for each other page.

use crate::support::{machine_with, page_size, range};
use address_space::{AddressRange, Protection, RangeSet};
use lift_plan::{
    CacheShortfall, CachedFile, FileView, Kind, Kinds, MachineFacts, MappedFile, Method, Plan, Policy, Reason,
    ThpFacts, ThpMode, plan_files,
};

const HUGE: u64 = 2 << 20;
const BASE: u64 = 0x7f00_0000_0000;

fn view() -> FileView {
    FileView {
        range: blocks(0, 8),
        offset: 0,
        protection: Protection::READ,
        huge: RangeSet::new(),
        changed: RangeSet::new(),
        refused: None,
    }
}

fn blocks(start: u64, end: u64) -> AddressRange {
    range(BASE + start * HUGE, BASE + end * HUGE)
}

fn machine() -> MachineFacts {
    machine_with(HUGE, 0)
}

fn planned(huge: &[(u64, u64)], view: FileView, machine: &MachineFacts) -> Plan {
    let huge = huge.iter().map(|(start, end)| start * HUGE..end * HUGE).collect();
    let file = CachedFile { path: "/data".to_owned(), huge, ..CachedFile::default() };
    let policy = Policy { kinds: Kinds::of(&[Kind::Files]), ..Policy::default() };
    plan_files(&[MappedFile { file, length: None, views: vec![view] }], machine, &policy)
}

/// The reason for which nothing is lifted.
fn refused(view: FileView, machine: &MachineFacts) -> Reason {
    let plan = planned(&[(0, 8)], view, machine);
    assert!(plan.lifts.is_empty() && plan.refusals.len() == 1, "{plan:?}");
    plan.refusals[0].reason.clone()
}

#[test]
fn what_lies_in_huge_folios_is_mapped_anew() {
    let plan = planned(&[(0, 3), (5, 8)], view(), &machine());
    let lifts: Vec<_> = plan.lifts.iter().map(|lift| (lift.range, lift.attempts[0].parts[0].method.clone())).collect();
    assert_eq!(lifts, [(blocks(0, 3), Method::Refault), (blocks(5, 8), Method::Refault)]);
    assert_eq!(plan.refusals[0].range, blocks(3, 5));
    assert_eq!(plan.refusals[0].reason, Reason::SmallFolios(None));
    assert_eq!((plan.considered, plan.planned()), (8 * HUGE, 6 * HUGE));
    assert_eq!(plan.lifts[0].kinds, [Kind::Files]);
}

#[test]
fn what_lies_beyond_the_end_of_the_file_is_not_considered() {
    let file = CachedFile {
        path: "/data".to_owned(),
        huge: std::iter::once(2 * HUGE..3 * HUGE).collect(),
        ..CachedFile::default()
    };
    let policy = Policy { kinds: Kinds::of(&[Kind::Files]), ..Policy::default() };
    // Eight blocks are mapped from the second one on, and the file ends within the fifth.
    let views = vec![FileView { offset: HUGE, ..view() }];
    let plan = plan_files(&[MappedFile { file, length: Some(4 * HUGE + 4096), views }], &machine(), &policy);
    assert_eq!(plan.lifts.iter().map(|lift| lift.range).collect::<Vec<_>>(), [blocks(1, 2)]);
    assert_eq!(plan.refusals.iter().map(|refusal| refusal.range).collect::<Vec<_>>(), [blocks(0, 1), blocks(2, 3)]);
    assert_eq!(plan.considered, 3 * HUGE);
}

#[test]
fn what_is_huge_or_written_to_is_left_alone() {
    let own = FileView { huge: RangeSet::from_iter([blocks(0, 2)]), ..view() };
    let own = FileView { changed: RangeSet::from_iter([range(BASE + 4 * HUGE, BASE + 4 * HUGE + 4096)]), ..own };
    let plan = planned(&[(0, 8)], own, &machine());
    assert_eq!(plan.lifts.iter().map(|lift| lift.range).collect::<Vec<_>>(), [blocks(2, 4), blocks(5, 8)]);
    assert_eq!((plan.refusals[0].range, &plan.refusals[0].reason), (blocks(4, 5), &Reason::WrittenTo));
    assert_eq!(plan.considered, 6 * HUGE);
}

#[test]
fn threads_stand_still_for_a_part_only() {
    let large = FileView { range: blocks(0, 100), ..view() };
    let plan = planned(&[(0, 100)], large, &machine());
    let parts = &plan.lifts[0].attempts[0].parts;
    assert!(parts.len() == 4 && parts.iter().all(|part| part.range.len() <= 64 << 20));
    assert_eq!(parts.iter().map(|part| part.range.len()).sum::<u64>(), 100 * HUGE);
}

#[test]
fn mappings_that_the_kernel_does_not_map_huge_say_why() {
    let stays = |reason: Reason| match reason {
        Reason::FileStays(CacheShortfall { why, .. }) => why,
        other => panic!("{other:?}"),
    };
    let written = FileView { protection: Protection::READ_WRITE, ..view() };
    assert_eq!(refused(written, &machine()), Reason::FileWritable);
    let askew = FileView { offset: 4096, ..view() };
    assert_eq!(refused(askew, &machine()), Reason::FileMisplaced { bytes: HUGE - 4096, size: page_size(HUGE) });
    let locked = Some(CacheShortfall { why: "locked".to_owned(), fix: None });
    assert_eq!(stays(refused(FileView { refused: locked, ..view() }, &machine())), "locked");
    let old = MachineFacts { refaults_huge: false, ..machine() };
    assert!(stays(refused(view(), &old)).contains("until 6.18"));
    let off = ThpFacts { size: page_size(HUGE), mode: ThpMode::OffInProcess };
    assert_eq!(refused(view(), &MachineFacts { thp: Some(off), ..machine() }), Reason::ThpOffInProcess);
    assert!(planned(&[(0, 8)], view(), &MachineFacts { thp: None, ..machine() }).considered == 0);
    let short = FileView { range: range(BASE + 4096, BASE + HUGE), ..view() };
    assert!(planned(&[(0, 8)], short, &machine()).considered == 0);
}
