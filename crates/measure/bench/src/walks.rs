//! Page walks, counted by the CPU in the windows of each state, if requested and possible.

use measure::record::{Event, Figure, Header, WalkFigures};
use std::collections::BTreeMap;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;
use translation::walk_counters::{Counting, Counts, Measured, Samples, Sampling, Target, Walks};

/// Interval between reads of samples from their rings, which fill within some 50 ms.
const DRAIN: Duration = Duration::from_millis(20);

/// The counts in each state so far; plain is `None`.
pub(crate) struct WalkTally {
    is_wanted: bool,
    states: BTreeMap<Option<usize>, Reading>,
    /// Why something was not counted at all.
    not_counted: Option<String>,
}

/// Counts until some moment, and the samples of AMD's IBS if the CPU counts walks but not their time.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reading {
    counts: Vec<Counts>,
    samples: Option<Samples>,
}

impl Reading {
    fn since(&self, before: &Self) -> Self {
        let counts = before.counts.iter().zip(&self.counts).map(|(before, after)| after.since(before)).collect();
        let samples = self.samples.as_ref().zip(before.samples.as_ref()).map(|(after, before)| after.since(before));
        Self { counts, samples }
    }

    fn plus(&self, other: &Self) -> Self {
        let counts = self.counts.iter().zip(&other.counts).map(|(one, other)| one.plus(other)).collect();
        let samples = self.samples.as_ref().zip(other.samples.as_ref()).map(|(one, other)| one.plus(other));
        Self { counts, samples }
    }
}

/// Counters that run; none if counting is not wanted, or not possible.
#[derive(Default)]
pub(crate) struct Meter {
    counting: Vec<Counting>,
    sampled: Option<Sampled>,
}

/// Samples, and a thread that takes them from their rings for as long as this is there.
struct Sampled {
    sampling: Arc<Mutex<Sampling>>,
    _told_to_end: Sender<()>,
}

impl Sampled {
    fn take(sampling: Sampling) -> Self {
        let sampling = Arc::new(Mutex::new(sampling));
        let (told_to_end, end) = channel();
        let drained = Arc::clone(&sampling);
        thread::spawn(move || {
            while end.recv_timeout(DRAIN) == Err(RecvTimeoutError::Timeout) {
                drained.lock().unwrap_or_else(PoisonError::into_inner).drain();
            }
        });
        Self { sampling, _told_to_end: told_to_end }
    }

    fn read(&self) -> Samples {
        let mut sampling = self.sampling.lock().unwrap_or_else(PoisonError::into_inner);
        sampling.drain();
        sampling.samples()
    }
}

impl Meter {
    pub(crate) fn read(&mut self) -> Reading {
        Reading {
            counts: self.counting.iter_mut().map(Counting::read).collect(),
            samples: self.sampled.as_ref().map(Sampled::read),
        }
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
            Ok(counting) => {
                let lacks_time = counting.iter().any(|core| !core.counts_cycles_of_walks());
                let sampled = lacks_time.then(|| Sampling::start(target)).flatten().map(Sampled::take);
                Meter { counting, sampled }
            }
            Err(why) => {
                self.not_counted.get_or_insert_with(|| why.to_string());
                Meter::default()
            }
        }
    }

    /// Adds a meter's counts between two readings.
    pub(crate) fn add(&mut self, arm: Option<usize>, before: &Reading, after: &Reading) {
        let counted = after.since(before);
        let all = self.states.entry(arm).or_default();
        *all = if all.counts.is_empty() { counted } else { all.plus(&counted) };
    }

    /// The lines of the record: one for each state, or one with the reason why nothing was counted.
    pub(crate) fn events(&self) -> Vec<Event> {
        if !self.is_wanted {
            return Vec::new();
        }
        let nothing = WalkFigures { not_counted: self.not_counted.clone(), ..WalkFigures::default() };
        let counted = self.states.iter().filter(|(_, reading)| !reading.counts.is_empty());
        let mut states: Vec<WalkFigures> = counted.map(|(arm, reading)| figures(*arm, reading)).collect();
        // Counted for some processes only is not counted.
        if states.is_empty() || self.not_counted.is_some() {
            states = vec![nothing];
        }
        states.into_iter().map(|walks| Event::Walks(Box::new(walks))).collect()
    }
}

fn figures(arm: Option<usize>, reading: &Reading) -> WalkFigures {
    let counts = &reading.counts;
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
        let mut figures = Walks::of(counts).figures();
        figures.extend(reading.samples.iter().flat_map(|samples| samples.of(counts).figures()));
        figures.into_iter().map(figure).collect::<Vec<_>>()
    };
    WalkFigures {
        arm,
        cores: counts.iter().map(|counts| counts.family.as_str()).collect::<Vec<_>>().join(", "),
        figures: counts.iter().flat_map(of_core).collect(),
        counted_share: counts.iter().map(Counts::least_share).reduce(f64::min),
        user_only: counts.iter().any(|counts| !counts.with_kernel),
        with_children: counts.iter().any(|counts| counts.with_children),
        not_counted: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use measure::record::Design;
    use measure::toggle::Per;
    use translation::walk_counters::{Counted, EventCount, Side, What};

    fn counts(cycles: u64, walks: Option<u64>) -> Reading {
        let event = |side, counts, raw: Option<u64>| EventCount {
            side,
            counts,
            name: "event".to_owned(),
            // The longer it counts, the more cycles there are.
            counted: raw.map(|raw| Counted { raw, enabled: cycles, running: cycles }),
            not_counted: raw.is_none().then(|| "no counter was free".to_owned()),
        };
        let counts = Counts {
            family: "test".to_owned(),
            source: String::new(),
            walkers: None,
            with_kernel: true,
            with_children: false,
            on_some_cores: false,
            cycles: event(Side::Both, What::Cycles, Some(cycles)),
            instructions: event(Side::Both, What::Walks, Some(1000 * cycles)),
            events: vec![event(Side::Code, What::Walks, walks)],
        };
        Reading { counts: vec![counts], samples: None }
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
            walks.figures.iter().find(|f| f.name.starts_with("code: page walks per")).cloned().unwrap()
        };
        // 40 walks in 200,000 instructions.
        assert_eq!((plain.arm, of(plain).value), (None, Some(0.2)));
        assert_eq!((of(lifted).value, of(lifted).not_counted.as_deref()), (None, Some("no counter was free")));
        assert!(plain.figures.iter().all(|figure| figure.value.is_some() != figure.not_counted.is_some()));
    }

    #[test]
    fn the_share_that_was_counted_and_the_part_that_was_not_are_kept() {
        let mut tally = tally(true);
        let mut reading = counts(100, Some(5));
        let before = Reading { counts: vec![reading.counts[0].since(&reading.counts[0])], samples: None };
        (reading.counts[0].with_kernel, reading.counts[0].with_children) = (false, true);
        reading.counts[0].events[0].counted = Some(Counted { raw: 5, enabled: 100, running: 40 });
        tally.add(None, &before, &reading);
        let events = tally.events();
        let [Event::Walks(plain)] = &events[..] else { panic!("{events:?}") };
        assert_eq!((plain.counted_share, plain.user_only, plain.with_children), (Some(0.4), true, true));
    }

    #[test]
    fn what_cannot_be_counted_has_its_reason_and_nothing_is_counted_unasked() {
        let mut tally = tally(true);
        tally.not_counted = Some("no PMU".to_owned());
        tally.add(None, &Reading::default(), &Reading::default());
        let events = tally.events();
        let [Event::Walks(only)] = &events[..] else { panic!("{events:?}") };
        assert!(only.figures.is_empty() && only.not_counted.as_deref() == Some("no PMU"));
        assert!(super::tests::tally(false).events().is_empty());
    }
}
