//! The part of a lift that is made when the program has paid for it, by the CPU time that it has used.

use super::filling::SharedReport;
use crate::report::{LiftReport, PostponedState};
use crate::running::{AttachOptions, Pause, attach_opened};
use crate::start::{StartEvent, StartOptions};
use crate::{SessionError, costs};
use address_space::RangeSet;
use lift_plan::{Later, Paid, Reason};
use linux::cpu_time;
use linux::process_handle::ProcessHandle;
use options::{CostShare, Prepare};
use process_view::perf_map::PerfMapError;
use process_view::{ObjectReader, ProcessFiles};
use ptrace::attach::Target;
use std::thread::available_parallelism;
use std::time::Duration;

/// Limits of the time between two reads of the program's CPU time. A read takes some microseconds.
const SHORTEST: Duration = Duration::from_millis(10);
const LONGEST: Duration = Duration::from_secs(5);
/// The time of a program that uses less than this part of a CPU is read more and more rarely.
const IDLE_PART: u32 = 10;
/// Lifts that are begun, if threads of the program cannot be stopped at the time.
const TRIES: u32 = 5;

/// A program that has to pay for a part of its lift.
pub struct Debtor {
    target: Target,
    handle: ProcessHandle,
    report: LiftReport,
    /// The memory that is lifted later.
    postponed: RangeSet,
    /// CPU time that the process had used when the program began.
    used_before: Duration,
    /// CPU time that the program has to use.
    due: Duration,
    /// The price of the copies made since, including those that could not be moved into place.
    spent: Duration,
    /// The largest share of its CPU time that the lift may cost.
    share: CostShare,
    options: AttachOptions,
    /// Write a perf map after a lift.
    perf_map: bool,
}

/// A program whose postponed lift is over.
pub struct Settled {
    /// The outcome of both lifts.
    pub report: LiftReport,
    /// Time for which the program's threads were stopped by the later one.
    pub pause: Option<Pause>,
    /// Why its perf map could not be written.
    pub no_perf_map: Option<PerfMapError>,
}

impl Settled {
    /// Returns the event that reports it.
    pub fn event(&self) -> StartEvent<'_> {
        StartEvent::Settled { report: &self.report, pause: self.pause, no_perf_map: self.no_perf_map.as_ref() }
    }
}

/// The result of one later lift.
enum Step {
    /// Nothing is left to lift.
    Over(PostponedState),
    /// Threads could not be stopped. The clause explains it.
    TryAgain(String),
    /// Memory costs more by now than the program has paid for.
    Unpaid,
}

impl Debtor {
    /// The outcome of the start.
    pub fn report(&self) -> &LiftReport {
        &self.report
    }

    /// Opens the program of a report, before it is resumed.
    ///
    /// # Errors
    /// A sentence with the reason why it cannot be opened.
    pub fn open(report: LiftReport, later: &Later, options: &StartOptions) -> Result<Self, String> {
        let target = Target::open(report.pid)?;
        let handle = ProcessHandle::open(report.pid).map_err(|error| format!("it cannot be opened: {error}"))?;
        let used_before = cpu_time::of_process(report.pid).unwrap_or_default();
        let mut policy = options.policy.clone();
        // The start has used a part of this limit.
        policy.max_memory = policy.max_memory.map(|most| most.saturating_sub(report.lift.made_resident_bytes));
        // The price does not contain the preparation of files.
        let attach = AttachOptions { policy, prepare: Prepare::Never, ..AttachOptions::default() };
        let share = options.payment.map(|payment| payment.share).unwrap_or_default();
        let (postponed, due) = (later.lifts.iter().map(|lift| lift.range).collect(), later.due);
        Ok(Self {
            target,
            handle,
            report,
            postponed,
            used_before,
            due,
            spent: Duration::ZERO,
            share,
            options: attach,
            perf_map: options.perf_map,
        })
    }

    /// Waits until the program has paid, and lifts the rest; or until it ends or executes another program. `record` has the turn
    /// of the lift.
    pub fn settle(mut self, reader: &mut ObjectReader, record: &SharedReport) -> Settled {
        let (mut pause, mut tries) = (None, TRIES);
        let state = loop {
            if let Err(state) = self.wait() {
                break state;
            }
            let step = {
                let _turn = record.turn();
                self.lift(reader, &mut pause)
            };
            match step {
                Step::Over(state) => break state,
                Step::Unpaid => {}
                Step::TryAgain(why) => {
                    tries -= 1;
                    if tries == 0 {
                        break PostponedState::Refused { why };
                    }
                    if self.handle.ends_within(LONGEST) {
                        break PostponedState::Ended;
                    }
                }
            }
        };
        self.over(state, pause)
    }

    /// Returns the outcome of a lift that is over.
    pub fn over(mut self, state: PostponedState, pause: Option<Pause>) -> Settled {
        if let Some(postponed) = &mut self.report.postponed {
            postponed.state = state;
        }
        // The map of the start, if there is one, does not have the copies that were made since.
        let is_lifted = pause.is_some() && self.report.lift.covered_bytes > 0;
        let written = (self.perf_map && is_lifted).then(|| crate::perf_map::write(self.report.pid));
        Settled { report: self.report, pause, no_perf_map: written.and_then(Result::err) }
    }

    /// CPU time that the program has used.
    fn used(&self) -> Duration {
        cpu_time::of_process(self.target.pid()).unwrap_or_default().saturating_sub(self.used_before)
    }

    /// Waits until the program has paid.
    ///
    /// # Errors
    /// The program has ended or executed another one.
    fn wait(&self) -> Result<(), PostponedState> {
        let cpus = available_parallelism().map_or(1, |cpus| u32::try_from(cpus.get()).unwrap_or(u32::MAX));
        let (mut before, mut last) = (Duration::ZERO, Duration::ZERO);
        loop {
            let used = self.used();
            let left = self.due.saturating_sub(used);
            if left.is_zero() {
                return Ok(());
            }
            last = time_to_look(left, cpus, last, used.saturating_sub(before));
            before = used;
            if self.target.ends_within(last) {
                return Err(PostponedState::Ended);
            }
            if !self.target.has_memory() {
                return Err(PostponedState::Executed);
            }
        }
    }

    /// Makes the lift for which the program has paid.
    fn lift(&mut self, reader: &mut ObjectReader, pause: &mut Option<Pause>) -> Step {
        let target = match Target::open(self.report.pid) {
            Ok(target) if self.handle.is_alive() && self.target.has_memory() => target,
            _ if !self.handle.is_alive() => return Step::Over(PostponedState::Ended),
            Ok(_) => return Step::Over(PostponedState::Executed),
            Err(why) => return Step::Over(PostponedState::Refused { why }),
        };
        // A process that shares the memory of the start keeps it after an exec. The new program has other mappings.
        let space = ProcessFiles::of(self.report.pid).maps().unwrap_or_default();
        if !self.postponed.iter().any(|range| !space.overlapping(range).is_empty()) {
            let why = "the program no longer maps the memory that was to be lifted".to_owned();
            return Step::Over(PostponedState::Refused { why });
        }
        let used = self.used();
        let time = self.share.of(used).saturating_sub(self.spent);
        self.options.paid = Some(Paid { costs: costs::known().costs, time, first: self.postponed.clone() });
        let attached = match attach_opened(target, &self.options, reader) {
            Ok(attached) => attached,
            Err(_) if !self.handle.is_alive() => return Step::Over(PostponedState::Ended),
            Err(SessionError::NotNow(not_now)) => return Step::TryAgain(not_now),
            Err(error) => return Step::Over(PostponedState::Refused { why: error.in_full() }),
        };
        *pause = Some(pause.map_or(attached.pause, |before| before.and(attached.pause)));
        self.spent += attached.price.time();
        let made_resident = attached.report.lift.made_resident_bytes;
        self.options.policy.max_memory = self.options.policy.max_memory.map(|most| most.saturating_sub(made_resident));
        let unpaid = unpaid_of(&attached.report, &self.postponed);
        self.report.add_later(attached.report);
        if attached.is_cut_short {
            self.due = self.share.time_for(self.spent + unpaid.price);
            return Step::TryAgain("threads of the program could not be stopped".to_owned());
        }
        if unpaid.memory.is_empty() {
            return Step::Over(PostponedState::Lifted { used_microseconds: used.as_micros() as u64 });
        }
        self.postponed = unpaid.memory;
        self.due = self.share.time_for(self.spent + unpaid.price);
        Step::Unpaid
    }
}

/// Memory for which a program has not paid.
struct UnpaidMemory {
    memory: RangeSet,
    price: Duration,
}

/// Returns the part of `postponed` that is not lifted because the program has not paid for it.
fn unpaid_of(report: &LiftReport, postponed: &RangeSet) -> UnpaidMemory {
    let mut unpaid = UnpaidMemory { memory: RangeSet::new(), price: Duration::ZERO };
    for refusal in &report.lift.refusals {
        if let Reason::NotPaidFor { price, .. } = refusal.reason
            && postponed.overlaps(refusal.range)
        {
            unpaid.memory.insert(refusal.range);
            unpaid.price += price;
        }
    }
    unpaid
}

/// Returns the time until the next read for a program that has to use `left` more CPU time, and has used `ran` in the `last`
/// such time.
fn time_to_look(left: Duration, cpus: u32, last: Duration, ran: Duration) -> Duration {
    let earliest = left / cpus.max(1);
    let is_idle = ran < last / IDLE_PART;
    let rarely = if is_idle { last.saturating_mul(2) } else { Duration::ZERO };
    earliest.max(rarely).clamp(SHORTEST, LONGEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_program_is_looked_at_when_it_may_have_paid() {
        let ms = Duration::from_millis;
        assert_eq!(time_to_look(ms(1000), 2, Duration::ZERO, Duration::ZERO), ms(500));
        assert_eq!(time_to_look(ms(1000), 1, ms(500), ms(400)), ms(1000));
        assert_eq!(time_to_look(ms(1), 64, ms(500), ms(500)), SHORTEST);
        assert_eq!(time_to_look(Duration::MAX, 0, LONGEST, Duration::MAX), LONGEST);
    }

    #[test]
    fn an_idle_program_is_looked_at_more_rarely() {
        let left = Duration::from_millis(20);
        let mut last = time_to_look(left, 2, Duration::ZERO, Duration::ZERO);
        let mut times = Vec::new();
        while last < LONGEST {
            times.push(last);
            last = time_to_look(left, 2, last, last / 20);
        }
        assert!(times.windows(2).all(|pair| pair[1] == pair[0] * 2) && times.len() < 12, "{times:?}");
        assert_eq!(time_to_look(left, 2, last, last), SHORTEST);
    }
}
