//! What an answer says, in words: for the terminal and for pages.

use bench_record::{Ended, Record, Switch};
use measure::statistics::{Estimate, median};
use measure::toggle::{Answer, ArmAnswer, Finding, Per};

/// `+0.4`: a share of a ratio, in percent. What is far beyond any measurement is written with an exponent.
pub fn percent(ratio: f64) -> String {
    let percent = (ratio - 1.0) * 100.0;
    if percent.abs() < 1e5 { format!("{percent:+.1}") } else { format!("{percent:+.1e}") }
}

/// `+0.4 % [-0.3, +1.1]`.
pub fn interval(arm: &ArmAnswer) -> String {
    match &arm.ratio {
        Some(Estimate { centre, low, high, .. }) => {
            format!("{} % [{}, {}]", percent(*centre), percent(*low), percent(*high))
        }
        None => format!("{} blocks, too few for an interval", arm.blocks),
    }
}

/// What work is divided by, in the singular.
pub fn per(per: Per) -> &'static str {
    match per {
        Per::CpuSecond => "CPU second",
        Per::Second => "second",
    }
}

/// `±0.8 %`: the smallest difference that may be claimed.
pub fn resolution(answer: &Answer) -> Option<String> {
    answer.resolution.map(|share| format!("±{} %", percent(1.0 + share).trim_start_matches('+')))
}

/// `= 0.31`: a probability.
fn chance(probability: f64) -> String {
    if probability < 0.005 { "< 0.01".to_owned() } else { format!("= {probability:.2}") }
}

/// What can be said of an arm.
pub fn finding(answer: &Answer, arm: usize) -> String {
    let resolution = resolution(answer).map_or_else(String::new, |text| format!(" ({text})"));
    let probability =
        answer.arms[arm].signed_rank.map_or_else(String::new, |p| format!(", signed-rank p {}", chance(p)));
    match answer.finding(arm) {
        Finding::Better => format!("it pays{probability}"),
        Finding::Worse => format!("it costs{probability}"),
        Finding::NoDifference => format!("no difference that this machine can show{resolution}{probability}"),
        Finding::TooFew => "too few blocks to say; fix: a longer --for".to_owned(),
    }
}

/// Which blocks do not count, and why; absent where all do.
pub fn unusable(record: &Record, answer: &Answer) -> Option<String> {
    let count: usize = answer.arms.iter().chain([&answer.control]).map(|arm| arm.unusable).sum();
    if count == 0 {
        return None;
    }
    let works = record.timed_blocks().flat_map(|block| block.measured.windows).map(|window| window.work);
    let least = works.fold(0.0, f64::min);
    Some(if least < 0.0 {
        format!(
            "{count} blocks do not count: the counter of {} went backwards, by {} in one window, or no work was done",
            record.header.unit,
            number(-least)
        )
    } else {
        format!("{count} blocks do not count: no {} were counted in them", record.header.unit)
    })
}

/// A number without a unit, whole where it is large.
fn number(value: f64) -> String {
    match value {
        value if value >= 1e9 => format!("{value:.2e}"),
        value if value >= 10.0 => format!("{value:.0}"),
        value => format!("{value:.2}"),
    }
}

/// What a lift costs: medians of all switches into an arm.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SwitchCost {
    /// Seconds of CPU time.
    pub cpu: f64,
    /// Seconds that the program stood still.
    pub pause: f64,
    /// Number of switches.
    pub switches: usize,
    /// Seconds of CPU time after which a gain has paid for it; absent where nothing is gained.
    pub paid_back: Option<f64>,
}

/// What a switch to an arm costs; absent where none was made.
pub fn switch_cost(record: &Record, answer: &Answer, arm: usize) -> Option<SwitchCost> {
    let of_arm: Vec<&Switch> = record.switches().filter(|switch| switch.arm == Some(arm)).collect();
    let middle = |of: fn(&Switch) -> f64| median(&of_arm.iter().map(|switch| of(switch)).collect::<Vec<_>>());
    let (cpu, pause) = (middle(|switch| switch.cpu)?, middle(|switch| switch.pause)?);
    let gain = answer.arms.get(arm)?.ratio.map(|ratio| 1.0 - 1.0 / ratio.centre).filter(|gain| *gain > 0.0);
    let paid_back = gain.filter(|_| answer.finding(arm) == Finding::Better).map(|gain| cpu / gain);
    Some(SwitchCost { cpu, pause, switches: of_arm.len(), paid_back })
}

/// What the CPU counted, plain and in each arm: a line for each figure, or the reason why there is none.
pub fn walks(record: &Record) -> Vec<String> {
    let states: Vec<_> = record.walks().collect();
    if let Some(why) = states.iter().find_map(|state| state.not_counted.as_ref()) {
        return vec![format!("page walks were not counted: {why}")];
    }
    let name = |arm: Option<usize>| arm.and_then(|arm| record.header.arms.get(arm)).map_or("plain", String::as_str);
    let Some(first) = states.first() else { return Vec::new() };
    let line = |at: usize, figure: &bench_record::Figure| {
        let value = |state: &&bench_record::WalkFigures| {
            let value = state.figures.get(at).and_then(|figure| figure.value);
            format!(
                "{} {}",
                name(state.arm),
                value.map_or_else(|| "not counted".to_owned(), |value| format!("{value:.3}"))
            )
        };
        let reason = states.iter().find_map(|state| state.figures.get(at)?.not_counted.as_deref());
        let reason = reason.map_or_else(String::new, |why| format!(" ({why})"));
        format!("{}: {}{reason}", figure.name, states.iter().map(value).collect::<Vec<_>>().join(", "))
    };
    first.figures.iter().enumerate().map(|(at, figure)| line(at, figure)).collect()
}

/// How the experiment ended; absent where its time was up.
pub fn end(record: &Record) -> Option<String> {
    match record.ended() {
        Some(Ended::Resolved) => Some("ended: the interval is as narrow as was asked for".to_owned()),
        Some(Ended::TimeIsUp) => None,
        Some(Ended::Interrupted) => Some("interrupted: the answer so far".to_owned()),
        Some(Ended::Failed(why)) => Some(format!("ended early: {why}")),
        None => Some("the file was cut off: the answer from what it holds".to_owned()),
    }
}
