//! Page walks, counted by the CPU in the windows of each state, where that is asked for and possible.

use crate::record::{Event, Figure, Header, WalkFigures};
use std::collections::BTreeMap;
use walk_counters::{Counting, Counts, Measured, Target, Walks};

/// What was counted in each state so far; plain is `None`.
pub(crate) struct WalkTally {
    is_wanted: bool,
    states: BTreeMap<Option<usize>, Vec<Counts>>,
    /// Why something was not counted at all.
    not_counted: Option<String>,
}

/// Counters that run; none where counting is not wanted, or not possible.
#[derive(Default)]
pub(crate) struct Meter(Vec<Counting>);

impl Meter {
    pub(crate) fn read(&mut self) -> Vec<Counts> {
        self.0.iter_mut().map(Counting::read).collect()
    }
}

impl WalkTally {
    pub(crate) fn of(header: &Header) -> Self {
        Self { is_wanted: header.counters, states: BTreeMap::new(), not_counted: None }
    }

    /// Begins to count. Why it cannot is kept for the record.
    pub(crate) fn meter(&mut self, target: Target) -> Meter {
        if !self.is_wanted {
            return Meter::default();
        }
        match Counting::start(target) {
            Ok(counting) => Meter(counting),
            Err(why) => {
                self.not_counted.get_or_insert_with(|| why.to_string());
                Meter::default()
            }
        }
    }

    /// Adds what a meter has counted between two readings.
    pub(crate) fn add(&mut self, arm: Option<usize>, before: &[Counts], after: &[Counts]) {
        let counted: Vec<Counts> = before.iter().zip(after).map(|(before, after)| after.since(before)).collect();
        let all = self.states.entry(arm).or_default();
        if all.is_empty() {
            *all = counted;
        } else {
            all.iter_mut().zip(&counted).for_each(|(all, counted)| *all = all.plus(counted));
        }
    }

    /// What the record keeps: a line for each state, or one with the reason why nothing was counted.
    pub(crate) fn events(&self) -> Vec<Event> {
        if !self.is_wanted {
            return Vec::new();
        }
        let nothing = WalkFigures { not_counted: self.not_counted.clone(), ..WalkFigures::default() };
        let counted = self.states.iter().filter(|(_, counts)| !counts.is_empty());
        let mut states: Vec<WalkFigures> = counted.map(|(arm, counts)| figures(*arm, counts)).collect();
        // Counted for some processes only is not counted.
        if states.is_empty() || self.not_counted.is_some() {
            states = vec![nothing];
        }
        states.into_iter().map(|walks| Event::Walks(Box::new(walks))).collect()
    }
}

fn figures(arm: Option<usize>, counts: &[Counts]) -> WalkFigures {
    let several = counts.len() > 1;
    let of_core = |counts: &Counts| {
        let core = if several { format!("{}, ", counts.family) } else { String::new() };
        let figure = move |(name, measured): (String, Measured)| {
            let (value, not_counted) = match measured {
                Measured::Value(value) => (Some(value), None),
                Measured::NotCounted(why) => (None, Some(why)),
            };
            Figure { name: format!("{core}{name}"), value, not_counted }
        };
        Walks::of(counts).figures().into_iter().map(figure).collect::<Vec<_>>()
    };
    let cores = counts.iter().map(|counts| counts.family.as_str()).collect::<Vec<_>>().join(", ");
    WalkFigures { arm, cores, figures: counts.iter().flat_map(of_core).collect(), not_counted: None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Design;
    use measure::toggle::Per;
    use walk_counters::{Counted, EventCount, Side, What};

    fn counts(cycles: u64, walks: Option<u64>) -> Vec<Counts> {
        let event = |side, counts, raw: Option<u64>| EventCount {
            side,
            counts,
            name: "event".to_owned(),
            // The longer it counts, the more cycles there are.
            counted: raw.map(|raw| Counted { raw, enabled: cycles, running: cycles }),
            not_counted: raw.is_none().then(|| "no counter was free".to_owned()),
        };
        vec![Counts {
            family: "test".to_owned(),
            source: String::new(),
            walkers: None,
            with_kernel: true,
            cycles: event(Side::Both, What::Cycles, Some(cycles)),
            instructions: event(Side::Both, What::Walks, Some(1000 * cycles)),
            events: vec![event(Side::Code, What::Walks, walks)],
        }]
    }

    fn tally(counters: bool) -> WalkTally {
        let mut header = Header::new(Design::Toggle, "p".into(), vec!["a".into()], "u".into(), Per::Second, 1);
        header.counters = counters;
        WalkTally::of(&header)
    }

    #[test]
    fn windows_of_a_state_are_summed_and_nothing_becomes_a_zero() {
        let mut tally = tally(true);
        tally.add(None, &counts(100, Some(5)), &counts(200, Some(15)));
        tally.add(None, &counts(300, Some(20)), &counts(400, Some(50)));
        tally.add(Some(0), &counts(1, None), &counts(2, None));
        let events = tally.events();
        let [Event::Walks(plain), Event::Walks(lifted)] = &events[..] else { panic!("{events:?}") };
        let of = |walks: &WalkFigures| {
            walks.figures.iter().find(|f| f.name.starts_with("code: page walks")).cloned().unwrap()
        };
        // 40 walks in 200,000 instructions.
        assert_eq!((plain.arm, of(plain).value), (None, Some(0.2)));
        assert_eq!((of(lifted).value, of(lifted).not_counted.as_deref()), (None, Some("no counter was free")));
        assert!(plain.figures.iter().all(|figure| figure.value.is_some() != figure.not_counted.is_some()));
    }

    #[test]
    fn what_cannot_be_counted_has_its_reason_and_nothing_is_counted_unasked() {
        let mut tally = tally(true);
        tally.not_counted = Some("no PMU".to_owned());
        tally.add(None, &[], &[]);
        let events = tally.events();
        let [Event::Walks(only)] = &events[..] else { panic!("{events:?}") };
        assert!(only.figures.is_empty() && only.not_counted.as_deref() == Some("no PMU"));
        assert!(super::tests::tally(false).events().is_empty());
    }
}
