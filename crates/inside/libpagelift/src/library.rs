//! The library's actions: lift, restore, read the coverage. All run alone and with all signals held, see `own_state`.

use crate::auxiliary::Auxiliary;
use crate::executor::{OwnProcess, own_space};
use crate::live_restrictions::LiveRestrictions;
use crate::look::{Seen, look};
use crate::records::{self, LiftRecord, Marks, is_named};
use crate::report::LiftReport;
use crate::{fork_guard, loaded, needs, own_memory};
use address_space::{AddressRange, AddressSpace, LoadedObject, MappingName, RangeSet};
use alloc::collections::BTreeSet;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use lift_execution::{Executor, LiftOutcome, Report, execute};
use lift_plan::{Method, Policy, Source};

/// Lifted memory on huge pages at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub struct CoveredNow {
    /// Bytes on pages of the hugetlb pool.
    pub pool: u64,
    /// Bytes on transparent huge pages.
    pub transparent: u64,
    /// Number of huge pages.
    pub pages: u64,
    /// Number of lifted ranges, on huge pages or not.
    pub ranges: usize,
}

/// The library's data about this process.
#[derive(Default)]
pub struct Library {
    /// The swapped ranges.
    pub records: Vec<LiftRecord>,
    /// How objects that are loaded later are lifted, where they are.
    pub later: Option<Policy>,
    /// The preparations for a fork.
    pub guard: fork_guard::Guard,
}

impl Library {
    /// Lifts what the policy asks for and what is not lifted yet. `register` registers the handlers around `fork`, before
    /// the first lift that needs them.
    pub fn lift(&mut self, policy: &Policy, register: fn() -> bool) -> LiftReport {
        let started = linux_raw::monotonic_microseconds();
        self.forget_what_is_gone();
        let seen = match look(policy, &self.records) {
            Ok(seen) => seen,
            Err(why) => return LiftReport::nothing(why),
        };
        let already_bytes = self.records.iter().map(|record| record.range.len()).sum();
        let mut outcome = LiftOutcome::default();
        if !seen.plan.lifts.is_empty() && self.ready_for_forks(&seen, register) {
            // SAFETY:
            // - the engine acts on a plan of this process as it is now: the library's lock is held, nothing is unloaded
            //   during the lift, and `live_restrictions` has taken out what others may write to.
            let mut executor = unsafe { OwnProcess::new(seen.machine.base_page) };
            executor.expect_code(seen.code.clone());
            outcome = execute(&seen.plan, &seen.process.space, &mut executor);
            self.remember(&seen, &outcome, &mut executor);
            leave_out_foreign(&mut outcome, &seen);
        }
        let microseconds = linux_raw::monotonic_microseconds() - started;
        let forks = self.guard.shortfall(&self.records);
        let chosen = seen.process.objects.iter().filter(|object| policy.objects.chooses(object));
        let chosen = chosen.map(LoadedObject::extent).collect();
        let lift = Report { already_bytes, ..Report::new(seen.plan, outcome, microseconds) };
        LiftReport { lift, forks, chosen, ..LiftReport::default() }
    }

    /// Like [`Library::lift`], with the number of huge pages on which the chosen objects are, by this lift and by earlier
    /// ones.
    pub fn lift_and_count(&mut self, policy: &Policy, register: fn() -> bool) -> (LiftReport, u64) {
        let earlier: BTreeSet<_> = self.records.iter().map(|record| (record.planned, record.page_size)).collect();
        let report = self.lift(policy, register);
        let Some(auxiliary) = Auxiliary::read() else { return (report, 0) };
        // SAFETY:
        // - it is only asked what is huge.
        let mut executor = unsafe { OwnProcess::new(auxiliary.base_page) };
        let mut pages = report.pages();
        for (range, size) in earlier.into_iter().filter(|(range, _)| report.chosen.overlaps(*range)) {
            let mut huge: RangeSet = executor.query_huge(range, size).unwrap_or_default().within(range).collect();
            report.lift.ranges.iter().for_each(|counted| huge.remove(counted.range));
            pages += huge.bytes() / size.bytes();
        }
        (report, pages)
    }

    /// Lifts what has been loaded since, under the policy for it.
    #[cfg(feature = "preload")]
    pub fn lift_new(&mut self, register: fn() -> bool) -> Option<LiftReport> {
        let policy = self.later.clone()?;
        Some(self.lift(&policy, register))
    }

    /// Registers the handlers around `fork` if the plan has writable pool pages; false if that fails.
    fn ready_for_forks(&mut self, seen: &Seen, register: fn() -> bool) -> bool {
        let needs =
            seen.plan.lifts.iter().any(|lift| {
                lift.protection.write && lift.attempts.iter().any(|attempt| attempt.source == Source::Hugetlb)
            });
        !needs || self.guard.install(register)
    }

    fn remember(&mut self, seen: &Seen, outcome: &LiftOutcome, executor: &mut OwnProcess) {
        let Ok(after) = executor.space() else { return };
        let listed = loaded::extents();
        for (lift, done) in seen.plan.lifts.iter().zip(&outcome.ranges) {
            let attempt = lift.attempts.iter().find(|attempt| Some(attempt.source) == done.source);
            let Some(attempt) = attempt else { continue };
            let swapped = attempt.parts.iter().filter(|part| !matches!(part.method, Method::InPlace { .. }));
            let displaced = done.displaced();
            for range in swapped.flat_map(|part| replaced_in(part.range, &seen.process.space, &after, &displaced)) {
                let marks = Marks::of(range, &after, listed.as_deref());
                self.records.push(LiftRecord::new(lift, attempt, range, &seen.process.space, marks));
            }
        }
    }

    /// Gives everything back to ordinary pages.
    pub fn restore(&mut self) -> LiftReport {
        let started = linux_raw::monotonic_microseconds();
        let space = self.forget_what_is_gone();
        let mut report = LiftReport::default();
        let Some(auxiliary) = Auxiliary::read() else {
            return LiftReport::nothing("found no /proc/self".to_string());
        };
        // SAFETY:
        // - records restore what was lifted, and nobody writes to a writable one during a restore: `live_restrictions`.
        let mut executor = unsafe { OwnProcess::new(auxiliary.base_page) };
        let restrictions = LiveRestrictions::of(&[]);
        let mut kept = Vec::new();
        for record in core::mem::take(&mut self.records) {
            for (range, protection) in record.parts(space.as_ref()) {
                let part = record.part(range);
                let result = match restrictions.why_not_restored(range, protection, record.protection) {
                    Some(why) => Err(String::from(why)),
                    None => part.restore(protection, &mut executor, auxiliary.base_page).map_err(|e| e.to_string()),
                };
                if let Err(why) = result {
                    report.not_restored.push((record.object.clone(), why));
                    kept.push(part);
                }
            }
        }
        self.records = kept;
        report.lift.lift_microseconds = linux_raw::monotonic_microseconds() - started;
        report
    }

    /// The lifted memory that the kernel backs with huge pages now.
    pub fn covered_now(&mut self) -> CoveredNow {
        self.forget_what_is_gone();
        let mut covered = CoveredNow { ranges: self.records.len(), ..CoveredNow::default() };
        let Some(auxiliary) = Auxiliary::read() else { return covered };
        // SAFETY:
        // - it is only asked what is huge.
        let mut executor = unsafe { OwnProcess::new(auxiliary.base_page) };
        for record in &self.records {
            let huge = executor.query_huge(record.range, record.page_size).unwrap_or_default().bytes_in(record.range);
            covered.pages += huge / record.page_size.bytes();
            match record.source {
                Source::Hugetlb => covered.pool += huge,
                Source::Thp | Source::Image | Source::File => covered.transparent += huge,
            }
        }
        covered
    }

    /// Forgets what is not there any more, for a thread that has the linker's lock (`own_state`): objects that were unloaded have taken their ranges with them, and the program may
    /// have unmapped parts of others. Returns the mappings now; `None` where nothing was lifted, or they cannot be read.
    fn forget_what_is_gone(&mut self) -> Option<AddressSpace> {
        let listed = if self.records.is_empty() { None } else { loaded::extents() };
        self.keep_what_is_left(|record, space| record.left_in(space, listed.as_deref()))
    }

    fn keep_what_is_left(&mut self, left: impl Fn(&LiftRecord, &AddressSpace) -> RangeSet) -> Option<AddressSpace> {
        if self.records.is_empty() {
            return None;
        }
        let space = own_space().ok()?;
        records::cut(&mut self.records, |record| left(record, &space));
        Some(space)
    }

    /// Prepares a fork, for which only pool pages matter. They are unmapped and protected whole, so that their records
    /// fall into no more parts than there are pages.
    pub fn prepare_fork(&mut self) {
        if !self.records.iter().any(LiftRecord::is_of_pool) {
            return self.guard.prepare(&self.records, None);
        }
        self.guard.has_memory = own_memory::reserve(needs::of_a_call());
        if !self.guard.has_memory {
            return;
        }
        // The dynamic linker's list has a lock, and a fork waits for no more locks than it must.
        let space = self.keep_what_is_left(|record, space| match record.source {
            Source::Hugetlb => record.of_its_kind_in(space, |_| false),
            _ => [record.range].into_iter().collect(),
        });
        self.guard.prepare(&self.records, space.as_ref());
    }
}

/// The replaced parts of a range, as in maps.
fn replaced_in(
    range: AddressRange,
    before: &AddressSpace,
    after: &AddressSpace,
    displaced: &RangeSet,
) -> Vec<AddressRange> {
    let replaced = after.overlapping(range).iter().filter(|mapping| {
        let was_file = before.overlapping(mapping.range.intersect(range)).iter().any(|m| m.path().is_some());
        mapping.name == MappingName::HugetlbAnonymous || is_named(mapping) || mapping.is_plain_anonymous() && was_file
    });
    let mut joined: RangeSet = replaced.map(|mapping| mapping.range.intersect(range)).collect();
    displaced.iter().for_each(|range| joined.remove(range));
    joined.iter().collect()
}

/// Memory outside of the objects belongs to other threads, and to tools such as valgrind that live in the process too:
/// it changes all the time.
fn leave_out_foreign(outcome: &mut LiftOutcome, seen: &Seen) {
    let extents: Vec<_> = seen.process.objects.iter().map(LoadedObject::extent).collect();
    outcome.unexpected.retain(|difference| extents.iter().any(|extent| extent.overlaps(difference.range)));
}

#[cfg(test)]
mod tests {
    use super::*;
    use address_space::Address;

    #[test]
    fn memory_of_another_thread_in_the_place_of_a_range_is_not_recorded() {
        let range = |start, end| AddressRange::new(Address(start), Address(end));
        let space = |maps: &str| AddressSpace::parse(maps).unwrap();
        let before = space("1000-5000 r-xp 0 8:1 7 /opt/prog\n");
        let after = space("1000-4000 r-xp 0 0:0 0\n4000-5000 rw-p 0 0:0 0\n");
        let displaced = [range(0x4000, 0x5000)].into_iter().collect();
        let replaced = replaced_in(range(0x1000, 0x5000), &before, &after, &displaced);
        assert_eq!(replaced, [range(0x1000, 0x4000)]);
    }
}
