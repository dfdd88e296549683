//! The decision after an experiment, in words, and the next command.

use crate::latency::longer_waits;
use crate::words::{failure_before_blocks, hidden, interval};
use measure::decision::{ArmFacts, ArmVerdict, Decision, Doubt, decide};
use measure::record::{Design, Ended, Record};
use measure::statistics::GENERATIONS_FOR_T;
use measure::toggle::{Answer, Finding, Per};
use std::fmt;

/// CPU seconds that a window should hold. With less than half as much, single events dominate its noise.
const CPU_OF_WINDOW: f64 = 0.1;
/// The longest window that is suggested, in seconds.
const LONGEST_WINDOW: f64 = 10.0;
/// A longer experiment than this is not suggested, in seconds.
const LONGEST: f64 = 24.0 * 3600.0;

/// A decision in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Advice {
    /// The decision: `Keep it`.
    pub headline: String,
    /// Its reason: one sentence, or several.
    pub reason: String,
    /// The next step, if there is one.
    pub next: Option<Next>,
    /// The kind of decision, for colours.
    pub class: &'static str,
}

/// The step after a decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// A command that can be copied.
    Command {
        /// Its words, quoted for a shell where needed.
        command: String,
        /// The question that it answers, if the decision leaves one.
        purpose: Option<&'static str>,
    },
    /// An instruction that is no command by itself.
    Words(String),
}

impl fmt::Display for Next {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Command { command, purpose: None } => f.write_str(command),
            Self::Command { command, purpose: Some(purpose) } => write!(f, "{command} ({purpose})"),
            Self::Words(words) => f.write_str(words),
        }
    }
}

/// Returns the decision from a record; `None` if it has no arm.
pub fn decision(record: &Record) -> Option<(Answer, Decision)> {
    let answer = record.steady_answer().unwrap_or_else(|| record.answer());
    let facts: Vec<ArmFacts> = (0..answer.arms.len()).map(|arm| facts(record, &answer, arm)).collect();
    let decision = decide(&answer, &facts, seconds(record))?;
    Some((answer, decision))
}

fn facts(record: &Record, answer: &Answer, arm: usize) -> ArmFacts {
    let claims = matches!(answer.finding(arm), Finding::Better | Finding::Worse);
    // If a program is switched, its blocks were measured while something was lifted.
    let was_lifted = record.header.design != Design::Runs && answer.arms[arm].blocks > 0 && claims;
    let lifted_nothing = record.lifted_nothing(arm).is_some() && !was_lifted;
    ArmFacts { lifted_nothing, plain_huge: record.plain_huge(arm) }
}

/// Seconds from the start to the last block.
fn seconds(record: &Record) -> f64 {
    let walls = record.timed_blocks().flat_map(|block| block.measured.windows).map(|window| window.wall);
    let last = record.timed_blocks().filter_map(|block| block.at).fold(0.0, f64::max);
    last.max(walls.sum()).clamp(0.0, 1e9)
}

/// The decision of a record in words. Longer waits of requests are named if throughput does not already speak against the arm.
pub fn advice(record: &Record) -> Advice {
    let Some((answer, decision)) = decision(record) else {
        return cannot_tell("Cannot tell", "the record has no arm".to_owned(), None);
    };
    let advice = of_throughput(record, &answer, decision);
    let is_open = matches!(
        decision.verdict,
        ArmVerdict::Keep | ArmVerdict::GainsTooLittle | ArmVerdict::CannotTell(Doubt::TooShort(_))
    );
    match longer_waits(record, decision.arm).filter(|_| is_open) {
        Some(waits) => Advice { reason: format!("{}; {waits}", advice.reason), ..advice },
        None => advice,
    }
}

fn of_throughput(record: &Record, answer: &Answer, Decision { arm, verdict }: Decision) -> Advice {
    let name = record.header.arms.get(arm).map_or("the arm", String::as_str);
    let measured = interval(&answer.arms[arm]);
    let advice = |headline: &str, class, reason, next| Advice { headline: headline.to_owned(), reason, next, class };
    match verdict {
        ArmVerdict::Keep => advice("Keep it", "pays", format!("{name} gains {measured}"), keep(record, arm)),
        ArmVerdict::Costs => advice("Leave it", "costs", format!("{name} costs {measured}"), other_memory(record)),
        ArmVerdict::GainsTooLittle => {
            let reason = format!("{name} gains less than 1 %, if anything: {measured}");
            advice("Leave it", "equal", reason, other_memory(record))
        }
        ArmVerdict::CannotTell(doubt) => doubtful(record, answer, arm, doubt),
    }
}

fn cannot_tell(headline: &str, reason: String, next: Option<Next>) -> Advice {
    Advice { headline: headline.to_owned(), reason, next, class: "few" }
}

fn doubtful(record: &Record, answer: &Answer, arm: usize, doubt: Doubt) -> Advice {
    let name = record.header.arms.get(arm).map_or("the arm", String::as_str);
    match doubt {
        Doubt::NothingLifted => {
            let why = record.lifted_nothing(arm).unwrap_or_default();
            let claims = matches!(answer.finding(arm), Finding::Better | Finding::Worse);
            let by_start = if claims { ". The start by `pagelift run` makes the difference" } else { "" };
            let next = instead(record, &why);
            let of = if record.header.arms.len() > 1 { format!("{name}: ") } else { String::new() };
            cannot_tell("Nothing was lifted", format!("{of}{why}{by_start}"), next)
        }
        Doubt::PlainIsHuge => {
            let share = record.plain_huge(arm).unwrap_or(1.0).clamp(0.0, 1.0) * 100.0;
            let reason = format!(
                "huge pages were compared with huge pages: {share:.0} % of what {name} has on huge pages is on huge pages \
                 in the plain program, too, since a lift leaves files in huge folios of the page cache"
            );
            cannot_tell("Cannot tell", reason, Some(cold(record)))
        }
        Doubt::Disturbed => {
            let idle = idle(record).map_or_else(String::new, |idle| format!(". Besides, {idle}"));
            let reason = format!(
                "the experiment was disturbed: plain differs from itself by {}. By chance that happens in one of 20 \
                 undisturbed experiments{idle}",
                interval(&answer.control)
            );
            cannot_tell("Cannot tell", reason, Some(again(&window(record))))
        }
        Doubt::TooFewStarts(starts) => {
            let starts = if starts == 1 { "once".to_owned() } else { format!("{starts} times") };
            let reason = format!("servers were started {starts}, and {GENERATIONS_FOR_T} starts are needed");
            let options = [format!("--starts {}", GENERATIONS_FOR_T + 2), "--for 10m".to_owned()];
            cannot_tell("Cannot tell yet", reason, Some(again(&options)))
        }
        Doubt::TooShort(seconds) => too_short(record, answer, arm, seconds),
    }
}

fn too_short(record: &Record, answer: &Answer, arm: usize, seconds: Option<f64>) -> Advice {
    let hidden = hidden(answer, arm).map(|share| format!("a difference of {share} may be hidden"));
    if let Some(why) = failure_before_blocks(record) {
        return cannot_tell("Cannot tell", format!("no block was measured: {why}"), None);
    }
    if answer.arms[arm].blocks == 0 && matches!(record.ended(), Some(Ended::Failed(_))) {
        let name = record.header.arms.get(arm).map_or("the arm", String::as_str);
        return cannot_tell("Cannot tell", format!("no block of {name} was measured"), None);
    }
    let idle = idle(record);
    let reason = |end: String| {
        let parts = [hidden.clone().unwrap_or_else(|| "too few blocks".to_owned()), end];
        parts.into_iter().chain(idle.clone()).filter(|part| !part.is_empty()).collect::<Vec<_>>().join("; ")
    };
    match seconds.map(|seconds| seconds.max(60.0)) {
        Some(seconds) if seconds <= LONGEST => {
            let time = Time::of(seconds);
            let options = [vec![format!("--for {}", time.option())], window(record)].concat();
            cannot_tell(
                &format!("Cannot tell yet: about {} would", time.words()),
                reason(String::new()),
                Some(again(&options)),
            )
        }
        Some(_) => {
            let end = "at this noise more than a day would be needed".to_owned();
            let options = window(record);
            cannot_tell("Cannot tell", reason(end), (!options.is_empty()).then(|| again(&options)))
        }
        None => {
            let options = [vec!["--for 20m".to_owned()], window(record)].concat();
            cannot_tell("Cannot tell yet", reason(String::new()), Some(again(&options)))
        }
    }
}

/// The next command if nothing was lifted, unless the reason has a fix: the program that does the work, or other memory.
fn instead(record: &Record, why: &str) -> Option<Next> {
    let heap = || again(&["--heap=auto (whether its heap gains)".to_owned()]);
    match (&record.header.worker, record.header.design) {
        (Some(worker), _) => Some(again(&[format!("--only {}", foreign_text::quoted_text(worker))])),
        (None, _) if why.contains("fix: ") => None,
        (None, Design::Toggle) => other_memory(record),
        (None, Design::Runs | Design::Servers) => Some(heap()),
    }
}

/// The next command for a plain program that is not on huge pages.
fn cold(record: &Record) -> Next {
    match record.header.design {
        Design::Runs => again(&["--cold-plain".to_owned()]),
        Design::Servers | Design::Toggle if has_own_server(record) => {
            Next::Words(format!("pagelift cache drop FILE, then {}", again(&["--pages=thp".to_owned()])))
        }
        Design::Servers | Design::Toggle => {
            let thp = again(&["--pages=thp".to_owned()]);
            Next::Words(format!("end the program, pagelift cache drop FILE, start it, then {thp}"))
        }
    }
}

/// The last command with other options. The record's own words are not repeated: they may come from anybody.
fn again(options: &[String]) -> Next {
    Next::Words(match options {
        [] => "the same command again".to_owned(),
        options => format!("the same command with {}", options.join(" ")),
    })
}

/// CPU seconds of a window, and the share of the time that they are; only of programs whose CPU time is counted.
fn cpu_of_window(record: &Record) -> Option<(f64, f64)> {
    if record.header.design == Design::Runs || record.header.per != Per::CpuSecond {
        return None;
    }
    let (mut cpu, mut wall, mut count) = (0.0, 0.0, 0.0);
    for window in record.timed_blocks().flat_map(|block| block.measured.windows) {
        cpu += window.cpu.clamp(0.0, 1e6);
        wall += window.wall.clamp(0.0, 1e6);
        count += 1.0;
    }
    (count > 0.0 && wall > 0.0 && cpu > 0.0).then(|| (cpu / count, cpu / wall))
}

/// That windows hold little work, if so.
fn idle(record: &Record) -> Option<String> {
    let (cpu, share) = cpu_of_window(record).filter(|(cpu, _)| *cpu < CPU_OF_WINDOW / 2.0)?;
    Some(format!(
        "the program used {:.0} % of a CPU, {:.0} ms in each window: longer windows have less noise",
        share * 100.0,
        cpu * 1e3
    ))
}

/// The option for longer windows, if these hold little work.
fn window(record: &Record) -> Vec<String> {
    let Some((_, share)) = cpu_of_window(record).filter(|(cpu, _)| *cpu < CPU_OF_WINDOW / 2.0) else {
        return Vec::new();
    };
    let seconds = (CPU_OF_WINDOW / share).min(LONGEST_WINDOW);
    vec![format!("--window {:.0}ms", (seconds * 10.0 - 1e-6).ceil() * 100.0)]
}

/// The command that lifts for good; `None` if the arm is no lift.
fn keep(record: &Record, arm: usize) -> Option<Next> {
    let options = record.header.options.get(arm)?;
    let is_lift = |word: &String| word.starts_with("--");
    if options.is_empty() || !options.iter().all(is_lift) {
        return None;
    }
    const USUAL: [&str; 5] =
        ["--pages=auto", "--writable-pages=thp", "--edges=exact", "--lift=text,rodata,data,bss,heap", "--cold-plain"];
    let words = options.iter().filter(|word| !USUAL.contains(&word.as_str())).map(String::as_str);
    let (verb, end) = match record.header.design {
        Design::Toggle if !has_own_server(record) => ("attach", toggled(record)),
        _ => ("run", "-- CMD".to_owned()),
    };
    let quoted: Vec<String> = words.map(foreign_text::quoted_text).collect();
    let words = ["pagelift".to_owned(), verb.to_owned()].into_iter().chain(quoted).chain([end]);
    Some(Next::Command { command: words.collect::<Vec<_>>().join(" "), purpose: None })
}

/// The running process that was switched, as the command line names it; `PID` if its record names none, or one that is more than
/// a word.
fn toggled(record: &Record) -> String {
    let words = &record.header.command;
    let joined = words.iter().find_map(|word| word.strip_prefix("--toggle="));
    let apart = || words.iter().skip_while(|word| *word != "--toggle").nth(1).map(String::as_str);
    let is_plain = |word: &&str| {
        let is_of_name = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        !word.is_empty() && !word.starts_with('-') && word.len() <= 64 && word.chars().all(is_of_name)
    };
    joined.or_else(apart).filter(is_plain).unwrap_or("PID").to_owned()
}

/// True if servers were started for the experiment. They have ended.
fn has_own_server(record: &Record) -> bool {
    match record.header.design {
        Design::Toggle => record.header.command.iter().any(|word| word == "--"),
        Design::Servers => true,
        Design::Runs => false,
    }
}

/// The next memory to examine, if code and read-only data gain nothing.
fn other_memory(record: &Record) -> Option<Next> {
    (record.header.design == Design::Toggle).then(|| {
        let command = match has_own_server(record) {
            true => "pagelift doctor -- CMD".to_owned(),
            false => format!("pagelift stat -p {}", toggled(record)),
        };
        Next::Command { command, purpose: Some("whether its other memory can gain") }
    })
}

/// A time, rounded up.
#[derive(Clone, Copy)]
enum Time {
    Minutes(u64),
    Hours(u64),
}

impl Time {
    fn of(seconds: f64) -> Self {
        let minutes = (seconds / 60.0).ceil() as u64;
        match minutes {
            0..=10 => Self::Minutes(minutes.max(1)),
            11..=90 => Self::Minutes(minutes.next_multiple_of(5)),
            _ => Self::Hours(minutes.div_ceil(60)),
        }
    }

    fn words(self) -> String {
        let (number, unit) = match self {
            Self::Minutes(number) => (number, "minute"),
            Self::Hours(number) => (number, "hour"),
        };
        format!("{number} {unit}{}", if number == 1 { "" } else { "s" })
    }

    fn option(self) -> String {
        match self {
            Self::Minutes(number) => format!("{number}m"),
            Self::Hours(number) => format!("{number}h"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_rounded_up() {
        let said = |seconds: f64| (Time::of(seconds).words(), Time::of(seconds).option());
        for (seconds, words, option) in [
            (30.0, "1 minute", "1m"),
            (300.0, "5 minutes", "5m"),
            (1_000.0, "20 minutes", "20m"),
            (7_100.0, "2 hours", "2h"),
        ] {
            assert_eq!(said(seconds), (words.to_owned(), option.to_owned()));
        }
    }
}
