//! All decisions about one process at one moment.

use super::chance::excluded;
use super::facts::{Conditions, ExecutedFile, Identity, Program, Standing, Usage};
use super::interlocks::{of_hours, of_machine, of_process};
use super::progress::{Event, Unsettled, cost_of, unsettled};
use super::refusal::{Reason, Refusal};
use super::request::{Order, VARIABLE, order};
use super::selection::{Selection, select};
use crate::rules::{Configuration, WeekTime};
use core::time::Duration;
use options::Kind;

/// The facts about a process on which decisions depend.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    /// Which.
    pub identity: Identity,
    /// The file that it executes, if it can be identified.
    pub file: Option<ExecutedFile>,
    /// Its program.
    pub program: &'a Program,
    /// Its age and resources.
    pub usage: Usage,
    /// Resident size at the scan before.
    pub resident_before: Option<u64>,
    /// Properties that may exclude it.
    pub standing: &'a Standing,
}

/// The facts about the machine on which decisions depend.
#[derive(Clone, Copy, Debug)]
pub struct Surroundings<'a> {
    /// Identity of the machine.
    pub machine: &'a str,
    /// Identity of its present run.
    pub boot: &'a str,
    /// Time of the week.
    pub now: WeekTime,
    /// Pressure and limits; `None` if nothing else would permit a lift now, so that they were not read.
    pub conditions: Option<&'a Conditions>,
}

/// The decisions.
#[derive(Clone, Debug, PartialEq)]
pub struct Judgement<'a> {
    /// Which rule it meets.
    pub selection: Selection<'a>,
    /// The lift that the rule orders.
    pub order: Option<Order>,
    /// The reason that excludes it until the program or the configuration changes.
    pub excluded: Option<Refusal>,
    /// Why it is not settled yet.
    pub unsettled: Option<Unsettled>,
    /// The reason against a lift now.
    pub waits: Option<Refusal>,
    /// Estimated cost of the lift in CPU time.
    pub cost: Duration,
}

impl Judgement<'_> {
    /// The event for the state of the process.
    pub fn event(&self) -> Event {
        if self.order.is_none() || self.excluded.is_some() {
            return Event::Excluded;
        }
        Event::Matched { settled: self.unsettled.is_none() }
    }

    /// True if the process may be lifted now.
    pub fn permits(&self) -> bool {
        self.event() == Event::Matched { settled: true } && self.waits.is_none()
    }
}

/// Decides.
pub fn judge<'a>(configuration: &'a Configuration, subject: Subject<'_>, around: Surroundings<'_>) -> Judgement<'a> {
    let Subject { identity, program, usage, .. } = subject;
    let settings = &configuration.settings;
    let selection = select(&configuration.rules, program, usage.cpu);
    let own = of_process(identity.pid, program, subject.standing);
    let (own, own_waits) = own.map_or((None, None), |refusal| match refusal.reason.is_lasting() {
        true => (Some(refusal), None),
        false => (None, Some(refusal)),
    });
    let variable = program.environment.get(VARIABLE).map(String::as_str);
    let ordered = selection.rule.map(|rule| order(rule, variable));
    let (order, refused) = match ordered {
        Some(Ok(order)) => (Some(order), None),
        Some(Err(refusal)) => (None, Some(refusal)),
        None => (None, None),
    };
    let by_chance = selection.rule.and_then(|rule| excluded(rule, around.machine, around.boot, identity));
    let unidentified = order.as_ref().and_then(|_| unidentified(subject.file));
    let cost = cost_of(order.as_ref().map_or(0, |order| bytes_of(order, program, usage)));
    Judgement {
        selection,
        excluded: own.or(refused).or(by_chance).or(unidentified),
        unsettled: unsettled(usage, subject.resident_before, cost, settings),
        waits: own_waits
            .or_else(|| of_hours(settings, around.now))
            .or_else(|| around.conditions.and_then(|conditions| of_machine(conditions, settings))),
        order,
        cost,
    }
}

/// Why a process is not lifted whose executable is unknown: another program could take its place unnoticed.
fn unidentified(file: Option<ExecutedFile>) -> Option<Refusal> {
    let text = "its executable cannot be identified: it is on FUSE or in another user namespace";
    file.is_none().then(|| Refusal::new(Reason::Unidentified, text))
}

/// Bytes that a lift copies or collapses: an upper bound, known without reading the address space.
fn bytes_of(order: &Order, program: &Program, usage: Usage) -> u64 {
    let is_read_only = |kind: Kind| matches!(kind, Kind::Text | Kind::Rodata);
    let words = order.kind_words();
    let takes_more =
        words.iter().any(|word| <Kind as options::Choice>::from_word(word).is_ok_and(|kind| !is_read_only(kind)));
    if takes_more { program.read_only.saturating_add(usage.resident) } else { program.read_only }
}

/// Bytes that a lift may make resident, for the budgets of memory. An estimate.
pub fn adds_of(order: &Order, program: &Program, usage: Usage) -> u64 {
    let most = program.read_only.max(usage.resident);
    order.max_memory.unwrap_or(program.read_only).min(most)
}

/// A lift that does not fit into a budget of memory.
pub fn over_memory(used: u64, adds: u64, most: Option<u64>, whose: &str) -> Option<Refusal> {
    let most = most.filter(|most| used.saturating_add(adds) > *most)?;
    let size = address_space::format_bytes;
    let text = format!(
        "lifts {whose} have made {} resident and this one may add {}; needed: at most {}",
        size(used),
        size(adds),
        size(most)
    );
    Some(Refusal::new(Reason::MemoryBudget, text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::ConfigFile;
    use proptest::prelude::*;

    fn configuration(rule: &str) -> Configuration {
        let text = format!(
            "[agent]\nquiet = [\"Sun 00:00-24:00\"]\n[[rule]]\nname = \"a\"\nmatch = {{ exe = \"*/server\" }}\n{rule}\n"
        );
        Configuration::read(&[ConfigFile { name: "a".to_owned(), text }]).unwrap()
    }

    fn server() -> Program {
        Program { exe: "/bin/server".to_owned(), text: 20 << 20, read_only: 50 << 20, ..Program::default() }
    }

    fn usage() -> Usage {
        Usage { age: Duration::from_secs(60), cpu: Duration::from_secs(30), resident: 100 << 20 }
    }

    fn quiet() -> Conditions {
        Conditions { available: 50, memory: 100, ..Conditions::default() }
    }

    fn judged(
        configuration: &Configuration,
        program: &Program,
        usage: Usage,
        conditions: &Conditions,
        day: u32,
    ) -> Judgement<'static> {
        let identity = Identity { pid: 7, start: 9 };
        let (file, standing) = (Some(ExecutedFile::default()), &Standing::default());
        let subject = Subject { identity, file, program, usage, resident_before: Some(100 << 20), standing };
        let now = WeekTime { day, minute: 0 };
        let configuration = Box::leak(Box::new(configuration.clone()));
        judge(configuration, subject, Surroundings { machine: "m", boot: "b", now, conditions: Some(conditions) })
    }

    #[test]
    fn a_settled_server_is_lifted_and_each_obstacle_is_named() {
        let rules = configuration("");
        let judge =
            |program: &Program, usage, conditions: &Conditions, day| judged(&rules, program, usage, conditions, day);
        let judgement = judge(&server(), usage(), &quiet(), 0);
        assert!(judgement.permits(), "{judgement:?}");
        assert_eq!(judgement.cost, Duration::from_millis(100));
        let young = judge(&server(), Usage { age: Duration::from_secs(1), ..usage() }, &quiet(), 0);
        assert!(young.event() == Event::Matched { settled: false } && !young.permits());
        let other = judge(&Program { exe: "/bin/other".to_owned(), ..server() }, usage(), &quiet(), 0);
        assert_eq!(other.event(), Event::Excluded);
        let sunday = judge(&server(), usage(), &quiet(), 6);
        assert_eq!(sunday.waits.as_ref().map(|refusal| refusal.reason), Some(Reason::QuietHours));
        assert_eq!(sunday.event(), Event::Matched { settled: true }, "it is eligible, and waits");
        let pressed = judge(&server(), usage(), &Conditions { cpu_pressure: Some(80.0), ..quiet() }, 0);
        assert!(!pressed.permits());
        let off = Program { environment: [(VARIABLE.to_owned(), "off".to_owned())].into(), ..server() };
        assert_eq!(judge(&off, usage(), &quiet(), 0).excluded.map(|refusal| refusal.reason), Some(Reason::OptedOut));
    }

    /// Another program could take its place unnoticed.
    #[test]
    fn an_executable_that_cannot_be_identified_excludes() {
        let rules = configuration("");
        let reason = |program: &Program, file| {
            let identity = Identity { pid: 7, start: 9 };
            let standing = &Standing::default();
            let subject = Subject { identity, file, program, usage: usage(), resident_before: None, standing };
            let now = WeekTime { day: 0, minute: 0 };
            let around = Surroundings { machine: "m", boot: "b", now, conditions: None };
            judge(&rules, subject, around).excluded.map(|refusal| refusal.reason)
        };
        assert_eq!(reason(&server(), None), Some(Reason::Unidentified));
        assert_eq!(reason(&server(), Some(ExecutedFile::default())), None);
        let other = Program { exe: "/bin/other".to_owned(), ..server() };
        assert_eq!(reason(&other, None), None, "no rule is met");
    }

    #[test]
    fn shares_exclude() {
        let judge = |rule: &str| {
            judged(&configuration(rule), &server(), usage(), &quiet(), 0).excluded.map(|refusal| refusal.reason)
        };
        assert_eq!(judge("rollout = \"0%\""), Some(Reason::NotRolledOut));
        assert_eq!(judge("holdout = \"100%\""), Some(Reason::Holdout));
        assert_eq!(judge("lift = []"), Some(Reason::Exempt));
    }

    #[test]
    fn memory_that_is_collapsed_counts_by_its_size() {
        let rules = configuration("lift = [\"anon\"]\nkeep = \"always\"\nmax_memory = \"8M\"");
        assert_eq!(judged(&rules, &server(), usage(), &quiet(), 0).cost, Duration::from_millis(200));
    }

    #[test]
    fn budgets_of_memory() {
        assert_eq!(over_memory(5, 5, Some(10), "on this machine"), None);
        assert_eq!(over_memory(u64::MAX, 5, None, "on this machine"), None);
        let refusal = over_memory(5, 6, Some(10), "on this machine").unwrap();
        assert_eq!(
            refusal.text,
            "lifts on this machine have made 5 B resident and this one may add 6 B; needed: at most 10 B"
        );
    }

    proptest! {
        /// No order beyond the rule, and none before the CPU time has paid for the lift.
        #[test]
        fn nothing_is_lifted_before_it_has_paid(cpu in 0u64..100, age in 0u64..100, pressure in 0f64..100.0) {
            let usage = Usage { age: Duration::from_secs(age), cpu: Duration::from_secs(cpu), resident: 100 << 20 };
            let judgement = judged(&configuration(""), &server(), usage, &Conditions { cpu_pressure: Some(pressure), ..quiet() }, 0);
            if judgement.permits() {
                prop_assert!(judgement.cost.as_secs_f64() <= 0.005 * cpu as f64 + 1e-9);
                prop_assert!(age >= 30 && pressure <= 25.0);
            }
        }
    }
}
