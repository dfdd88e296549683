//! Memory that fills over time: lifted again as it grows, with looks that cost little.

use super::{InPlace, InPlaceOptions, InPlaceReport, Rooms, SegmentReport, Turn, lift_within};
use crate::SessionError;
use address_space::PageSize;
use linux::pages::transparent_huge_page;
use machine_facts::{Files, System, meminfo_bytes};
use process_view::ProcessFiles;
use shared_memory::{Glance, Rhythm, rest_after};
use std::time::{Duration, Instant};

/// Memory of one kind that is lifted as it grows.
pub struct Growing {
    memory: InPlace,
    huge: PageSize,
    rhythm: Rhythm,
    last: Instant,
    /// The rooms below limits that all lifts have found: half of each stays free.
    rooms: Rooms,
    /// Time that all looks have taken without their lifts.
    looking: Duration,
}

/// The time without checks after each check of memory of any kind. All checks together take 2 % of a CPU at most.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rest {
    until: Option<Instant>,
}

impl Rest {
    /// True if the next look may begin.
    pub fn is_over(self) -> bool {
        self.until.is_none_or(|until| Instant::now() >= until)
    }

    /// Begins after a look that took this long.
    pub fn begin(&mut self, took: Duration) {
        self.until = Instant::now().checked_add(rest_after(took));
    }
}

impl Growing {
    /// Lifts memory of some processes for the first time. `None` in the place of `Self` if the machine has no huge pages for it.
    ///
    /// # Errors
    /// No process can be read.
    pub fn begin(pids: &[i32], options: InPlaceOptions<'_>) -> Result<(InPlaceReport, Option<Self>), SessionError> {
        let mut rooms = Rooms::that_may_compact();
        let (report, looking) = lift_within(pids, options, &mut rooms, Turn::First)?;
        let memory = options.memory;
        let growing = transparent_huge_page().map(|huge| {
            let rhythm = Rhythm::new(looking, newly_huge(&report), glance(memory, pids));
            Self { memory, huge, rhythm, last: Instant::now(), rooms, looking }
        });
        Ok((report, growing))
    }

    /// Memory of processes that have just begun, so that it is still to be filled. `None` if the machine has no huge pages for it.
    pub fn at_start(memory: InPlace, pids: &[i32]) -> Option<Self> {
        let huge = transparent_huge_page()?;
        let rhythm = Rhythm::at_start(glance(memory, pids));
        Some(Self {
            memory,
            huge,
            rhythm,
            last: Instant::now(),
            rooms: Rooms::that_may_compact(),
            looking: Duration::ZERO,
        })
    }

    /// The kind of memory.
    pub const fn memory(&self) -> InPlace {
        self.memory
    }

    /// Time that all looks have taken without their lifts.
    pub const fn looking(&self) -> Duration {
        self.looking
    }

    /// Lifts again what has filled since the last look. The options have the bound of this lift. `None` where no look is due yet.
    ///
    /// # Errors
    /// No process can be read. The next look is due as after one that has lifted nothing.
    pub fn lift(&mut self, pids: &[i32], options: InPlaceOptions<'_>) -> Option<Result<InPlaceReport, SessionError>> {
        if !self.rhythm.is_due(self.last.elapsed(), glance(self.memory, pids), self.huge) {
            return None;
        }
        let looked = lift_within(pids, InPlaceOptions { memory: self.memory, ..options }, &mut self.rooms, Turn::Later);
        let (looking, lifted) =
            looked.as_ref().map_or((Duration::ZERO, 0), |(report, looking)| (*looking, newly_huge(report)));
        self.rhythm.looked(looking, lifted, glance(self.memory, pids));
        self.looking += looking;
        self.last = Instant::now();
        Some(looked.map(|(report, _)| report))
    }
}

/// Bytes that a lift has added, or that a plan would add: holes that are filled, and swapped data that is read back.
pub fn added(report: &InPlaceReport) -> u64 {
    let of = |segment: &SegmentReport| match (segment.filled, segment.read_back) {
        (None, None) => segment.adds,
        (filled, read_back) => filled.unwrap_or(0) + read_back.unwrap_or(0),
    };
    report.segments.iter().map(of).sum()
}

/// Bytes that a lift has put on huge pages.
pub fn newly_huge(report: &InPlaceReport) -> u64 {
    let of = |segment: &SegmentReport| segment.huge_after.unwrap_or(0).saturating_sub(segment.huge_before);
    report.segments.iter().map(of).sum()
}

/// Bytes that may be on small pages, by a glance at a few numbers: shared memory of the whole machine that is not huge, and the
/// largest part of any process; or all anonymous memory of the processes.
fn glance(memory: InPlace, pids: &[i32]) -> Glance {
    let of = |pid: &i32, field| meminfo_bytes(&ProcessFiles::of(*pid).text("status").ok()?, field);
    if memory == InPlace::Shared {
        let meminfo = System.text("/proc/meminfo").unwrap_or_default();
        let bytes = |field| meminfo_bytes(&meminfo, field).unwrap_or(0);
        let machine = bytes("Shmem").saturating_sub(bytes("ShmemHugePages"));
        return Glance { machine, processes: pids.iter().filter_map(|pid| of(pid, "RssShmem")).max().unwrap_or(0) };
    }
    Glance { machine: 0, processes: pids.iter().filter_map(|pid| of(pid, "RssAnon")).sum() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_is_seen_by_a_glance() {
        let own = [std::process::id() as i32];
        let before = glance(InPlace::Anonymous, &own).processes;
        let filled = vec![1_u8; 32 << 20];
        let after = glance(InPlace::Anonymous, &own).processes;
        assert!(after >= before + (16 << 20), "{before} and {after} with {} bytes more", filled.len());
        assert_eq!(glance(InPlace::Jit, &[]), Glance::default());
        assert_eq!(glance(InPlace::Shared, &[]).processes, 0);
    }

    #[test]
    fn a_look_is_followed_by_a_rest() {
        let mut rest = Rest::default();
        assert!(rest.is_over());
        rest.begin(Duration::from_secs(100));
        assert!(!rest.is_over());
        rest.begin(Duration::ZERO);
        assert!(rest.is_over());
    }
}
