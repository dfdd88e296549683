//! The meaning of counts. Pure.

use crate::walk_counters::{Family, Side, What};
use serde::Serialize;

/// One count of the kernel, with the times in nanoseconds that its event was wanted and that a counter was free for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counted {
    /// As counted.
    pub raw: u64,
    /// Wanted.
    pub enabled: u64,
    /// Counted.
    pub running: u64,
}

impl Counted {
    /// The count for a time in nanoseconds; `None` if no counter was ever free.
    fn scaled_to(&self, time: u64) -> Option<f64> {
        (self.running > 0).then(|| self.raw as f64 * (time as f64 / self.running as f64).max(1.0))
    }

    /// Share of the time in which the event was wanted that was counted.
    pub fn share(&self) -> f64 {
        self.share_of(self.enabled)
    }

    fn share_of(&self, time: u64) -> f64 {
        if time == 0 { 0.0 } else { (self.running as f64 / time as f64).min(1.0) }
    }

    /// The difference to an earlier reading.
    #[must_use]
    pub fn since(self, before: Self) -> Self {
        Self {
            raw: self.raw.saturating_sub(before.raw),
            enabled: self.enabled.saturating_sub(before.enabled),
            running: self.running.saturating_sub(before.running),
        }
    }

    /// Adds the count of another thread or CPU.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            raw: self.raw.saturating_add(other.raw),
            enabled: self.enabled.saturating_add(other.enabled),
            running: self.running.saturating_add(other.running),
        }
    }
}

/// A number, or why there is none.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Measured {
    /// The number.
    Value(f64),
    /// Why there is none.
    NotCounted(String),
}

impl Measured {
    /// The number, if there is one.
    pub fn value(&self) -> Option<f64> {
        match self {
            Self::Value(value) => Some(*value),
            Self::NotCounted(_) => None,
        }
    }

    fn with(self, other: Self, both: impl Fn(f64, f64) -> Self) -> Self {
        match (self, other) {
            (Self::Value(one), Self::Value(two)) => both(one, two),
            (Self::NotCounted(why), _) | (_, Self::NotCounted(why)) => Self::NotCounted(why),
        }
    }

    fn plus(self, other: Self) -> Self {
        self.with(other, |one, two| Self::Value(one + two))
    }

    fn over(self, other: Self, what: &str) -> Self {
        self.with(other, |one, two| match two {
            0.0 => Self::NotCounted(format!("no {what} at all")),
            two => Self::Value(one / two),
        })
    }

    fn times(self, factor: f64) -> Self {
        match self {
            Self::Value(value) => Self::Value(value * factor),
            none => none,
        }
    }
}

/// One event's count, or why there is none.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EventCount {
    /// The purpose of the access.
    pub side: Side,
    /// The counted quantity.
    pub counts: What,
    /// Its name at the source.
    pub name: String,
    /// The count.
    pub counted: Option<Counted>,
    /// Why there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_counted: Option<String>,
}

/// The counts of one kind of core.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Counts {
    /// Name of the family.
    pub family: String,
    /// Source of its codes.
    pub source: String,
    /// Page walkers.
    pub walkers: Option<u32>,
    /// The kernel's work is counted too.
    pub with_kernel: bool,
    /// The processes that it started are counted as its own, which the kernel cannot leave out (before Linux 5.13).
    pub with_children: bool,
    /// The target also runs on cores of other kinds, on which these events wait without having to share a counter.
    pub on_some_cores: bool,
    /// Cycles of the hardware thread, not halted.
    pub cycles: EventCount,
    /// Instructions retired.
    pub instructions: EventCount,
    /// All events of the family.
    pub events: Vec<EventCount>,
}

impl EventCount {
    /// Combines both, for quantities that both have counted.
    fn with(&self, other: &Self, both: impl Fn(Counted, Counted) -> Counted) -> Self {
        let counted = self.counted.zip(other.counted).map(|(one, two)| both(one, two));
        let not_counted = self.not_counted.clone().or_else(|| other.not_counted.clone());
        Self { counted, not_counted, ..self.clone() }
    }
}

impl Counts {
    fn with(&self, other: &Self, both: impl Fn(Counted, Counted) -> Counted + Copy) -> Self {
        Self {
            cycles: self.cycles.with(&other.cycles, both),
            instructions: self.instructions.with(&other.instructions, both),
            events: self.events.iter().zip(&other.events).map(|(one, two)| one.with(two, both)).collect(),
            with_kernel: self.with_kernel && other.with_kernel,
            with_children: self.with_children || other.with_children,
            ..self.clone()
        }
    }

    /// The difference to an earlier reading of the same counters.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        self.with(before, Counted::since)
    }

    /// The sum with counts of the same kind of core.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        self.with(other, Counted::plus)
    }

    fn of(&self, side: Side, counts: What) -> Measured {
        match self.events.iter().find(|event| (event.side, event.counts) == (side, counts)) {
            Some(event) => self.measured(event),
            None => Measured::NotCounted(format!("{} has no event for it", self.family)),
        }
    }

    /// Walks for instruction fetches.
    pub fn walks_of_code(&self) -> Measured {
        self.of(Side::Code, What::Walks)
    }

    /// Walks for loads and stores.
    pub fn walks_of_data(&self) -> Measured {
        self.of_data(What::Walks)
    }

    /// Cycles of the hardware threads, not halted.
    pub fn all_cycles(&self) -> Measured {
        self.measured(&self.cycles)
    }

    /// Instructions retired.
    pub fn all_instructions(&self) -> Measured {
        self.measured(&self.instructions)
    }

    /// Loads and stores together.
    fn of_data(&self, counts: What) -> Measured {
        let together = self.events.iter().find(|event| (event.side, event.counts) == (Side::Data, counts));
        together.map_or_else(
            || self.of(Side::Loads, counts).plus(self.of(Side::Stores, counts)),
            |event| self.measured(event),
        )
    }

    /// All events that were counted.
    fn counted(&self) -> impl Iterator<Item = Counted> {
        self.events.iter().chain([&self.cycles, &self.instructions]).filter_map(|event| event.counted)
    }

    /// Time in nanoseconds for which an event is wanted. If a CPU has several kinds of cores, the kernel also includes
    /// the time on other cores; the time on these is at least the time of the event that was counted longest, usually
    /// cycles or instructions, each with a separate counter.
    fn wanted(&self, counted: &Counted) -> u64 {
        if self.on_some_cores { self.counted().map(|each| each.running).max().unwrap_or(0) } else { counted.enabled }
    }

    /// False if the target has not run on cores of this kind.
    pub fn has_run(&self) -> bool {
        !self.on_some_cores || self.counted().next().is_none() || self.counted().any(|counted| counted.running > 0)
    }

    /// The smallest share of the time on these cores that any event was counted; 1 if none had to share a counter.
    pub fn least_share(&self) -> f64 {
        let counted = self.counted().filter(|counted| counted.running > 0);
        counted.map(|counted| counted.share_of(self.wanted(&counted))).fold(1.0, f64::min)
    }

    fn measured(&self, event: &EventCount) -> Measured {
        match (&event.counted, &event.not_counted) {
            (Some(_), _) if !self.has_run() => Measured::NotCounted("it did not run on cores of this kind".to_owned()),
            (Some(counted), _) => counted.scaled_to(self.wanted(counted)).map_or_else(
                || {
                    let why = "no counter was free for it (other users of perf, or the NMI watchdog)";
                    Measured::NotCounted(why.to_owned())
                },
                Measured::Value,
            ),
            (None, why) => Measured::NotCounted(why.clone().unwrap_or_default()),
        }
    }
}

/// The results for code, or for data.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SideWalks {
    /// Cycles with a walk in progress, over all cycles. Loads and stores are added, though they can walk at the same time: at
    /// most so much.
    pub cycles: Measured,
    /// Walks in progress, on average.
    pub in_progress: Measured,
    /// Walks per 1,000 instructions.
    pub walks: Measured,
    /// Misses in the first TLB that hit in the second, per 1,000 instructions.
    pub l2_hits: Measured,
    /// Share of all walks that ended at pages of a size, if both were counted. Not all sizes may be counted.
    pub sizes: Vec<(What, f64)>,
    /// Cycles in which the pipeline waited for translation, over all cycles.
    pub stalls: Measured,
}

/// The meaning of the counts. Shares are between 0 and 1.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Walks {
    /// Instruction fetches.
    pub code: SideWalks,
    /// Loads and stores.
    pub data: SideWalks,
    /// Share of the walkers' capacity that is used.
    pub utilisation: Measured,
    /// Walks of a hypervisor's tables in progress, on average.
    pub nested: Measured,
    /// Misses in a second TLB that code and data share, per 1,000 instructions.
    pub l2_refills: Measured,
    /// Instructions per cycle.
    pub instructions_per_cycle: Measured,
}

impl SideWalks {
    /// Each figure with its name.
    fn figures(&self, side: &str) -> Vec<(String, Measured)> {
        let mut figures = vec![
            ("cycles in page walks, %", self.cycles.clone().times(100.0)),
            ("page walks in progress, on average", self.in_progress.clone()),
            ("page walks per 1,000 instructions", self.walks.clone()),
            ("L2 TLB hits per 1,000 instructions", self.l2_hits.clone()),
            ("cycles that wait for translation, %", self.stalls.clone().times(100.0)),
        ]
        .into_iter()
        .map(|(what, value)| (format!("{side}: {what}"), value))
        .collect::<Vec<_>>();
        let size = |(what, share): &(What, f64)| {
            (format!("{side}: page walks that end at {} pages, %", what.page_words()), Measured::Value(100.0 * share))
        };
        figures.extend(self.sizes.iter().map(size));
        figures
    }
}

impl Walks {
    /// Each figure with its name. Shares are in percent.
    pub fn figures(&self) -> Vec<(String, Measured)> {
        let mut figures = self.code.figures("code");
        figures.extend(self.data.figures("data"));
        let others = [
            ("page walkers in use, %", self.utilisation.clone().times(100.0)),
            ("walks of the hypervisor's tables in progress, on average", self.nested.clone()),
            ("L2 TLB misses per 1,000 instructions, code and data together", self.l2_refills.clone()),
            ("instructions per cycle", self.instructions_per_cycle.clone()),
        ];
        figures.extend(others.map(|(name, value)| (name.to_owned(), value)));
        figures
    }
}

const SIZES: [What; 6] =
    [What::Walks4K, What::WalksCoalesced, What::WalksSmall, What::Walks2M, What::WalksLarge, What::Walks1G];

impl Walks {
    /// Calculates the walks from counts.
    pub fn of(counts: &Counts) -> Self {
        let (cycles, instructions) = (counts.all_cycles(), counts.all_instructions());
        let side = |of: &dyn Fn(What) -> Measured| SideWalks {
            cycles: active(counts, of).over(cycles.clone(), "cycles"),
            in_progress: of(What::Pending).over(cycles.clone(), "cycles"),
            walks: of(What::Walks).over(instructions.clone(), "instructions").times(1000.0),
            l2_hits: of(What::L2Hits).over(instructions.clone(), "instructions").times(1000.0),
            sizes: sizes(of),
            stalls: of(What::Stalls).over(cycles.clone(), "cycles"),
        };
        Self {
            code: side(&|what| counts.of(Side::Code, what)),
            data: side(&|what| counts.of_data(what)),
            utilisation: utilisation(counts, &cycles),
            nested: counts.of(Side::Nested, What::Pending).over(cycles.clone(), "cycles"),
            l2_refills: counts.of(Side::Both, What::L2Refills).over(instructions.clone(), "instructions").times(1000.0),
            instructions_per_cycle: instructions.over(cycles, "cycles"),
        }
    }
}

/// Cycles with a walk. One walker never has two walks in progress, so their sum over cycles is the share.
fn active(counts: &Counts, of: &dyn Fn(What) -> Measured) -> Measured {
    match of(What::Active) {
        Measured::NotCounted(_) if counts.walkers == Some(1) => of(What::Pending),
        measured => measured,
    }
}

/// Walks in progress of all kinds over walkers times cycles, like Intel's Info_Memory_TLB_Page_Walks_Utilization.
/// Cycles are the core's share of this hardware thread if the family counts that.
fn utilisation(counts: &Counts, cycles: &Measured) -> Measured {
    let Some(walkers) = counts.walkers else {
        return Measured::NotCounted(format!("how many page walkers {} has is not published", counts.family));
    };
    let walking = counts.of(Side::Code, What::Pending).plus(counts.of_data(What::Pending));
    let with_nested = match counts.of(Side::Nested, What::Pending) {
        nested @ Measured::Value(_) => walking.plus(nested),
        Measured::NotCounted(_) => walking,
    };
    let cycles = match counts.of(Side::Core, What::Cycles) {
        Measured::NotCounted(_) => cycles.clone(),
        core => core,
    };
    with_nested.over(cycles, "cycles").times(1.0 / f64::from(walkers))
}

/// Shares of the walks of all sizes: some CPUs count one size alone, and for some events there may be no counter. Events that
/// were not counted at the same time may add up to more than the walks.
fn sizes(of: &dyn Fn(What) -> Measured) -> Vec<(What, f64)> {
    let Some(walks) = of(What::Walks).value() else { return Vec::new() };
    let counted: Vec<(What, f64)> =
        SIZES.into_iter().filter_map(|what| of(what).value().map(|value| (what, value))).collect();
    let all = walks.max(counted.iter().map(|(_, value)| value).sum());
    counted.into_iter().filter(|_| all > 0.0).map(|(what, value)| (what, value / all)).collect()
}

impl Family {
    /// Counts without numbers: each event waits for its own.
    pub(crate) fn blank(&self, with_kernel: bool) -> Counts {
        let event = |side, counts, name: &str| EventCount {
            side,
            counts,
            name: name.to_owned(),
            counted: None,
            not_counted: None,
        };
        Counts {
            family: self.name.clone(),
            source: self.source.clone(),
            walkers: self.walkers,
            with_kernel,
            with_children: false,
            on_some_cores: false,
            cycles: event(Side::Both, What::Cycles, "cycles"),
            instructions: event(Side::Both, What::Walks, "instructions"),
            events: self.events.iter().map(|code| event(code.side, code.counts, &code.name)).collect(),
        }
    }
}

#[cfg(test)]
mod tests;
