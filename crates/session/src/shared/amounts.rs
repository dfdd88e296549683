//! Memory that lifts in place can add to what a process has on huge pages, at most.

use super::gather::{Settings, machine, private_views, refusal};
use super::private::LEAST_PART;
use super::{InPlace, private};
use address_space::{MappingUsage, PageSize};
use linux::file_cache::cached_pages;
use linux::pages::{base_page, transparent_huge_page};
use nix::sys::statfs::{TMPFS_MAGIC, fstatfs};
use process_view::coverage::{MemoryKind, ProcessMemory};
use process_view::{ProcessFiles, open_mapped};
use serde::Serialize;
use shared_memory::SegmentKind;
use std::time::{Duration, Instant};

/// Most segments of a process whose contents are counted.
const MOST_SEGMENTS: usize = 64;
/// Maximum time to count the blocks of a heap.
const COUNTING: Duration = Duration::from_millis(500);

/// Bytes on base pages that lifts in place can put on huge pages, by kind. These are upper bounds: blocks with many holes are
/// left alone. Private memory is counted by smaps. Of shared memory all pages of the segment count, by whichever process they
/// are mapped, if this process may open the segment. A kind with less than a huge page, or little beside what is huge, has 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct InPlaceAmounts {
    /// Shared memory.
    pub shared: u64,
    /// Anonymous memory.
    pub anonymous: u64,
    /// Anonymous memory in blocks that only a lift of the heap fills, if `anonymous` is 0: they are half full.
    pub heap: u64,
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
            let usages =
                private::mappings_in(memory, kind, false, huge).filter(|usage| private::refusal(usage).is_none());
            if collapses(kind) { small(usages, huge, |usage| (usage.resident, usage.huge())) } else { 0 }
        };
        let (shared, unaligned_shared) = shared(memory, huge);
        let anonymous = of_private(InPlace::Anonymous);
        let heap = if anonymous > 0 { 0 } else { heap(memory, huge) };
        Self { shared, anonymous, heap, jit: of_private(InPlace::Jit), unaligned_shared }
    }

    /// Returns the kinds that a lift in place can add to, with the bytes; without the heap.
    pub fn kinds(&self) -> impl Iterator<Item = (InPlace, u64)> {
        let all = [(InPlace::Shared, self.shared), (InPlace::Anonymous, self.anonymous), (InPlace::Jit, self.jit)];
        all.into_iter().filter(|(_, bytes)| *bytes > 0)
    }
}

/// Bytes that a lift of the heap can put on huge pages. brk(2)'s memory belongs to every lift, and is not counted.
fn heap(memory: &ProcessMemory, huge: PageSize) -> u64 {
    let Ok((machine, _)) = machine(InPlace::Anonymous) else { return 0 };
    if machine.refused.is_some() {
        return 0;
    }
    let holds_block = |usage: &&MappingUsage| usage.resident.saturating_sub(usage.huge()) >= huge.bytes() / 2;
    let usages = private::mappings_in(memory, InPlace::Anonymous, false, huge);
    let usages = usages.filter(|usage| private::refusal(usage).is_none());
    let all: Vec<_> = usages.filter(|usage| usage.huge() > 0 || holds_block(usage)).collect();
    if !all.iter().any(holds_block) {
        return 0;
    }
    private::half_full(memory.pid, &private_views(memory.pid, &all, huge), &machine, Instant::now() + COUNTING)
}

fn collapses(kind: InPlace) -> bool {
    machine(kind).is_ok_and(|(machine, _)| machine.refused.is_none())
}

/// Bytes on base pages in the whole huge pages of some mappings; 0 if they are few. `amounts` returns the resident and the huge
/// bytes of a mapping.
fn small<'a>(
    usages: impl Iterator<Item = &'a MappingUsage>,
    huge: PageSize,
    mut amounts: impl FnMut(&MappingUsage) -> (u64, u64),
) -> u64 {
    let (mut small, mut all) = (0, 0);
    for usage in usages {
        let (resident, on_huge) = amounts(usage);
        let resident = resident.min(usage.mapping.range.whole_pages(huge).len());
        small += resident.saturating_sub(on_huge);
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
    let (mut left, parent) = (MOST_SEGMENTS, std::cell::OnceCell::new());
    let amounts = |usage: &MappingUsage| {
        let counted = (left > 0).then(|| in_segment(memory.pid, usage, huge)).flatten();
        left = left.saturating_sub(1);
        match counted.filter(|counted| *counted > usage.resident) {
            Some(counted) => (counted, usage.huge().max(huge_in(parent.get_or_init(|| parent_of(memory.pid)), usage))),
            None => (usage.resident, usage.huge()),
        }
    };
    let liftable = if collapses(InPlace::Shared) { small(aligned.into_iter(), huge, amounts) } else { 0 };
    (liftable, unaligned.iter().map(|usage| usage.mapping.range.len()).sum())
}

/// Bytes that a segment has in memory, in the whole huge pages of a mapping; `None` if it cannot be opened or counted.
fn in_segment(pid: i32, usage: &MappingUsage, huge: PageSize) -> Option<u64> {
    let (file, _) = open_mapped(&ProcessFiles::of(pid), &usage.mapping).ok()??;
    if fstatfs(&file).ok()?.filesystem_type() != TMPFS_MAGIC {
        return None;
    }
    let (range, whole) = (usage.mapping.range, usage.mapping.range.whole_pages(huge));
    let start = usage.mapping.offset.checked_add(whole.start().0.checked_sub(range.start().0)?)?;
    let pages = cached_pages(&file, start..start.checked_add(whole.len())?).ok()?;
    Some(pages.cached.saturating_mul(base_page().bytes()))
}

/// The mappings of a process's parent. A lift maps huge pages in the first process of a family; other processes map them only
/// when they use them again.
fn parent_of(pid: i32) -> Vec<MappingUsage> {
    let status = ProcessFiles::of(pid).text("status").unwrap_or_default();
    let parent = status.lines().find_map(|line| line.strip_prefix("PPid:")?.trim().parse::<i32>().ok());
    parent.filter(|parent| *parent > 0).and_then(|parent| ProcessFiles::of(parent).smaps().ok()).unwrap_or_default()
}

/// Bytes of the same part of a segment that these mappings have on huge pages.
fn huge_in(usages: &[MappingUsage], of: &MappingUsage) -> u64 {
    let part = |usage: &MappingUsage| (usage.mapping.device, usage.mapping.inode, usage.mapping.offset);
    let same = usages.iter().filter(|usage| usage.mapping.shared && part(usage) == part(of));
    same.map(MappingUsage::huge).max().unwrap_or(0)
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

#[cfg(test)]
mod tests {
    use super::*;
    use linux::file_mapping::FileMapping;
    use std::os::unix::fs::FileExt;

    /// The first process of a server maps few pages of the buffers that the others use.
    #[test]
    fn pages_that_only_other_processes_map_count() {
        const BYTES: u64 = 16 << 20;
        let Some(huge) = transparent_huge_page() else { return };
        let file = tempfile::NamedTempFile::new_in("/dev/shm").unwrap();
        file.as_file().write_all_at(&vec![1; BYTES as usize], 0).unwrap();
        let _mapping = FileMapping::readable(file.as_file(), 0, BYTES, huge).unwrap();
        let memory = ProcessMemory::read(std::process::id() as i32).unwrap();
        let usage = memory.usages.iter().find(|usage| usage.mapping.path().is_some_and(|path| *path == *file.path()));
        let usage = usage.unwrap();
        assert_eq!((usage.resident, in_segment(memory.pid, usage, huge)), (0, Some(BYTES)));
        // The pages that a lift has mapped in the parent are huge.
        let in_parent = MappingUsage { shmem_huge: BYTES, ..usage.clone() };
        assert_eq!((huge_in(&[in_parent], usage), huge_in(&[], usage)), (BYTES, 0));
    }
}
