//! The values of the metrics after a scan.

use super::switch::Switch;
use super::{Agent, Counts, Entry};
use crate::decision::{Reason, State};
use crate::discovery::Sampler;
use crate::metrics::kernel::KernelCounts;
use crate::metrics::{LiftResults, Lifted, Snapshot};
use address_space::PageSize;
use linux::interrupts::InterruptCounts;
use linux::pages::transparent_huge_page;
use machine_facts::System;
use nix::sys::resource::UsageWho;
use std::time::{SystemTime, UNIX_EPOCH};

/// Words of sources that may be labels.
const SOURCES: [&str; 4] = ["file", "image", "hugetlb", "thp"];

impl Agent<'_> {
    /// Publishes the values of the last scan.
    pub(super) fn publish(&mut self) {
        if self.exporter.is_used() {
            let shootdowns = self.shootdowns.advance(InterruptCounts::read().unwrap_or_default());
            let mut snapshot = self.snapshot(shootdowns);
            self.exporter.publish(&mut snapshot, self.report);
        }
    }

    fn snapshot(&self, shootdowns: Option<u64>) -> Snapshot {
        let counts = self.ledger.counts.since(&self.counts_at_start);
        let own = Sampler::now().ok().and_then(|sampler| sampler.sample(self.own.pid));
        let states = self.states().into_iter().map(|(state, number)| (state, number as u64));
        Snapshot {
            is_config_accepted: self.is_configuration_read,
            config_accepted_at: self.configuration_read_at,
            is_killed: self.switch != Switch::Off,
            processes: states.collect(),
            lifted: self.lifted_memory(),
            lifts: results(&counts),
            refusals: counts.refusals,
            pauses: self.pause_histogram.clone(),
            crashes: counts.crashes,
            supervisor_cpu: super::used_by(UsageWho::RUSAGE_SELF),
            worker_cpu: super::used_by(UsageWho::RUSAGE_CHILDREN),
            pause_time: self.pauses,
            budget_left: self.budget.left(),
            resident: own.map_or(0, |sample| sample.usage.resident),
            scan: self.last_scan.time,
            scans: counts.scans,
            dropped_scans: counts.dropped_scans,
            exec_events: self.exec_events.as_ref().map(|_| self.heard),
            measured_blocks: counts.measured_blocks,
            stuck_workers: self.stuck.len() as u64 + u64::from(self.has_stuck_measurement() || self.has_earlier_worker),
            lost: self.ledger.lifts.iter().map(|entry| entry.lost).fold(0, u64::saturating_add),
            at: seconds(),
            kernel: KernelCounts { shootdowns, ..KernelCounts::read(&System) },
            ..Snapshot::new(env!("CARGO_PKG_VERSION"), self.configuration.settings.mode)
        }
    }

    /// Memory of lifted programs.
    fn lifted_memory(&self) -> Vec<Lifted> {
        let entries =
            self.ledger.lifts.iter().filter(|entry| entry.covered > 0 && entry.progress.state != State::Lifting);
        entries.flat_map(lifted_memory_of).collect()
    }
}

/// Memory of one program by source. Memory lifted in place is on transparent huge pages. Resident bytes count for the first source.
fn lifted_memory_of(entry: &Entry) -> Vec<Lifted> {
    let part = |source: &str, page_size: u64, bytes: u64| {
        let source = *SOURCES.iter().find(|&&word| word == source)?;
        Some(Lifted { program: entry.program.clone(), source, page_size, bytes, private: 0 })
    };
    let copied = entry.sources.iter().map(|part| part.bytes).fold(0, u64::saturating_add);
    let in_place = entry.covered.saturating_sub(copied);
    let copies = entry.sources.iter().filter_map(|copies| part(&copies.source, copies.page_size, copies.bytes));
    let mut parts: Vec<Lifted> = copies.collect();
    if in_place > 0 {
        parts.extend(part("thp", transparent_huge_page().map_or(0, PageSize::bytes), in_place));
    }
    if let Some(first) = parts.first_mut() {
        first.private = entry.resident;
    }
    parts
}

fn results(counts: &Counts) -> LiftResults {
    let refused = |reason| counts.refusals.get(&reason).copied().unwrap_or(0);
    LiftResults {
        lifted: counts.lifts,
        observed: counts.observed,
        refused: refused(Reason::LiftRefused),
        failed: refused(Reason::WorkerFailed),
        put_back: counts.restored,
    }
}

/// Seconds since 1970.
pub(super) fn seconds() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |time| time.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::supervisor::ledger::tests::entry;
    use crate::worker::{Answer, Share, SourceBytes};

    #[test]
    fn memory_is_shown_by_source_and_the_rest_is_in_place() {
        let copies = |source: &str, bytes| SourceBytes { source: source.to_owned(), page_size: 2 << 20, bytes };
        let sources = vec![copies("file", 10), copies("hugetlb", 4)];
        let lasting = Share { covered: 6, resident: 3 };
        let entry = entry(1).with(&Answer { covered: 20, resident: 5, lasting, sources, ..Answer::default() });
        let shown: Vec<_> =
            lifted_memory_of(&entry).into_iter().map(|part| (part.source, part.bytes, part.private)).collect();
        assert_eq!(shown, [("file", 10, 5), ("hugetlb", 4, 0), ("thp", 6, 0)]);
        let restored = entry.clone().restored(entry.progress, 0);
        assert_eq!(lifted_memory_of(&restored).iter().map(|part| part.bytes).collect::<Vec<_>>(), [6]);
    }
}
