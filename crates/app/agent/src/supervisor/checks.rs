//! The last checks before a lift. The agent stops at the first refusal, and `explain` prints all.

use super::budget::CpuBudget;
use super::ledger::Ledger;
use super::round::week_time;
use crate::decision::{Order, Program, Refusal, Standing, adds_of, of_hours, of_machine, of_process, unpaid};
use crate::discovery::{Sample, conditions, scheduling_of};
use crate::rules::Settings;
use machine_facts::System;
use std::time::Duration;

/// A process before its turn, and the state of the agent.
pub struct LastChecks<'a> {
    /// The settings.
    pub settings: &'a Settings,
    /// The lifts so far.
    pub ledger: &'a Ledger,
    /// The budget of CPU time; `None` if no agent runs.
    pub budget: Option<&'a CpuBudget>,
    /// The process.
    pub sample: Sample,
    /// Its program.
    pub program: &'a Program,
    /// The lift that its rule orders; `None` if no rule is met.
    pub order: Option<&'a Order>,
    /// Estimated cost of the lift in CPU time.
    pub cost: Duration,
    /// CPU time that all processes of its build have used, and the time that a measurement needs. `None`: it is not measured
    /// first.
    pub measurement: Option<(Duration, Duration)>,
}

impl LastChecks<'_> {
    /// The reasons against a lift at this moment, each read when it is asked for.
    pub fn refusals(&self) -> impl Iterator<Item = Refusal> {
        // The last one reads each thread.
        let checks: [fn(&Self) -> Option<Refusal>; 7] = [
            Self::of_measurement,
            Self::of_ledger,
            Self::of_hours,
            Self::of_machine,
            Self::of_memory,
            Self::of_cpu,
            Self::of_threads,
        ];
        checks.into_iter().filter_map(move |check| check(self))
    }

    fn of_measurement(&self) -> Option<Refusal> {
        self.measurement.and_then(|(used, needed)| unpaid(used, needed))
    }

    fn of_ledger(&self) -> Option<Refusal> {
        self.ledger.is_full()
    }

    fn of_hours(&self) -> Option<Refusal> {
        of_hours(self.settings, week_time())
    }

    fn of_machine(&self) -> Option<Refusal> {
        of_machine(&conditions(&System, self.sample.identity.pid), self.settings)
    }

    fn of_memory(&self) -> Option<Refusal> {
        let adds = adds_of(self.order?, self.program, self.sample.usage);
        self.ledger.over_memory(&self.program.cgroup, adds, self.settings)
    }

    fn of_cpu(&self) -> Option<Refusal> {
        self.order.and_then(|_| self.budget?.refusal(self.cost))
    }

    /// A thread that is scheduled in real time, although the first thread is not.
    fn of_threads(&self) -> Option<Refusal> {
        let Sample { identity, scheduling, .. } = self.sample;
        let standing = Standing { scheduling: scheduling_of(identity.pid, scheduling), ..Standing::default() };
        of_process(identity.pid, &Program::default(), &standing)
    }
}
