//! Why a process is lifted, or not: all decisions about it with the values behind them.

use crate::decision::{
    Course, Identity, Judgement, Order, Pending, Program, Refusal, Subject, Surroundings, Usage, VARIABLE,
    cost_of_measurement, course, judge, least_cpu, least_cpu_to_measure, of_hours, of_machine,
};
use crate::discovery::{Machine, Sampler, conditions, own_line, program_of, scheduling_of, standing_of};
use crate::rules::{Configuration, Settings, WeekTime};
use crate::supervisor::{Entry, Ledger, Paths, Switch};
use crate::verdicts::{Scope, Store, Summary};
use linux::local_time::local_time;
use machine_facts::System;
use std::collections::BTreeSet;
use std::io;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The decisions about a process at this moment.
#[derive(Debug)]
pub struct Explanation<'a> {
    /// Which.
    pub identity: Identity,
    /// Its program.
    pub program: Program,
    /// Its age and resources.
    pub usage: Usage,
    /// The decisions. The resident size counts as stable.
    pub judgement: Judgement<'a>,
    /// CPU time that must be used before the lift.
    pub least_cpu: Duration,
    /// Everything that forbids a lift now, which no property of the process does.
    pub waits: Vec<Refusal>,
    /// State of the kill switch.
    pub switch: Switch,
    /// The agent's entry about it.
    pub entry: Option<Entry>,
    /// Why its build is not lifted.
    pub block: Option<Refusal>,
    /// The measurements of its build, and the conclusion, if a rule orders a lift.
    pub verdict: Option<LiftVerdict>,
    /// Why the verdicts could not be read.
    pub verdicts_error: Option<String>,
    /// Why the state of the agent could not be read.
    pub state_error: Option<String>,
}

/// The verdict on the lift of a process.
#[derive(Clone, Debug, PartialEq)]
pub struct LiftVerdict {
    /// Measurements of its build.
    pub known: Summary,
    /// The decision that the rule and the measurements give.
    pub course: Course,
    /// Estimated CPU time of a measurement.
    pub estimate: Duration,
    /// CPU time that all processes of its build must have used before one is measured.
    pub least_cpu: Duration,
}

impl LiftVerdict {
    fn of(
        order: &Order,
        program: &Program,
        identity: Identity,
        store: &Store,
        machine: &Machine,
        settings: &Settings,
    ) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
        let scope = Scope::read();
        let builds = program.builds_of_verdicts().into_iter();
        let keys = builds.map(|build| scope.key(&build, &order.kind_words(), order.pages, order.max_memory));
        let known = Summary::of_keys(store, keys, &machine.boot, now);
        let estimate = cost_of_measurement(program.read_only);
        Self {
            course: course(Pending { identity, order, pays: false }, &known, &machine.id, &machine.boot),
            least_cpu: least_cpu_to_measure(estimate, &known, settings),
            known,
            estimate,
        }
    }
}

/// Decides about a process, and changes nothing.
///
/// # Errors
/// There is no such process, or it does not answer.
pub fn explain<'a>(configuration: &'a Configuration, paths: &Paths, pid: i32) -> io::Result<Explanation<'a>> {
    let missing =
        || io::Error::new(io::ErrorKind::NotFound, format!("no process has the number {pid}, or it has ended"));
    let sample = Sampler::now()?.sample(pid).ok_or_else(missing)?;
    let named = configuration.rules.iter().filter_map(|rule| Some(rule.conditions.env.as_ref()?.name.clone()));
    let variables: BTreeSet<String> = named.chain([VARIABLE.to_owned()]).collect();
    let program = program_of(pid, &variables).map_err(|error| io::Error::other(error.to_string()))?;
    let scheduling = scheduling_of(pid, sample.scheduling);
    let standing = standing_of(pid, &own_line(), scheduling, sample.is_kernel_thread);
    let machine = Machine::read(&System);
    let now = local_time().map_or(WeekTime { day: 0, minute: 0 }, |now| WeekTime { day: now.day, minute: now.minute });
    let subject = Subject {
        identity: sample.identity,
        program: &program,
        usage: sample.usage,
        resident_before: Some(sample.usage.resident),
        standing: &standing,
    };
    let around = Surroundings { machine: &machine.id, boot: &machine.boot, now, conditions: None };
    let judgement = judge(configuration, subject, around);
    let settings = &configuration.settings;
    let machine_waits = of_machine(&conditions(&System, pid), settings);
    let waits = of_hours(settings, now).into_iter().chain(machine_waits).collect();
    let (store, verdicts_error) = match Store::load(&paths.verdicts) {
        Ok(store) => (store, None),
        Err(error) => (Store::default(), Some(error.to_string())),
    };
    let verdict = judgement.order.as_ref();
    let verdict = verdict.map(|order| LiftVerdict::of(order, &program, sample.identity, &store, &machine, settings));
    let (ledger, state_error) = match Ledger::load(&paths.state, &machine.boot) {
        Ok(ledger) => (ledger, None),
        Err(error) => (Ledger::default(), Some(error.to_string())),
    };
    Ok(Explanation {
        identity: sample.identity,
        usage: sample.usage,
        least_cpu: least_cpu(judgement.cost, settings),
        judgement,
        waits,
        switch: Switch::read(&paths.switch),
        entry: ledger.lifts.iter().find(|entry| entry.identity == sample.identity).cloned(),
        block: ledger.block_of(&program.build, program.owner, program.user),
        verdict,
        verdicts_error,
        state_error,
        program,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decision::Reason;
    use crate::rules::ConfigFile;
    use crate::supervisor::MetricsPlaces;

    #[test]
    fn this_process_is_explained() {
        let folder = tempfile::tempdir().unwrap();
        let paths = Paths {
            config: folder.path().to_owned(),
            state: folder.path().to_owned(),
            switch: folder.path().join("agent.off"),
            verdicts: folder.path().to_owned(),
            metrics: MetricsPlaces::default(),
        };
        let text =
            "[[rule]]\nname = \"a\"\nmatch = { exe = \"/none\" }\n[[rule]]\nname = \"b\"\nmatch = { exe = \"*\" }\n";
        let file = ConfigFile { name: "a.toml".to_owned(), text: text.to_owned() };
        let configuration = Configuration::read(&[file]).unwrap();
        let own = explain(&configuration, &paths, std::process::id() as i32).unwrap();
        assert_eq!(own.judgement.selection.rule.map(|rule| rule.name.as_str()), Some("b"));
        assert_eq!(own.judgement.selection.tried.len(), 1);
        assert_eq!(own.judgement.excluded.map(|refusal| refusal.reason), Some(Reason::OwnLine));
        assert_eq!((own.switch, own.entry, own.state_error, own.verdicts_error), (Switch::Off, None, None, None));
        let verdict = own.verdict.unwrap();
        assert_eq!((verdict.course, verdict.known), (Course::Measure, Summary::default()));
        assert!(verdict.least_cpu > verdict.estimate);
        assert_eq!(explain(&configuration, &paths, i32::MAX).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
