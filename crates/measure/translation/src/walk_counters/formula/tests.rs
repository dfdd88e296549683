//! Counter values as a CPU of each kind gives them, and their meaning by the published formulas.

use super::*;
use crate::walk_counters::families;
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
        (Side::Data, What::Walks, 100),
        (Side::Data, What::WalksSmall, 75),
        (Side::Data, What::WalksLarge, 25),
    ];
    let walks = Walks::of(&counts("Neoverse V3", 100_000, 100_000, &new));
    close(&walks.data.in_progress, 0.09);
    close(&walks.code.stalls, 0.007);
    assert_eq!(walks.data.sizes, [(What::WalksSmall, 0.75), (What::WalksLarge, 0.25)]);
}

/// Clearwater Forest counts the walks that end at 4 KiB pages alone; a short run may have no counter free for the others.
#[test]
fn shares_of_sizes_are_of_all_walks() {
    use What::{Walks, Walks1G, Walks2M, Walks4K};
    let sizes =
        |family, values: &[(Side, What, u64)]| super::Walks::of(&counts(family, 1_000, 1_000, values)).code.sizes;
    let few = [(Side::Code, Walks, 1_000), (Side::Code, Walks4K, 50)];
    assert_eq!(sizes("Clearwater Forest", &few), [(Walks4K, 0.05)]);
    assert_eq!(sizes("Panther Lake, E cores", &few), [(Walks4K, 0.05)]);
    assert_eq!(sizes("Skylake-SP", &few), [(Walks4K, 0.05)]);
    assert_eq!(sizes("Skylake-SP", &few[1..]), [], "of how many is not known");
    // Scaled from other moments than the walks.
    let more =
        [(Side::Code, Walks, 90), (Side::Code, Walks4K, 75), (Side::Code, Walks2M, 25), (Side::Code, Walks1G, 0)];
    assert_eq!(sizes("Skylake-SP", &more), [(Walks4K, 0.75), (Walks2M, 0.25), (Walks1G, 0.0)]);
}

#[test]
fn a_count_is_scaled_by_the_time_it_was_counted_and_never_invented() {
    let scaled = |counted: Counted| counted.scaled_to(counted.enabled);
    let quarter = Counted { raw: 250, enabled: 4_000, running: 1_000 };
    assert_eq!((scaled(quarter), quarter.share()), (Some(1_000.0), 0.25));
    assert_eq!(scaled(Counted { raw: 0, enabled: 4_000, running: 0 }), None);
    assert_eq!(scaled(Counted { raw: 7, enabled: 5, running: 5 }), Some(7.0));
    let sum = quarter.plus(Counted { raw: 750, enabled: 4_000, running: 3_000 });
    assert_eq!(scaled(sum), Some(2_000.0));
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

/// A thread that ran for 400 ms on one kind of cores and for 600 on the other, as the kernel counts it on a hybrid CPU:
/// time on the other kind is no multiplexing.
#[test]
fn time_on_cores_of_another_kind_is_not_extrapolated() {
    let on = |raw, running| Some(Counted { raw, enabled: 1_000_000_000, running });
    let mut recorded = counts(
        "Alder Lake, Raptor Lake, P cores",
        800,
        400,
        &[(Side::Code, What::Active, 40), (Side::Code, What::Pending, 30)],
    );
    recorded.on_some_cores = true;
    (recorded.cycles.counted, recorded.instructions.counted) = (on(800, 400_000_000), on(400, 400_000_000));
    for event in &mut recorded.events {
        match event.counts {
            What::Active if event.side == Side::Code => event.counted = on(40, 400_000_000),
            What::Pending if event.side == Side::Code => event.counted = on(30, 200_000_000),
            _ => {}
        }
    }
    let walks = Walks::of(&recorded);
    close(&walks.code.cycles, 40.0 / 800.0);
    // Half of the time on these cores.
    close(&walks.code.in_progress, 60.0 / 800.0);
    close(&recorded.all_cycles(), 800.0);
    assert_eq!(recorded.least_share(), 0.5);
    let alone = Counts { on_some_cores: false, ..recorded.clone() };
    assert_eq!((alone.all_cycles(), alone.least_share()), (Measured::Value(2_000.0), 0.2));
    let none = |event: &mut EventCount| {
        if let Some(counted) = &mut event.counted {
            (counted.raw, counted.running) = (0, 0);
        }
    };
    [&mut recorded.cycles, &mut recorded.instructions].into_iter().chain(&mut recorded.events).for_each(none);
    assert!(!recorded.has_run() && recorded.least_share() == 1.0);
    let why = Measured::NotCounted("it did not run on cores of this kind".into());
    assert_eq!(Walks::of(&recorded).code.cycles, why);
}

/// Counts of a program in which no part exceeds its whole.
fn consistent(family: &Family) -> Counts {
    let mut counts = family.blank(true);
    let whole = |raw| Some(Counted { raw, enabled: 1_000, running: 1_000 });
    (counts.cycles.counted, counts.instructions.counted) = (whole(10_000_000), whole(20_000_000));
    for event in &mut counts.events {
        event.counted = whole(match event.counts {
            What::Active => 400_000,
            What::Pending => 500_000,
            What::Walks => 10_000,
            What::Walks4K | What::WalksSmall => 6_000,
            What::WalksCoalesced | What::Walks2M => 2_000,
            What::WalksLarge => 4_000,
            What::Walks1G => 0,
            What::L2Hits | What::L2Accesses => 50_000,
            What::L2Refills => 20_000,
            What::Stalls => 300_000,
            What::Cycles => 10_000_000,
        });
    }
    counts
}

#[test]
fn every_table_gives_figures_from_what_it_counts() {
    for family in families() {
        let walks = Walks::of(&consistent(family));
        let figures = walks.figures();
        for (name, figure) in &figures {
            let sound = |value: f64| value.is_finite() && value >= 0.0 && (!name.contains('%') || value <= 100.0);
            assert!(figure.value().is_none_or(sound), "{}: {name} is {figure:?}", family.name);
        }
        let has = |sides: &[Side], what| sides.iter().all(|&side| family.event(side, what).is_some());
        let of_side = |side: &SideWalks, one: &[Side], several: &[Side]| {
            let counts = |what| has(one, what) || has(several, what);
            let expected = [
                (&side.cycles, counts(What::Active) || (family.walkers == Some(1) && counts(What::Pending))),
                (&side.in_progress, counts(What::Pending)),
                (&side.walks, counts(What::Walks)),
                (&side.l2_hits, counts(What::L2Hits)),
                (&side.stalls, counts(What::Stalls)),
            ];
            for (at, (figure, is_counted)) in expected.into_iter().enumerate() {
                assert_eq!(figure.value().is_some(), is_counted, "{}: figure {at} of a side", family.name);
            }
            let sizes: f64 = side.sizes.iter().map(|(_, share)| share).sum();
            assert!(sizes < 1.0 + 1e-9, "{}", family.name);
        };
        of_side(&walks.code, &[Side::Code], &[Side::Code]);
        of_side(&walks.data, &[Side::Data], &[Side::Loads, Side::Stores]);
        assert_eq!(walks.nested.value().is_some(), has(&[Side::Nested], What::Pending), "{}", family.name);
        assert_eq!(walks.l2_refills.value().is_some(), has(&[Side::Both], What::L2Refills), "{}", family.name);
        assert!(
            walks.code.walks.value().is_some() && walks.data.walks.value().is_some(),
            "{} counts no walks",
            family.name
        );
    }
}

/// If a table counts time in any form, the printed figures contain it.
#[test]
fn no_figure_is_left_out() {
    let named = |name: &str| {
        let family = families().iter().find(|known| known.name == name).unwrap();
        Walks::of(&consistent(family)).figures()
    };
    let value = |figures: &[(String, Measured)], wanted: &str| {
        let found = figures.iter().find(|(name, _)| name == wanted);
        found.unwrap_or_else(|| panic!("no {wanted} in {figures:?}")).1.value()
    };
    for name in ["Broadwell, server", "Sierra Forest", "Clearwater Forest", "Neoverse N3", "Neoverse V3"] {
        let figures = named(name);
        assert_eq!(value(&figures, "code: page walks in progress, on average"), Some(0.05), "{name}");
        assert!(figures.iter().any(|(figure, _)| figure.contains("page walks that end at")), "{name}");
    }
    let broadwell = named("Broadwell, server");
    assert_eq!(value(&broadwell, "walks of the hypervisor's tables in progress, on average"), Some(0.05));
    assert_eq!(value(&broadwell, "code: page walks that end at 2M pages, %"), Some(20.0));
    assert_eq!(value(&named("Neoverse V3"), "data: cycles that wait for translation, %"), Some(3.0));
    let of_both = "L2 TLB misses per 1,000 instructions, code and data together";
    assert_eq!(value(&named("Neoverse N1"), of_both), Some(1.0));
}

/// Published counts of other machines give the published shares.
#[test]
fn published_counts_give_the_published_shares() {
    use Side::{Code, Loads, Stores};
    let two_digits = |measured: &Measured, published: f64| {
        let value = 100.0 * measured.value().unwrap_or_else(|| panic!("{measured:?}"));
        assert!((value - published).abs() < 0.006, "{value} instead of {published} %");
    };
    // A Haswell, the whole machine; "10 %": community.intel.com, Software Tuning, thread 1127169.
    let haswell = [(Loads, What::Pending, 30_179_920_415), (Stores, What::Pending, 43_668_809)];
    let walks = Walks::of(&counts("Haswell", 291_350_355_880, 36_361_479_212, &haswell));
    two_digits(&walks.data.cycles, 10.37);
    assert!((walks.instructions_per_cycle.value().unwrap() - 0.12).abs() < 0.006);
    // An EC2 c5.9xlarge, a Skylake-SP, by WALK_ACTIVE and WALK_COMPLETED of loads and of code:
    // github.com/brendangregg/pmc-cloud-tools, README.md, tlbstat. In thousands but for the walks.
    let published = [
        [93_091_508, 86_971_957, 135_562_325, 45_028_565, 3_053_416, 1_121_015, 328, 120],
        [94_274_360, 88_372_901, 138_668_282, 48_503_863, 3_200_281, 1_194_388, 339, 127],
        [92_152_495, 87_144_845, 135_446_984, 50_308_740, 3_156_780, 1_200_598, 343, 130],
    ];
    for [cycles, instructions, data, code, active_data, active_code, data_share, code_share] in published {
        let values = [
            (Loads, What::Active, 1_000 * active_data),
            (Stores, What::Active, 0),
            (Code, What::Active, 1_000 * active_code),
            (Loads, What::Walks, data),
            (Stores, What::Walks, 0),
            (Code, What::Walks, code),
        ];
        let walks = Walks::of(&counts("Skylake-SP", 1_000 * cycles, 1_000 * instructions, &values));
        two_digits(&walks.data.cycles, data_share as f64 / 100.0);
        two_digits(&walks.code.cycles, code_share as f64 / 100.0);
        close(&walks.data.walks, data as f64 / instructions as f64);
    }
}

proptest! {
    #[test]
    fn shares_of_sizes_add_up_to_one_at_most(values in prop::collection::vec(0..u64::MAX >> 8, 5)) {
        let sizes = [What::Walks4K, What::WalksCoalesced, What::Walks2M, What::Walks1G, What::Walks];
        let all = values[4];
        let of_sizes: u64 = values[..4].iter().sum();
        let values: Vec<_> = sizes.into_iter().zip(values).map(|(what, raw)| (Side::Data, what, raw)).collect();
        let shares = Walks::of(&counts("Zen 3", 1_000, 1_000, &values)).data.sizes;
        let sum: f64 = shares.iter().map(|(_, share)| share).sum();
        prop_assert!(shares.is_empty() || sum < 1.0 + 1e-9, "{sum}");
        prop_assert!(shares.is_empty() || all > of_sizes || (sum - 1.0).abs() < 1e-9, "{sum}");
    }
}
