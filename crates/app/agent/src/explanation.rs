//! Why a process is lifted, or not: all decisions about it with the values behind them.

use crate::decision::{
    Course, Identity, Judgement, Order, Pending, Program, Refusal, Subject, Surroundings, Usage, VARIABLE,
    cost_of_measurement, course, is_early, judge, least_cpu, least_cpu_to_measure,
};
use crate::discovery::{Machine, Sampler, executed_file, own_line, processes, program_of, scheduling_of, standing_of};
use crate::rules::{Configuration, Settings, WeekTime};
use crate::supervisor::{CpuBudget, Entry, LastChecks, Ledger, Paths, Status, Switch};
use crate::verdicts::{Scope, Store, Summary};
use linux::local_time::local_time;
use machine_facts::System;
use std::collections::BTreeSet;
use std::io;
use std::path::Path;
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
    let sampler = Sampler::now()?;
    let sample = sampler.sample(pid).ok_or_else(missing)?;
    let named = configuration.rules.iter().filter_map(|rule| Some(rule.conditions.env.as_ref()?.name.clone()));
    let variables: BTreeSet<String> = named.chain([VARIABLE.to_owned()]).collect();
    let program = program_of(pid, &variables).map_err(|error| io::Error::other(error.to_string()))?;
    let scheduling = scheduling_of(pid, sample.scheduling);
    let standing = standing_of(pid, &own_line(), scheduling, sample.is_kernel_thread);
    let machine = Machine::read(&System);
    let now = local_time().map_or(WeekTime { day: 0, minute: 0 }, |now| WeekTime { day: now.day, minute: now.minute });
    let subject = Subject {
        identity: sample.identity,
        file: executed_file(pid),
        program: &program,
        usage: sample.usage,
        resident_before: Some(sample.usage.resident),
        standing: &standing,
    };
    let around = Surroundings { machine: &machine.id, boot: &machine.boot, now, conditions: None };
    let judgement = judge(configuration, subject, around);
    let settings = &configuration.settings;
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
    let measured = verdict.as_ref().filter(|verdict| verdict.course == Course::Measure);
    let budget = budget_of(&paths.state, &sampler, settings);
    let checks = LastChecks {
        settings,
        ledger: &ledger,
        budget: budget.as_ref(),
        sample,
        program: &program,
        order: judgement.order.as_ref(),
        cost: judgement.cost,
        measurement: measured.map(|verdict| (used_by_build(&program, &sampler, settings), verdict.least_cpu)),
    };
    let waits = checks.refusals().collect();
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

/// The budget of the running agent; `None` if none runs.
fn budget_of(state: &Path, sampler: &Sampler, settings: &Settings) -> Option<CpuBudget> {
    let status = Status::load(state).ok()??;
    let now = sampler.sample(status.agent.pid).filter(|now| now.identity == status.agent);
    now.map(|_| CpuBudget::with(settings.cpu, Duration::from_millis(status.budget_milliseconds)))
}

/// CPU time of the processes of a build that an agent reads.
fn used_by_build(program: &Program, sampler: &Sampler, settings: &Settings) -> Duration {
    let samples = processes().unwrap_or_default().into_iter().filter_map(|pid| sampler.sample(pid));
    let read = samples.filter(|sample| !sample.is_kernel_thread && !is_early(sample.usage, settings));
    let is_of_build = |pid: i32| {
        let other = program_of(pid, &BTreeSet::new());
        other.is_ok_and(|other| (&other.build, other.owner) == (&program.build, program.owner))
    };
    let used = read.filter(|sample| is_of_build(sample.identity.pid)).map(|sample| sample.usage.cpu);
    used.fold(Duration::ZERO, Duration::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decision::Reason;
    use crate::rules::ConfigFile;
    use crate::supervisor::MetricsPlaces;

    fn paths(folder: &Path) -> Paths {
        Paths {
            config: folder.to_owned(),
            state: folder.to_owned(),
            switch: folder.join("agent.off"),
            verdicts: folder.to_owned(),
            metrics: MetricsPlaces::default(),
        }
    }

    fn configuration(text: &str) -> Configuration {
        Configuration::read(&[ConfigFile { name: "a.toml".to_owned(), text: text.to_owned() }]).unwrap()
    }

    /// The status of an agent that is this process, without any CPU time left.
    fn exhausted() -> Status {
        Status {
            version: 1,
            agent: crate::discovery::own_identity().unwrap(),
            mode: "act".to_owned(),
            rules: 1,
            configuration_is_read: true,
            switch: String::new(),
            scanned: 0,
            scan_microseconds: 0,
            processes: Default::default(),
            cpu_milliseconds: 0,
            budget_milliseconds: 0,
            counts: Default::default(),
            measuring: None,
            left_alone: Vec::new(),
            stuck: Vec::new(),
        }
    }

    /// The agent refused for these reasons, and the explanation was that the process is lifted.
    #[test]
    fn budgets_and_the_cost_of_a_measurement_are_explained() {
        let folder = tempfile::tempdir().unwrap();
        let paths = paths(folder.path());
        let configuration =
            configuration("[agent]\nmax_memory = \"1M\"\n[[rule]]\nname = \"a\"\nmatch = { exe = \"*\" }\n");
        let boot = Machine::read(&System).boot;
        let mut ledger = Ledger::load(folder.path(), &boot).unwrap();
        let (identity, file, progress) = (Identity { pid: 1, start: 1 }, Default::default(), Default::default());
        let entry = Entry::new(identity, file, &Program::default(), "a", &["text"], progress, 1);
        ledger.put(Entry { resident: 2 << 20, ..entry });
        ledger.save(folder.path()).unwrap();
        let reasons = || {
            let own = explain(&configuration, &paths, std::process::id() as i32).unwrap();
            own.waits.iter().map(|refusal| refusal.reason).collect::<Vec<_>>()
        };
        let without_agent = reasons();
        assert!(without_agent.contains(&Reason::MemoryBudget), "{without_agent:?}");
        assert!(without_agent.contains(&Reason::MeasurementUnpaid) && !without_agent.contains(&Reason::CpuBudget));
        std::fs::write(folder.path().join("status.json"), serde_json::to_string(&exhausted()).unwrap()).unwrap();
        assert!(reasons().contains(&Reason::CpuBudget), "{:?}", reasons());
    }

    #[test]
    fn this_process_is_explained() {
        let folder = tempfile::tempdir().unwrap();
        let paths = paths(folder.path());
        let configuration = configuration(
            "[[rule]]\nname = \"a\"\nmatch = { exe = \"/none\" }\n[[rule]]\nname = \"b\"\nmatch = { exe = \"*\" }\n",
        );
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
