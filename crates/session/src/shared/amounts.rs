//! Memory that lifts in place can add to what a process has on huge pages, at most.

use super::gather::{Settings, machine, refusal};
use super::{InPlace, private};
use address_space::{MappingUsage, PageSize};
use linux::pages::transparent_huge_page;
use process_view::coverage::{MemoryKind, ProcessMemory};
use serde::Serialize;
use shared_memory::SegmentKind;

/// A kind of which less than this part is left, after a lift for example, has nothing to add.
const LEAST_PART: u64 = 8;

/// Bytes on base pages that lifts in place can put on huge pages, by kind. These are upper bounds from smaps: blocks with many
/// holes are left alone. A kind with less than a huge page, or little beside what is huge, has 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct InPlaceAmounts {
    /// Shared memory.
    pub shared: u64,
    /// Anonymous memory.
    pub anonymous: u64,
    /// Generated code.
    pub jit: u64,
    /// Length of shared memory whose addresses disagree with its offsets, so that it can be lifted only after a restart.
    pub unaligned_shared: u64,
}

impl InPlaceAmounts {
    /// Returns the amounts of a process; 0 if this kernel collapses no such memory.
    pub fn of(memory: &ProcessMemory) -> Self {
        let Some(huge) = transparent_huge_page() else { return Self::default() };
        let of_private = |kind| {
            let usages = private::mappings_in(memory, kind, huge).filter(|usage| private::refusal(usage).is_none());
            if collapses(kind) { small(usages, huge) } else { 0 }
        };
        let (shared, unaligned_shared) = shared(memory, huge);
        Self { shared, anonymous: of_private(InPlace::Anonymous), jit: of_private(InPlace::Jit), unaligned_shared }
    }

    /// Returns the kinds that a lift in place can add to, with the bytes.
    pub fn kinds(&self) -> impl Iterator<Item = (InPlace, u64)> {
        let all = [(InPlace::Shared, self.shared), (InPlace::Anonymous, self.anonymous), (InPlace::Jit, self.jit)];
        all.into_iter().filter(|(_, bytes)| *bytes > 0)
    }
}

fn collapses(kind: InPlace) -> bool {
    machine(kind).is_ok_and(|(machine, _)| machine.refused.is_none())
}

/// Bytes on base pages in the whole huge pages of some mappings; 0 if they are few.
fn small<'a>(usages: impl Iterator<Item = &'a MappingUsage>, huge: PageSize) -> u64 {
    let (mut small, mut all) = (0, 0);
    for usage in usages {
        let resident = usage.resident.min(usage.mapping.range.whole_pages(huge).len());
        small += resident.saturating_sub(usage.huge());
        all += resident;
    }
    if small >= huge.bytes().max(all / LEAST_PART) { small } else { 0 }
}

/// Returns the bytes that can be lifted, and the length of unaligned memory.
fn shared(memory: &ProcessMemory, huge: PageSize) -> (u64, u64) {
    let Ok((_, settings)) = machine(InPlace::Shared) else { return (0, 0) };
    let chosen = memory.besides_objects().filter(|(kind, usage)| is_shared(*kind, usage, huge, &settings));
    let agrees = |usage: &&MappingUsage| {
        usage.mapping.range.start().0.wrapping_sub(usage.mapping.offset).is_multiple_of(huge.bytes())
    };
    let (aligned, unaligned): (Vec<_>, Vec<_>) = chosen.map(|(_, usage)| usage).partition(agrees);
    let liftable = if collapses(InPlace::Shared) { small(aligned.into_iter(), huge) } else { 0 };
    (liftable, unaligned.iter().map(|usage| usage.mapping.range.len()).sum())
}

fn is_shared(kind: MemoryKind, usage: &MappingUsage, huge: PageSize, settings: &Settings) -> bool {
    let path = usage.mapping.path().unwrap_or_default();
    let segment = if path.starts_with("/SYSV") { SegmentKind::SystemV } else { SegmentKind::Anonymous };
    (kind == MemoryKind::Shared || path.starts_with("/dev/shm/"))
        && usage.mapping.shared
        && usage.mapping.range.len() >= huge.bytes()
        && !["ht", "um"].iter().any(|flag| usage.has_flag(flag))
        && refusal(usage, segment, huge, settings).is_none()
}
