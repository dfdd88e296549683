//! Segments of memory, and the places where processes have mapped them.

use crate::{Reason, SegmentKind};
use address_space::{AddressRange, FileNumbers, PageSize, RangeSet};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Identity of a segment. Inode numbers of System V segments are their identifiers, which other kinds and other IPC namespaces
/// may have, too. Private memory has neither device nor inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SegmentKey {
    /// Device of the tmpfs, as maps shows it.
    pub device: (u32, u32),
    /// Inode.
    pub inode: u64,
    /// Kind.
    pub kind: SegmentKind,
    /// The IPC namespace of a System V segment, the PID of private memory; 0 for other kinds.
    pub scope: u64,
}

impl SegmentKey {
    /// The numbers of the segment's file.
    pub fn numbers(&self) -> FileNumbers {
        FileNumbers { device: self.device, inode: self.inode }
    }
}

/// One mapping of a segment in one process.
#[derive(Clone, Debug)]
pub struct View {
    /// The process.
    pub pid: i32,
    /// Addresses.
    pub range: AddressRange,
    /// Offset in the segment; of private memory the first address.
    pub offset: u64,
    /// Bytes mapped by huge pages (smaps).
    pub huge: u64,
    /// Parts that are known to be mapped by huge pages.
    pub huge_parts: RangeSet,
    /// Bytes in the page tables of the process.
    pub resident: u64,
    /// Why the kernel refuses huge pages here whatever the block holds.
    pub refused: Option<Reason>,
    /// A userfaultfd waits for the first access to its holes (`UFFDIO_REGISTER_MODE_MISSING`).
    pub watched: bool,
}

impl View {
    /// Bytes by which addresses are ahead of offsets, modulo `huge`.
    pub fn out_of_step(&self, huge: PageSize) -> u64 {
        self.range.start().0.wrapping_sub(self.offset) & (huge.bytes() - 1)
    }

    /// The addresses of a range of offsets, if the whole range is mapped here.
    pub fn addresses(&self, offsets: &Range<u64>) -> Option<AddressRange> {
        let end = self.offset.checked_add(self.range.len())?;
        let is_inside = offsets.start >= self.offset && offsets.end <= end;
        is_inside.then(|| {
            AddressRange::sized(self.range.start() + (offsets.start - self.offset), offsets.end - offsets.start)
        })
    }
}

/// The data of one block, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Held {
    /// In memory.
    pub present: u64,
    /// Swapped out.
    pub swapped: u64,
    /// Bytes of `present` that another process has in its page tables, too: copies that fork(2) has not made yet.
    pub common: u64,
    /// Guard pages (`MADV_GUARD_INSTALL`, Linux 6.13), which hold nothing.
    pub guards: u64,
}

impl Held {
    /// All data.
    pub const fn data(self) -> u64 {
        self.present.saturating_add(self.swapped)
    }

    /// Bytes that a lift adds to the memory in use: it fills holes, and reads swapped data back.
    pub const fn adds(self, huge: PageSize) -> u64 {
        huge.bytes().saturating_sub(self.present)
    }

    /// Bytes of holes. Swapped data count as used by their tmpfs already.
    pub const fn holes(self, huge: PageSize) -> u64 {
        huge.bytes().saturating_sub(self.data())
    }
}

/// The contents of a segment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Contents {
    /// The first offset after the segment.
    pub length: u64,
    /// Number of each block with data, in ascending order, and its contents.
    pub blocks: Vec<(u64, Held)>,
    /// Bytes of data in blocks that are on huge pages and are not among `blocks`.
    pub already: u64,
    /// Bytes that its tmpfs can still take; `None` without a limit.
    pub room: Option<u64>,
    /// Why the rest was not read.
    pub unseen: Option<Reason>,
}

impl Contents {
    /// Bytes of data, in memory or swapped out.
    pub fn data(&self) -> u64 {
        self.already + self.blocks.iter().map(|(_, held)| held.data()).sum::<u64>()
    }
}

/// Bytes of a segment in one process, which may map some offsets several times.
#[derive(Clone, Debug, Default)]
pub struct Mapped {
    /// The offsets of each mapping, and its bytes.
    mappings: Vec<(Range<u64>, u64)>,
}

impl Mapped {
    /// Adds the bytes of a mapping.
    pub fn add(&mut self, range: AddressRange, offset: u64, bytes: u64) {
        self.mappings.push((offset..offset.saturating_add(range.len()), bytes));
    }

    /// Returns the bytes. Where several mappings show the same offsets, the one with the largest share of bytes counts.
    pub fn bytes(&self) -> u64 {
        let mut ends = Vec::new();
        for (index, (offsets, bytes)) in
            self.mappings.iter().enumerate().filter(|(_, (offsets, _))| !offsets.is_empty())
        {
            // The bits of positive numbers are in the order of the numbers.
            let share = (*bytes as f64 / (offsets.end - offsets.start) as f64).to_bits();
            ends.extend([(offsets.start, true, (share, index)), (offsets.end, false, (share, index))]);
        }
        ends.sort_unstable();
        let (mut sum, mut before, mut shown) = (0.0, 0, BTreeSet::new());
        for (offset, begins, mapping) in ends {
            let most = shown.last().map_or(0.0, |(share, _)| f64::from_bits(*share));
            sum += most * (offset - before) as f64;
            before = offset;
            if begins {
                shown.insert(mapping)
            } else {
                shown.remove(&mapping)
            };
        }
        sum.round() as u64
    }
}

/// A segment with all its mappings in the chosen processes.
#[derive(Clone, Debug)]
pub struct Segment {
    /// Identity.
    pub key: SegmentKey,
    /// Name as maps shows it. Private memory has the name of its process.
    pub name: String,
    /// Mappings; of private memory in ascending order.
    pub views: Vec<View>,
    /// Contents, or why they cannot be known.
    pub contents: Result<Contents, Reason>,
}

impl Segment {
    /// The most bytes that one process maps by huge pages. Bytes that it maps several times count once.
    pub fn huge(&self) -> u64 {
        self.most_of_a_process(|view| view.huge)
    }

    /// The most bytes that one process has in its page tables. Bytes that it maps several times count once.
    pub fn resident(&self) -> u64 {
        self.most_of_a_process(|view| view.resident)
    }

    /// The indices of the mappings that can show a block. Private memory has at most one.
    pub(crate) fn candidates(&self, block: &Range<u64>) -> Range<usize> {
        if !self.key.kind.is_private() {
            return 0..self.views.len();
        }
        let first = self.views.partition_point(|view| view.range.end().0 <= block.start);
        first..(first + 1).min(self.views.len())
    }

    /// True if a userfaultfd watches a part of these offsets in any mapping.
    pub(crate) fn is_watched(&self, offsets: &Range<u64>) -> bool {
        self.views[self.candidates(offsets)]
            .iter()
            .filter(|view| view.watched)
            .any(|view| view.offset < offsets.end && offsets.start < view.offset.saturating_add(view.range.len()))
    }

    fn most_of_a_process(&self, bytes: impl Fn(&View) -> u64) -> u64 {
        let mut of_processes: BTreeMap<i32, Mapped> = BTreeMap::new();
        for view in &self.views {
            of_processes.entry(view.pid).or_default().add(view.range, view.offset, bytes(view));
        }
        of_processes.values().map(Mapped::bytes).max().unwrap_or(0)
    }

    /// Bytes of the segment, holes included; its longest mapping if its contents are unknown.
    pub fn length(&self) -> u64 {
        match &self.contents {
            _ if self.key.kind.is_private() => self.views.iter().map(|view| view.range.len()).sum(),
            Ok(contents) => contents.length,
            Err(_) => self.longest_mapping(),
        }
    }

    /// Bytes of the longest mapping.
    pub fn longest_mapping(&self) -> u64 {
        self.views.iter().map(|view| view.range.len()).max().unwrap_or(0)
    }
}
