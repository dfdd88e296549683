//! Counter values as a CPU of each kind gives them, and what they mean by the published formulas.

use super::*;
use crate::families;
use proptest::prelude::*;

fn counts(family: &str, cycles: u64, instructions: u64, values: &[(Side, What, u64)]) -> Counts {
    let family = families().iter().find(|known| known.name == family).unwrap();
    let mut counts = family.blank(true);
    let whole = |raw| Some(Counted { raw, enabled: 1_000, running: 1_000 });
    (counts.cycles.counted, counts.instructions.counted) = (whole(cycles), whole(instructions));
    for event in &mut counts.events {
        let value = values.iter().find(|(side, what, _)| (*side, *what) == (event.side, event.counts));
        match value {
            Some((_, _, raw)) => event.counted = whole(*raw),
            None => event.not_counted = Some("not recorded".to_owned()),
        }
    }
    for (side, what, _) in values {
        assert!(family.event(*side, *what).is_some(), "{} has no {side:?} {what:?}", family.name);
    }
    counts
}

fn close(measured: &Measured, expected: f64) {
    let value = measured.value().unwrap_or_else(|| panic!("{measured:?}"));
    assert!((value - expected).abs() < 1e-9 * expected.abs().max(1.0), "{value} instead of {expected}");
}

#[test]
fn skylake_has_cycles_walkers_sizes_and_nested_walks() {
    use Side::{Code, Loads, Nested, Stores};
    use What::{Active, L2Hits, Pending, Stalls, Walks2M, Walks4K};
    let completed = What::Walks;
    let values = [
        (Code, Active, 60_000),
        (Loads, Active, 30_000),
        (Stores, Active, 10_000),
        (Code, Pending, 70_000),
        (Loads, Pending, 35_000),
        (Stores, Pending, 15_000),
        (Nested, Pending, 80_000),
        (Code, completed, 2_000),
        (Loads, completed, 900),
        (Stores, completed, 100),
        (Code, Walks4K, 1_500),
        (Code, Walks2M, 500),
        (Loads, L2Hits, 3_000),
        (Stores, L2Hits, 1_000),
        (Code, Stalls, 50_000),
    ];
    let walks = Walks::of(&counts("Skylake-SP", 1_000_000, 500_000, &values));
    close(&walks.code.cycles, 0.06);
    close(&walks.data.cycles, 0.04);
    close(&walks.code.in_progress, 0.07);
    close(&walks.utilisation, 200_000.0 / 2e6);
    close(&walks.nested, 0.08);
    close(&walks.code.walks, 4.0);
    close(&walks.data.walks, 2.0);
    close(&walks.data.l2_hits, 8.0);
    close(&walks.code.stalls, 0.05);
    close(&walks.instructions_per_cycle, 0.5);
    assert_eq!(walks.code.sizes, [(Walks4K, 0.75), (Walks2M, 0.25)]);
    assert_eq!(walks.data.sizes, []);
    assert_eq!(walks.code.l2_hits, Measured::NotCounted("not recorded".into()));
}

#[test]
fn haswell_has_one_walker_whose_time_is_the_share() {
    let values =
        [(Side::Code, What::Pending, 100), (Side::Loads, What::Pending, 200), (Side::Stores, What::Pending, 50)];
    let walks = Walks::of(&counts("Haswell", 1_000, 1_000, &values));
    close(&walks.code.cycles, 0.1);
    close(&walks.data.cycles, 0.25);
    close(&walks.utilisation, 0.35);
    // Two walkers: walks overlap, and their time is no number of cycles.
    let server = Walks::of(&counts("Broadwell, server", 1_000, 1_000, &values));
    assert!(server.code.cycles.value().is_none());
    close(&server.code.in_progress, 0.1);
    close(&server.utilisation, 0.175);
}

#[test]
fn sapphire_rapids_has_four_walkers_and_the_core_s_cycles() {
    let pending = [Side::Code, Side::Loads, Side::Stores].map(|side| (side, What::Pending, 400));
    let values = [&pending[..], &[(Side::Core, What::Cycles, 600)]].concat();
    let walks = Walks::of(&counts("Sapphire Rapids", 1_000, 1_000, &values));
    close(&walks.utilisation, 1_200.0 / (4.0 * 600.0));
    assert!(walks.nested.value().is_none());
}

#[test]
fn zen_counts_walks_but_not_their_cycles() {
    let values = [
        (Side::Data, What::Walks, 5_000),
        (Side::Data, What::Walks4K, 3_000),
        (Side::Data, What::WalksCoalesced, 1_000),
        (Side::Data, What::Walks2M, 1_000),
        (Side::Data, What::L2Hits, 20_000),
        (Side::Code, What::Walks, 700),
        (Side::Code, What::L2Hits, 900),
    ];
    let walks = Walks::of(&counts("Zen 3", 2_000_000, 1_000_000, &values));
    close(&walks.data.walks, 5.0);
    close(&walks.data.l2_hits, 20.0);
    close(&walks.code.walks, 0.7);
    assert_eq!(walks.data.sizes, [(What::Walks4K, 0.6), (What::WalksCoalesced, 0.2), (What::Walks2M, 0.2)]);
    assert_eq!(walks.code.cycles, Measured::NotCounted("Zen 3 has no event for it".into()));
    assert!(matches!(&walks.utilisation, Measured::NotCounted(why) if why.contains("not published")));
}

#[test]
fn neoverse_counts_walks_and_from_n3_on_their_time() {
    let old = [(Side::Data, What::Walks, 300), (Side::Code, What::Walks, 100), (Side::Both, What::L2Refills, 500)];
    let walks = Walks::of(&counts("Neoverse N1", 100_000, 100_000, &old));
    close(&walks.data.walks, 3.0);
    close(&walks.l2_refills, 5.0);
    assert!(walks.data.in_progress.value().is_none());
    let new = [
        (Side::Data, What::Pending, 9_000),
        (Side::Code, What::Pending, 1_000),
        (Side::Code, What::Stalls, 700),
        (Side::Data, What::WalksSmall, 75),
        (Side::Data, What::WalksLarge, 25),
    ];
    let walks = Walks::of(&counts("Neoverse V3", 100_000, 100_000, &new));
    close(&walks.data.in_progress, 0.09);
    close(&walks.code.stalls, 0.007);
    assert_eq!(walks.data.sizes, [(What::WalksSmall, 0.75), (What::WalksLarge, 0.25)]);
}

#[test]
fn a_count_is_scaled_by_the_time_it_was_counted_and_never_invented() {
    let quarter = Counted { raw: 250, enabled: 4_000, running: 1_000 };
    assert_eq!((quarter.scaled(), quarter.share()), (Some(1_000.0), 0.25));
    assert_eq!(Counted { raw: 0, enabled: 4_000, running: 0 }.scaled(), None);
    assert_eq!(Counted { raw: 7, enabled: 5, running: 5 }.scaled(), Some(7.0));
    let sum = quarter.plus(Counted { raw: 750, enabled: 4_000, running: 3_000 });
    assert_eq!(sum.scaled(), Some(2_000.0));
    let mut recorded = counts("Zen 3", 1_000, 1_000, &[(Side::Data, What::Walks, 100), (Side::Code, What::Walks, 10)]);
    assert_eq!(recorded.least_share(), 1.0);
    for event in &mut recorded.events {
        if let Some(counted) = &mut event.counted {
            counted.running = if event.side == Side::Data { 500 } else { 0 };
        }
    }
    let walks = Walks::of(&recorded);
    close(&walks.data.walks, 200.0);
    assert!(matches!(&walks.code.walks, Measured::NotCounted(why) if why.contains("no counter was free")));
    assert_eq!(recorded.least_share(), 0.5);
    let idle = Walks::of(&counts("Zen 3", 0, 0, &[(Side::Data, What::Walks, 0)]));
    assert_eq!(idle.data.walks, Measured::NotCounted("no instructions at all".into()));
}

proptest! {
    #[test]
    fn shares_of_sizes_add_up(values in prop::collection::vec(0..u64::MAX >> 8, 4)) {
        let sizes = [What::Walks4K, What::WalksCoalesced, What::Walks2M, What::Walks1G];
        let values: Vec<_> = sizes.into_iter().zip(values).map(|(what, raw)| (Side::Data, what, raw)).collect();
        let shares = Walks::of(&counts("Zen 3", 1_000, 1_000, &values)).data.sizes;
        let sum: f64 = shares.iter().map(|(_, share)| share).sum();
        prop_assert!(shares.is_empty() || (sum - 1.0).abs() < 1e-9, "{sum}");
    }
}
