//! Plans of shared memory: kinds, agreement of addresses and offsets, holes, and the price.

use address_space::{Address, AddressRange, Mapping, MappingName, PageSize, Protection, RangeSet};
use proptest::prelude::*;
use shared_memory::{
    Contents, Fill, Held, Machine, Mapped, Policy, Reason, Segment, SegmentKey, SegmentKind, View, Work, most_holes,
    plan,
};

const HUGE: u64 = 1 << 21;
const START: u64 = 0x7f00_0000_0000;

fn huge() -> PageSize {
    PageSize::new(HUGE).unwrap()
}

fn machine() -> Machine {
    Machine { huge: huge(), refused: None, never: false, no_fill: None }
}

fn present(present: u64) -> Held {
    Held { present, ..Held::default() }
}

fn view(start: u64, blocks: u64, offset: u64) -> View {
    let range = AddressRange::sized(Address(start), blocks * HUGE);
    View { pid: 1, range, offset, huge: 0, huge_parts: RangeSet::new(), resident: 0, refused: None, watched: false }
}

fn segment(views: Vec<View>, blocks: &[(u64, u64)], length: u64) -> Segment {
    let key = SegmentKey { device: (0, 1), inode: 7, kind: SegmentKind::Memfd, scope: 0 };
    let blocks = blocks.iter().map(|(block, data)| (*block, present(*data))).collect();
    let contents = Contents { length, blocks, ..Contents::default() };
    Segment { key, name: "/memfd:x (deleted)".to_owned(), views, contents: Ok(contents) }
}

fn planned(segment: Segment, machine: &Machine, policy: Policy) -> (Vec<Work>, Vec<(Reason, u64, u64)>) {
    let plan = plan(&[segment], machine, policy).segments.remove(0);
    let refused = plan.refused.into_iter().map(|refused| (refused.reason, refused.blocks, refused.bytes)).collect();
    (plan.work, refused)
}

#[test]
fn a_block_is_lifted_from_seven_eighths_on_or_when_asked_for() {
    let most = most_holes(huge());
    assert_eq!(most, HUGE / 8);
    let blocks = [(0, HUGE), (1, HUGE - most), (2, HUGE - most - 4096), (3, 4096)];
    let (work, refused) = planned(segment(vec![view(START, 4, 0)], &blocks, 4 * HUGE), &machine(), Policy::default());
    assert_eq!(work.iter().map(|work| (work.block, work.held.adds(huge()))).collect::<Vec<_>>(), [(0, 0), (1, most)]);
    let would_add = most + 4096 + HUGE - 4096;
    assert_eq!(refused, [(Reason::Holes { would_add }, 2, HUGE - most)]);
    let fill = Policy { fill: Fill::All, ..Policy::default() };
    let (work, refused) = planned(segment(vec![view(START, 4, 0)], &blocks, 4 * HUGE), &machine(), fill);
    assert_eq!((work.len(), refused.len()), (4, 0));
    assert_eq!(work.iter().map(|work| work.held.adds(huge())).sum::<u64>(), most + would_add);
}

#[test]
fn a_block_that_is_huge_is_not_left_alone_whatever_the_kernel_refuses() {
    let mut first = view(START, 2, 0);
    first.refused = Some(Reason::Mergeable);
    first.huge_parts = RangeSet::from_iter([AddressRange::sized(Address(START), HUGE)]);
    let (work, refused) =
        planned(segment(vec![first], &[(0, HUGE), (1, HUGE)], 2 * HUGE), &machine(), Policy::default());
    assert_eq!((work, refused), (vec![], vec![(Reason::Mergeable, 1, HUGE)]));
}

#[test]
fn overlapping_mappings_count_each_offset_once() {
    let bytes = |mappings: &[(u64, u64, u64)]| {
        let mut mapped = Mapped::default();
        for (index, (offset, length, bytes)) in mappings.iter().enumerate() {
            let address = Address(START + ((index as u64) << 40));
            mapped.add(AddressRange::sized(address, length * HUGE), offset * HUGE, bytes * HUGE);
        }
        mapped.bytes() / HUGE
    };
    assert_eq!(bytes(&[]), 0);
    // A chain; two parts around a third one; one inside of another.
    assert_eq!(bytes(&[(0, 10, 10), (9, 11, 11), (19, 11, 11)]), 30);
    assert_eq!(bytes(&[(0, 1, 1), (9, 1, 1), (4, 1, 1)]), 3);
    assert_eq!(bytes(&[(0, 10, 10), (2, 4, 4), (2, 4, 0)]), 10);
    assert_eq!(bytes(&[(0, 10, 0), (2, 4, 4), (2, 4, 4)]), 4);
}

#[test]
fn bytes_that_a_process_maps_several_times_count_once() {
    let huge_view = |start, blocks, offset, huge| View { huge, ..view(start, blocks, offset) };
    let away = 1 << 36;
    // All offsets are mapped three times, in pieces, and some a fourth time.
    let mut views: Vec<View> =
        (0..3).map(|time| huge_view(START + time * away, 2, 0, 2 * HUGE - time * HUGE)).collect();
    views.extend((0..3).map(|time| huge_view(START + time * away + 2 * HUGE, 2, 2 * HUGE, HUGE)));
    views.push(huge_view(START + 9 * away, 1, HUGE, HUGE));
    assert_eq!(segment(views, &[], 4 * HUGE).huge(), 3 * HUGE);
    // Each half is mapped once, at its own distance.
    let apart = vec![huge_view(START, 2, 0, HUGE), huge_view(START + away, 2, 2 * HUGE, 2 * HUGE)];
    assert_eq!(segment(apart, &[], 4 * HUGE).huge(), 3 * HUGE);
}

#[test]
fn addresses_that_disagree_are_named_with_the_setting() {
    let views = || vec![view(START + 0x3000, 4, 0)];
    for never in [false, true] {
        let (work, refused) =
            planned(segment(views(), &[(1, HUGE)], 8 * HUGE), &Machine { never, ..machine() }, Policy::default());
        let reason = Reason::OutOfStep { bytes: 0x3000, size: huge(), kind: SegmentKind::Memfd, never };
        assert!(reason.to_string().contains("disagree by 12 KiB, needed: a multiple of 2 MiB"), "{reason}");
        assert_eq!(reason.fix().unwrap().starts_with("echo advise > /sys/"), never);
        assert_eq!((work, refused), (vec![], vec![(reason, 1, HUGE)]));
    }
    let mut file = segment(views(), &[(1, HUGE)], 8 * HUGE);
    file.key.kind = SegmentKind::File;
    let (_, refused) = planned(file, &Machine { never: true, ..machine() }, Policy::default());
    assert!(refused[0].0.fix().unwrap().starts_with("mount -o remount,huge=advise "), "{:?}", refused[0].0.fix());
    assert!(!refused[0].0.to_string().contains("shmem_enabled"), "{}", refused[0].0);
    // Another process has mapped it well.
    let mut two = views();
    two.push(view(START + 64 * HUGE, 4, 0));
    let (work, _) = planned(segment(two, &[(1, HUGE)], 8 * HUGE), &machine(), Policy::default());
    assert_eq!(work, [Work { block: 1, view: 1, held: present(HUGE) }]);
}

#[test]
fn what_is_huge_already_is_not_done_again() {
    let mut one = view(START, 2, 0);
    one.huge_parts.insert(AddressRange::sized(Address(START), HUGE));
    one.huge = HUGE;
    let plan = plan(
        &[segment(vec![view(START, 2, 0), one], &[(0, HUGE), (1, HUGE)], 2 * HUGE)],
        &machine(),
        Policy::default(),
    );
    let plan = &plan.segments[0];
    let refused = plan.refused.len();
    assert_eq!((plan.huge, plan.work.len(), plan.work[0].block, refused, plan.data), (HUGE, 1, 1, 0, 2 * HUGE));
}

#[test]
fn the_end_of_a_segment_and_of_a_mapping_is_no_whole_block() {
    let blocks = [(0, HUGE), (1, HUGE), (2, 4096)];
    let no_block = Reason::NoWholeBlock { size: huge() };
    let (work, refused) =
        planned(segment(vec![view(START, 3, 0)], &blocks, 2 * HUGE + 4096), &machine(), Policy::default());
    assert_eq!((work.len(), refused), (2, vec![(no_block.clone(), 1, 4096)]));
    let part = view(START + HUGE / 2, 1, HUGE / 2);
    let (work, refused) = planned(segment(vec![part], &blocks[..2], 2 * HUGE), &machine(), Policy::default());
    assert_eq!((work.len(), refused), (0, vec![(no_block, 2, 2 * HUGE)]));
}

#[test]
fn refusals_of_the_machine_the_process_and_the_segment_are_passed_on() {
    let refused_by = |segment, machine: &Machine| planned(segment, machine, Policy::default()).1.remove(0).0;
    let one = || segment(vec![view(START, 2, 0)], &[(0, HUGE)], 2 * HUGE);
    let old = Reason::OldKernel { found: "5.10.0".to_owned() };
    assert_eq!(refused_by(one(), &Machine { refused: Some(old.clone()), ..machine() }), old);
    let mut advised = one();
    advised.views[0].refused = Some(Reason::AdvisedAgainst);
    assert_eq!(refused_by(advised, &machine()), Reason::AdvisedAgainst);
    let mut pool = Segment { contents: Err(Reason::Pool), ..one() };
    pool.views[0].huge = HUGE;
    assert_eq!(plan(std::slice::from_ref(&pool), &machine(), Policy::default()).segments[0].data, HUGE);
    assert_eq!(planned(pool, &machine(), Policy::default()).1, [(Reason::Pool, 2, 0)]);
    let mut unseen = one();
    unseen.contents.as_mut().unwrap().unseen = Some(Reason::TooScattered);
    let (work, refused) = planned(unseen, &machine(), Policy::default());
    assert_eq!((work.len(), refused), (1, vec![(Reason::TooScattered, 0, 0)]));
}

#[test]
fn holes_are_filled_within_the_bounds_of_tmpfs_and_user() {
    let holed: Vec<(u64, u64)> = (0..4).map(|block| (block, HUGE - 4096)).collect();
    let mut one = segment(vec![view(START, 4, 0)], &holed, 4 * HUGE);
    one.contents.as_mut().unwrap().room = Some(4 * 4096);
    let mut other = one.clone();
    other.key.inode = 8;
    let both = plan(&[one.clone(), other], &machine(), Policy::default());
    let counts: Vec<_> = both.segments.iter().map(|plan| (plan.work.len(), plan.refused.len())).collect();
    assert_eq!(counts, [(2, 1), (0, 1)], "one tmpfs has one quota, and half of its room stays free");
    assert_eq!(both.segments[0].refused[0].reason, Reason::Quota { left: 2 * 4096, kept: 2 * 4096 });
    one.contents.as_mut().unwrap().room = None;
    let (work, refused) = planned(one, &machine(), Policy { most: Some(4096), ..Policy::default() });
    assert_eq!((work.len(), refused), (1, vec![(Reason::MostMemory { most: 4096 }, 3, 3 * (HUGE - 4096))]));
}

#[test]
fn swapped_data_is_read_back_only_if_asked_for_and_counts_as_added() {
    let mut one = segment(vec![view(START, 3, 0)], &[(0, HUGE), (1, HUGE), (2, HUGE)], 3 * HUGE);
    one.contents.as_mut().unwrap().blocks[1].1 = Held { swapped: 4096, ..present(HUGE - 4096) };
    one.contents.as_mut().unwrap().blocks[2].1 = Held { swapped: HUGE, ..Held::default() };
    // Swapped data are no holes: the tmpfs has counted them.
    one.contents.as_mut().unwrap().room = Some(0);
    let (work, refused) = planned(one.clone(), &machine(), Policy::default());
    assert_eq!((work.len(), refused), (1, vec![(Reason::SwappedOut { swapped: HUGE + 4096 }, 2, 2 * HUGE)]));
    let all = plan(&[one.clone()], &machine(), Policy { fill: Fill::All, most: None }).segments.remove(0);
    assert_eq!((all.work.len(), all.adds(huge()), all.data), (3, HUGE + 4096, 3 * HUGE));
    let (work, refused) = planned(one, &machine(), Policy { fill: Fill::All, most: Some(4096) });
    assert_eq!((work.len(), refused), (2, vec![(Reason::MostMemory { most: 4096 }, 1, HUGE)]));
}

#[test]
fn holes_that_userfaultfd_watches_are_not_filled() {
    let blocks = [(0, HUGE), (1, HUGE - 4096), (2, HUGE)];
    let fill = Policy { fill: Fill::All, most: None };
    // Linux 6.1 to 6.3 do not check, so that no hole is filled there.
    let reason = Reason::FillsUnasked { found: "6.1".to_owned() };
    let old = Machine { no_fill: Some(reason.clone()), ..machine() };
    let (work, refused) = planned(segment(vec![view(START, 3, 0)], &blocks, 3 * HUGE), &old, fill);
    assert_eq!((work.len(), refused), (2, vec![(reason, 1, HUGE - 4096)]));
    // A mapping that is known to be watched, whichever the lift would use.
    let watched = View { watched: true, ..view(START + 64 * HUGE, 1, HUGE) };
    let (work, refused) = planned(segment(vec![view(START, 3, 0), watched], &blocks, 3 * HUGE), &machine(), fill);
    assert_eq!(work.iter().map(|work| work.block).collect::<Vec<_>>(), [0, 2]);
    assert_eq!(refused, [(Reason::Watched, 1, HUGE - 4096)]);
}

#[test]
fn the_kind_is_told_by_name_and_file_system() {
    let of = |path: &str, internal| {
        let name = MappingName::File { path: path.to_owned(), deleted: true };
        let range = AddressRange::sized(Address(START), HUGE);
        let (protection, device) = (Protection::READ, (0, 1));
        SegmentKind::of(&Mapping { range, protection, shared: true, offset: 0, device, inode: 1, name }, internal)
    };
    let found = ["/dev/zero", "/memfd:a", "/SYSV00000000"].map(|path| of(path, true));
    assert_eq!(found, [SegmentKind::Anonymous, SegmentKind::Memfd, SegmentKind::SystemV]);
    assert_eq!(["/dev/shm/x", "/memfd:a", "/SYSV1"].map(|path| of(path, false)), [SegmentKind::File; 3]);
}

/// Private memory of one process, whose offsets are its addresses.
fn private(views: &[(u64, u64)], blocks: &[(u64, Held)]) -> Segment {
    let first = START / HUGE;
    let views = views.iter().map(|(block, count)| view(START + block * HUGE, *count, START + block * HUGE)).collect();
    let blocks = blocks.iter().map(|(block, held)| (first + block, *held)).collect();
    let key = SegmentKey { device: (0, 0), inode: 0, kind: SegmentKind::Private, scope: 1 };
    let contents = Contents { length: START + 64 * HUGE, blocks, ..Contents::default() };
    Segment { key, name: "x[1]".to_owned(), views, contents: Ok(contents) }
}

#[test]
fn blocks_of_private_memory_are_found_by_their_addresses() {
    let full = |block| (block, present(HUGE));
    let one = private(&[(0, 2), (5, 1), (9, 3)], &[full(0), full(1), full(3), full(5), full(11), full(12)]);
    assert_eq!(one.length(), 6 * HUGE);
    let (work, refused) = planned(one, &machine(), Policy::default());
    let found: Vec<_> = work.iter().map(|work| (work.block - START / HUGE, work.view)).collect();
    assert_eq!(found, [(0, 0), (1, 0), (5, 1), (11, 2)]);
    assert_eq!(refused, [(Reason::NoWholeBlock { size: huge() }, 2, 2 * HUGE)]);
}

#[test]
fn private_pages_of_two_processes_and_guard_pages_are_left_alone_whatever_is_asked_for() {
    let common = |bytes| Held { common: bytes, ..present(HUGE) };
    let guarded = Held { guards: 4096, ..present(HUGE - 4096) };
    let one = private(&[(0, 4)], &[(0, common(4096)), (1, common(HUGE)), (2, guarded), (3, present(HUGE - 4096))]);
    let (work, refused) = planned(one, &machine(), Policy { fill: Fill::All, most: None });
    assert_eq!(work.len(), 1);
    let expected = [(Reason::Forked { common: HUGE + 4096 }, 2, 2 * HUGE), (Reason::Guarded, 1, HUGE - 4096)];
    assert_eq!(refused, expected);
    assert_eq!(expected[0].0.fix().as_deref(), Some("again once the other process has ended"));
}

#[test]
fn a_block_that_is_half_full_is_filled_only_by_request() {
    let segment = segment(vec![view(START, 4 * HUGE, 0)], &[(0, HUGE / 2), (1, HUGE / 2 - 4096)], 4 * HUGE);
    for (fill, expected) in [(Fill::Few, vec![]), (Fill::Half, vec![0]), (Fill::All, vec![0, 1])] {
        let plan = plan(std::slice::from_ref(&segment), &machine(), Policy { fill, most: None });
        let work: Vec<u64> = plan.segments[0].work.iter().map(|work| work.block).collect();
        assert_eq!(work, expected, "{fill:?}");
    }
}

proptest! {
    /// Each block with data is either planned once, huge already, or refused once; and all planned blocks can be
    /// lifted.
    #[test]
    fn every_block_is_accounted_for(
        views in prop::collection::vec((0u64..8, 0u64..4, 1u64..6, 0u64..3), 1..4),
        blocks in prop::collection::btree_map(0u64..10, 1..=HUGE, 0..10),
        length in 0..10 * HUGE,
        fill: bool,
        most in prop::option::of(0..4 * HUGE),
    ) {
        let views: Vec<View> = views
            .into_iter()
            .map(|(start, ahead, length, offset)| view(START + start * 64 * HUGE + ahead * 4096, length, offset * HUGE / 2))
            .collect();
        let blocks: Vec<(u64, u64)> = blocks.into_iter().collect();
        let one = segment(views, &blocks, length);
        let plan = plan(std::slice::from_ref(&one), &machine(), Policy { fill: fill.into(), most }).segments.remove(0);
        let refused: u64 = plan.refused.iter().map(|refused| refused.blocks).sum();
        prop_assert_eq!(plan.work.len() as u64 + refused, blocks.len() as u64);
        let kept: u64 = plan.work.iter().map(|work| work.held.data()).sum();
        let left: u64 = plan.refused.iter().map(|refused| refused.bytes).sum();
        prop_assert_eq!(kept + left, plan.data);
        prop_assert!(plan.adds(huge()) <= most.unwrap_or(u64::MAX));
        for work in &plan.work {
            let offsets = work.block * HUGE..(work.block + 1) * HUGE;
            let addresses = one.views[work.view].addresses(&offsets).unwrap();
            prop_assert!(addresses.start().is_aligned(huge()) && offsets.end <= length);
            prop_assert!(fill || work.held.adds(huge()) <= HUGE / 8);
        }
    }
}
