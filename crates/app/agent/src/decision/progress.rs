//! The state of a process, and how it changes.

use super::facts::Usage;
use crate::rules::{Settings, Size, Time};
use core::time::Duration;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Refusals after which a process is left alone.
pub const MOST_REFUSALS: u8 = 2;
/// CPU time of a lift, measured for a copy of 76 MiB: 70 to 130 ms with the reading of the program.
const COST_OF_A_LIFT: Duration = Duration::from_millis(50);
/// CPU time for each MiB that is copied or collapsed.
const COST_PER_MIB: Duration = Duration::from_millis(1);
/// Resident sizes that differ by less are equal.
const RESIDENT_TOLERANCE: u64 = 1 << 20;

/// State of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// Seen for the first time.
    #[default]
    Seen,
    /// A rule is met; the process is young, has used little CPU time, or grows.
    Settling,
    /// It may be lifted.
    Eligible,
    /// A worker lifts it.
    Lifting,
    /// Blocks of a measurement run.
    Measuring,
    /// Lifted.
    Kept,
    /// The lift was undone.
    Restored,
    /// Lifts were refused, [`MOST_REFUSALS`] times at most.
    Refused,
    /// No rule is met, or something lasting excludes it.
    Ignored,
}

impl State {
    /// All states.
    pub const ALL: [Self; 9] = [
        Self::Seen,
        Self::Settling,
        Self::Eligible,
        Self::Lifting,
        Self::Measuring,
        Self::Kept,
        Self::Restored,
        Self::Refused,
        Self::Ignored,
    ];

    /// The word in metrics and in JSON.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Seen => "seen",
            Self::Settling => "settling",
            Self::Eligible => "eligible",
            Self::Lifting => "lifting",
            Self::Measuring => "measuring",
            Self::Kept => "kept",
            Self::Restored => "restored",
            Self::Refused => "refused",
            Self::Ignored => "ignored",
        }
    }
}

/// Why a process is not eligible yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unsettled {
    /// It is young.
    Age {
        /// Found.
        found: Duration,
        /// Needed.
        needed: Duration,
    },
    /// It has used less CPU time than would pay for the lift.
    Cpu {
        /// Found.
        found: Duration,
        /// Needed.
        needed: Duration,
    },
    /// Its resident size changes, or was read once only.
    Resident {
        /// At the scan before.
        before: Option<u64>,
        /// Now.
        now: u64,
    },
}

impl fmt::Display for Unsettled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Age { found, needed } => write!(f, "age: found {}, needed {}", Time(found), Time(needed)),
            Self::Cpu { found, needed } => {
                write!(
                    f,
                    "CPU time used: found {}, needed {}, so that the lift is cheap in comparison",
                    Time(found),
                    Time(needed)
                )
            }
            Self::Resident { before: None, now } => {
                write!(f, "resident size: found {} once, needed in two scans", Size(now))
            }
            Self::Resident { before: Some(before), now } => {
                write!(
                    f,
                    "resident size: found {}, then {}; needed a stable size in two scans",
                    Size(before),
                    Size(now)
                )
            }
        }
    }
}

/// CPU time of a lift of this number of bytes, in the agent and in the program together. An estimate.
pub fn cost_of(bytes: u64) -> Duration {
    COST_OF_A_LIFT + COST_PER_MIB.mul_f64(bytes as f64 / f64::from(1 << 20))
}

/// CPU time that a process must have used before a lift of this cost.
pub fn least_cpu(cost: Duration, settings: &Settings) -> Duration {
    cost.div_f64(settings.overhead.ratio())
}

/// True if no lift of a process with these resources would be cheap enough yet, whatever its program is.
pub fn is_early(usage: Usage, settings: &Settings) -> bool {
    usage.age < settings.settle || usage.cpu < least_cpu(cost_of(0), settings)
}

/// Why a process is not eligible at this scan; `before` is its resident size at the scan before.
pub fn unsettled(usage: Usage, before: Option<u64>, cost: Duration, settings: &Settings) -> Option<Unsettled> {
    let needed = least_cpu(cost, settings);
    if usage.age < settings.settle {
        return Some(Unsettled::Age { found: usage.age, needed: settings.settle });
    }
    if usage.cpu < needed {
        return Some(Unsettled::Cpu { found: usage.cpu, needed });
    }
    let is_stable = before.is_some_and(|before| before.abs_diff(usage.resident) <= RESIDENT_TOLERANCE.max(before / 50));
    (!is_stable).then_some(Unsettled::Resident { before, now: usage.resident })
}

/// An event of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A scan found no rule, or something lasting that excludes it.
    Excluded,
    /// A scan found a rule; the process is settled or not.
    Matched {
        /// True if it may be lifted.
        settled: bool,
    },
    /// The worker was started.
    Begun,
    /// A measurement was started.
    Measuring,
    /// The measurement was ended without a result, or has shown that a lift pays, or no worker could be started. The process is
    /// plain.
    Postponed,
    /// The worker has lifted it.
    Lifted,
    /// The lift was undone.
    Undone,
    /// The measurement of a process that has forked it has undone its lift.
    UndoneByMeasurement,
    /// The worker has refused, failed or was lost.
    Refused,
    /// The configuration has changed: rules are tried again.
    Reconfigured,
    /// The process has executed another program.
    Executed,
}

/// State of a process, with the number of refusals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// State.
    pub state: State,
    /// Refusals so far.
    pub refusals: u8,
}

impl Progress {
    /// The state after an event. Events that a state does not expect change nothing: a lifted process is lifted again only if a
    /// measurement has undone its lift.
    #[must_use]
    pub fn after(self, event: Event) -> Self {
        let to = |state| Self { state, ..self };
        match (self.state, event) {
            (_, Event::Executed) => Self::default(),
            (State::Lifting | State::Measuring, Event::Refused) => {
                Self { state: State::Refused, refusals: self.refusals.saturating_add(1) }
            }
            // A measurement that could not be undone leaves a lifted process.
            (State::Lifting | State::Measuring, Event::Lifted) => to(State::Kept),
            (State::Lifting | State::Measuring, Event::Postponed) => to(State::Eligible),
            (State::Lifting | State::Measuring | State::Kept, Event::Undone) => to(State::Restored),
            (State::Kept, Event::UndoneByMeasurement) => to(State::Eligible),
            (State::Lifting | State::Measuring | State::Kept | State::Restored, _) => self,
            (State::Refused, _) if self.refusals >= MOST_REFUSALS => self,
            (State::Eligible, Event::Begun) => to(State::Lifting),
            (State::Eligible, Event::Measuring) => to(State::Measuring),
            (_, Event::Excluded) => to(State::Ignored),
            (State::Ignored, Event::Matched { .. } | Event::Begun | Event::Measuring) => self,
            (_, Event::Matched { settled: true }) => to(State::Eligible),
            (_, Event::Matched { settled: false }) => to(State::Settling),
            (State::Ignored, Event::Reconfigured) => to(State::Seen),
            (
                _,
                Event::Begun
                | Event::Measuring
                | Event::Postponed
                | Event::Lifted
                | Event::Undone
                | Event::UndoneByMeasurement
                | Event::Refused
                | Event::Reconfigured,
            ) => self,
        }
    }

    /// True if scans leave out the process.
    pub fn is_final(self) -> bool {
        match self.state {
            State::Kept | State::Restored | State::Ignored | State::Measuring | State::Lifting => true,
            State::Refused => self.refusals >= MOST_REFUSALS,
            State::Seen | State::Settling | State::Eligible => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn after(events: &[Event]) -> Progress {
        events.iter().fold(Progress::default(), |progress, event| progress.after(*event))
    }

    const SETTLED: Event = Event::Matched { settled: true };

    #[test]
    fn a_process_is_lifted_once() {
        assert_eq!(after(&[Event::Matched { settled: false }]).state, State::Settling);
        assert_eq!(after(&[SETTLED, Event::Begun]).state, State::Lifting);
        let kept = after(&[SETTLED, Event::Begun, Event::Lifted]);
        assert_eq!(kept.state, State::Kept);
        assert_eq!([SETTLED, Event::Begun, Event::Refused].iter().fold(kept, |p, e| p.after(*e)), kept);
        assert_eq!(after(&[Event::Begun]).state, State::Seen, "nothing is lifted that is not eligible");
        assert_eq!(kept.after(Event::Undone).after(SETTLED).state, State::Restored);
        assert_eq!(kept.after(Event::UndoneByMeasurement).after(Event::Begun).state, State::Lifting);
    }

    #[test]
    fn a_measured_process_is_lifted_or_left_plain() {
        let measuring = [SETTLED, Event::Measuring];
        assert!(after(&measuring).is_final() && after(&measuring).state == State::Measuring);
        let then = |events: &[Event]| after(&[&measuring, events].concat()).state;
        assert_eq!(then(&[SETTLED, Event::Begun]), State::Measuring, "one thing at a time");
        assert_eq!(then(&[Event::Postponed, Event::Begun]), State::Lifting);
        assert_eq!(then(&[Event::Undone, SETTLED]), State::Restored);
        assert_eq!(then(&[Event::Lifted]), State::Kept, "it could not be restored");
        let twice = [SETTLED, Event::Measuring, Event::Refused].repeat(2);
        assert!(after(&twice).is_final());
        assert_eq!(after(&[Event::Measuring]).state, State::Seen, "nothing is measured that is not eligible");
    }

    #[test]
    fn two_refusals_are_enough() {
        let once = [SETTLED, Event::Begun, Event::Refused];
        let twice = after(&[once, once].concat());
        assert!(!after(&once).is_final() && twice.is_final());
        assert_eq!(twice.after(SETTLED).after(Event::Begun).state, State::Refused);
        assert_eq!(twice.after(Event::Executed), Progress::default());
    }

    #[test]
    fn cost_grows_with_the_bytes_and_must_be_earned() {
        let settings = Settings::default();
        assert_eq!(cost_of(50 << 20), Duration::from_millis(100));
        assert_eq!(least_cpu(cost_of(50 << 20), &settings), Duration::from_secs(20));
        let usage = Usage { age: Duration::from_secs(30), cpu: Duration::from_secs(20), resident: 100 << 20 };
        let why = |usage, before| unsettled(usage, before, cost_of(50 << 20), &settings).map(|why| why.to_string());
        assert_eq!(why(usage, Some(101 << 20)), None);
        assert_eq!(why(Usage { age: Duration::from_secs(29), ..usage }, None).unwrap(), "age: found 29 s, needed 30 s");
        let cpu = why(Usage { cpu: Duration::from_secs(19), ..usage }, None).unwrap();
        assert!(cpu.starts_with("CPU time used: found 19 s, needed 20 s"), "{cpu}");
        assert!(why(usage, None).unwrap().contains("found 100.0 MiB once"));
        assert!(why(usage, Some(90 << 20)).unwrap().contains("found 90.0 MiB, then 100.0 MiB"));
    }

    fn event() -> impl Strategy<Value = Event> {
        prop_oneof![
            Just(Event::Excluded),
            any::<bool>().prop_map(|settled| Event::Matched { settled }),
            Just(Event::Begun),
            Just(Event::Measuring),
            Just(Event::Postponed),
            Just(Event::Lifted),
            Just(Event::Undone),
            Just(Event::Refused),
            Just(Event::Reconfigured),
        ]
    }

    proptest! {
        /// For any sequence of events, at most two lifts begin and are not postponed, and none begins after one was kept or undone.
        #[test]
        fn nothing_is_lifted_twice(events in proptest::collection::vec(event(), 0..60)) {
            let (mut progress, mut begun, mut was_lifted) = (Progress::default(), 0_u8, false);
            for event in events {
                let before = progress;
                progress = progress.after(event);
                if before.state != State::Lifting && progress.state == State::Lifting {
                    prop_assert!(!was_lifted && before.state == State::Eligible);
                    begun += 1;
                }
                // No worker was started.
                begun -= u8::from(before.state == State::Lifting && event == Event::Postponed);
                was_lifted |= matches!(progress.state, State::Kept | State::Restored);
                prop_assert!(progress.refusals <= MOST_REFUSALS);
            }
            prop_assert!(begun <= MOST_REFUSALS);
        }
    }
}
