//! Means of samples, and the times that follow from counts.

use super::*;
use crate::walk_counters::{Counted, Side, families};
use proptest::prelude::*;

fn walk(cycles: u16, page: Option<What>) -> Translation {
    Translation::Walk(Refill { cycles, page })
}

fn tally(translations: impl IntoIterator<Item = Translation>) -> Refills {
    let mut tally = Tally::default();
    translations.into_iter().for_each(|translation| tally.add(translation));
    tally.refills()
}

fn zen_4(cycles: u64, walks_of_data: Option<u64>) -> Counts {
    let family = families().iter().find(|family| family.name == "Zen 4").unwrap();
    let mut counts = family.blank(true);
    let whole = |raw| Some(Counted { raw, enabled: 1_000, running: 1_000 });
    counts.cycles.counted = whole(cycles);
    for event in &mut counts.events {
        match walks_of_data {
            Some(walks) if (event.side, event.counts) == (Side::Data, What::Walks) => event.counted = whole(walks),
            _ => event.not_counted = Some("not recorded".to_owned()),
        }
    }
    counts
}

#[test]
fn a_mean_has_its_interval_and_its_number_of_samples() {
    let half = |cycles| std::iter::repeat_n(walk(cycles, None), 50);
    let refills = tally(half(30).chain(half(50)).chain([Translation::L1Hit, Translation::None]));
    let latency = refills.walk.unwrap();
    assert_eq!((refills.records, latency.samples), (102, 100));
    assert!((latency.cycles - 40.0).abs() < 1e-9);
    // A deviation of 10.05 over the root of 100 samples, 1.96 times.
    assert!((latency.margin - 1.96 * (10_000.0_f64 / 99.0).sqrt() / 10.0).abs() < 1e-9, "{latency:?}");
    assert_eq!(refills.by_page, []);
}

#[test]
fn sizes_with_enough_samples_have_their_own_mean() {
    let many = |cycles, page, count| std::iter::repeat_n(walk(cycles, Some(page)), count);
    let refills =
        tally(many(40, What::Walks4K, 60).chain(many(20, What::Walks2M, 40)).chain(many(9, What::Walks1G, 3)));
    let means: Vec<_> = refills.by_page.iter().map(|(page, latency)| (*page, latency.cycles)).collect();
    assert_eq!(means, [(What::Walks4K, 40.0), (What::Walks2M, 20.0)]);
}

#[test]
fn nothing_is_said_of_few_or_of_hidden_walks() {
    let few = tally(std::iter::repeat_n(walk(40, None), 29).chain([Translation::L1Hit; 71]));
    assert!(few.walk.unwrap_err().starts_with("29 of 100 IBS samples are page walks; needed: 30; fix: a longer --for"));
    let hidden = tally([Translation::Hidden; 500]);
    let why = hidden.walk.unwrap_err();
    assert!(why.contains("500 do not report how the address was translated; needed: root"), "{why}");
}

#[test]
fn time_is_walks_times_cycles_and_never_of_what_was_not_counted() {
    let sampled = tally(std::iter::repeat_n(walk(40, None), 100));
    let none = Refills::none("ibs_fetch: refused".to_owned());
    let walks = SampledWalks::of(&none, &sampled, &zen_4(1_000_000, Some(2_000)));
    assert_eq!(walks.code, Estimate::NotEstimated("ibs_fetch: refused".to_owned()));
    let Estimate::FromSamples(data) = walks.data else { panic!("{:?}", walks.data) };
    assert!((data.share - 0.08).abs() < 1e-9 && data.margin < 1e-9, "{data:?}");
    let walks = SampledWalks::of(&sampled, &sampled, &zen_4(1_000_000, None));
    assert_eq!(walks.data, Estimate::NotEstimated("not recorded".to_owned()));
    let walks = SampledWalks::of(&sampled, &sampled, &zen_4(0, Some(2_000)));
    assert_eq!(walks.data, Estimate::NotEstimated("no cycles at all".to_owned()));
}

/// Two windows of one state with a window of another between them.
#[test]
fn samples_of_windows_add_up() {
    let mut data = Tally::default();
    let mut until_now = |cycles, count| {
        std::iter::repeat_n(walk(cycles, Some(What::Walks4K)), count).for_each(|walk| data.add(walk));
        Samples { code: Err("ibs_fetch: refused".to_owned()), data: Ok(data.clone()) }
    };
    let readings = [until_now(90, 7), until_now(30, 50), until_now(90, 100), until_now(50, 50)];
    let sum = readings[1].since(&readings[0]).plus(&readings[3].since(&readings[2]));
    let figures = sum.of(&zen_4(1_000_000, Some(2_000))).figures();
    let of = |name: &str| &figures.iter().find(|(figure, _)| figure.starts_with(name)).unwrap().1;
    assert_eq!(of("data: cycles of a page walk"), &Measured::Value(40.0));
    assert_eq!(of("data: cycles in page walks at most"), &Measured::Value(8.0));
    assert_eq!(of("code: cycles of a page walk"), &Measured::NotCounted("ibs_fetch: refused".to_owned()));
    let Estimate::FromSamples(time) = sum.of(&zen_4(1_000_000, Some(2_000))).data else { panic!("{sum:?}") };
    assert_eq!((time.walk.samples, time.by_page[0].1.samples), (100, 100));
}

proptest! {
    #[test]
    fn a_mean_lies_among_its_samples(cycles in prop::collection::vec(1_u16.., 0..200)) {
        let refills = tally(cycles.iter().map(|&cycles| walk(cycles, None)));
        match refills.walk {
            Ok(latency) => {
                let (least, most) = (*cycles.iter().min().unwrap(), *cycles.iter().max().unwrap());
                prop_assert!((f64::from(least) - 1e-6..=f64::from(most) + 1e-6).contains(&latency.cycles));
                prop_assert!(latency.margin >= 0.0 && latency.margin.is_finite());
                prop_assert_eq!(latency.samples, cycles.len() as u64);
            }
            Err(_) => prop_assert!((cycles.len() as u64) < LEAST_WALKS),
        }
    }
}
