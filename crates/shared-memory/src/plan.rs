//! The plan: which blocks are lifted through which mapping, what that adds, and why others are left alone.

use crate::segment::{Contents, Segment, View};
use crate::{Reason, SegmentKey, most_holes};
use address_space::PageSize;
use std::collections::BTreeMap;
use std::ops::Range;

/// The machine.
#[derive(Clone, Debug)]
pub struct Machine {
    /// Size of a huge page, and so of a block.
    pub huge: PageSize,
    /// Why no shared memory at all can be lifted.
    pub refused: Option<Reason>,
    /// `shmem_enabled` is `never`.
    pub never: bool,
}

/// The user's choices.
#[derive(Clone, Copy, Debug, Default)]
pub struct Policy {
    /// Fill blocks however many holes they have; empty blocks are left alone.
    pub fill: bool,
    /// Most bytes of holes that are filled, all together.
    pub most: Option<u64>,
}

/// One block to be lifted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// Number of the block in its segment.
    pub block: u64,
    /// Index of the mapping through which it is lifted.
    pub view: usize,
    /// Bytes of holes that are filled.
    pub adds: u64,
}

/// Blocks that are left alone for the same reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Why.
    pub reason: Reason,
    /// Number of blocks.
    pub blocks: u64,
    /// Bytes of data in them.
    pub bytes: u64,
}

/// The plan of one segment.
#[derive(Clone, Debug)]
pub struct SegmentPlan {
    /// Bytes of data in the segment.
    pub data: u64,
    /// The most bytes that one process maps by huge pages.
    pub huge: u64,
    /// Blocks to be lifted, in ascending order.
    pub work: Vec<Work>,
    /// Number of blocks that are on huge pages already.
    pub already: u64,
    /// Blocks that are left alone, by reason.
    pub refused: Vec<Refused>,
}

impl SegmentPlan {
    /// Bytes of holes that the lift fills.
    pub fn adds(&self) -> u64 {
        self.work.iter().map(|work| work.adds).sum()
    }
}

/// The plan of all segments, in their order.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// One for each segment.
    pub segments: Vec<SegmentPlan>,
}

/// Adds blocks to those that are left alone for the same reason.
pub(crate) fn refuse(all: &mut Vec<Refused>, reason: Reason, blocks: u64, bytes: u64) {
    for refused in all.iter_mut() {
        let is_same = match (&mut refused.reason, &reason) {
            (Reason::Holes { would_add }, Reason::Holes { would_add: more }) => {
                *would_add += more;
                true
            }
            (found, reason) => found == reason,
        };
        if is_same {
            refused.blocks += blocks;
            refused.bytes += bytes;
            return;
        }
    }
    all.push(Refused { reason, blocks, bytes });
}

/// Bytes of holes that may still be filled.
struct Room {
    of_tmpfs: BTreeMap<(u32, u32), u64>,
    most: Option<u64>,
    left: u64,
}

impl Room {
    fn take(&mut self, key: &SegmentKey, contents: &Contents, adds: u64) -> Result<(), Reason> {
        if adds > self.left {
            return Err(Reason::MostMemory { most: self.most.unwrap_or(u64::MAX) });
        }
        if let Some(room) = contents.room.filter(|_| adds > 0) {
            let left = self.of_tmpfs.entry(key.device).or_insert(room);
            *left = left.checked_sub(adds).ok_or(Reason::Quota { left: *left })?;
        }
        self.left -= adds;
        Ok(())
    }
}

/// Plans the lift of all segments.
pub fn plan(segments: &[Segment], machine: &Machine, policy: Policy) -> Plan {
    let mut room = Room { of_tmpfs: BTreeMap::new(), most: policy.most, left: policy.most.unwrap_or(u64::MAX) };
    Plan { segments: segments.iter().map(|segment| plan_segment(segment, machine, policy, &mut room)).collect() }
}

fn plan_segment(segment: &Segment, machine: &Machine, policy: Policy, room: &mut Room) -> SegmentPlan {
    let mut planned = SegmentPlan { data: 0, huge: segment.huge(), work: Vec::new(), already: 0, refused: Vec::new() };
    let contents = match &segment.contents {
        Ok(contents) => contents,
        Err(reason) => {
            planned.data = segment.huge();
            refuse(&mut planned.refused, reason.clone(), machine.huge.pages_for(segment.longest_mapping()), 0);
            return planned;
        }
    };
    planned.data = contents.data();
    for &(block, data) in &contents.blocks {
        match place(segment, contents.length, machine, block) {
            Ok(Place { already: true, .. }) => planned.already += 1,
            Ok(Place { view, .. }) => {
                let adds = machine.huge.bytes().saturating_sub(data);
                let fits = adds <= most_holes(machine.huge) || policy.fill;
                let taken =
                    if fits { room.take(&segment.key, contents, adds) } else { Err(Reason::Holes { would_add: adds }) };
                match taken {
                    Ok(()) => planned.work.push(Work { block, view, adds }),
                    Err(reason) => refuse(&mut planned.refused, reason, 1, data),
                }
            }
            Err(reason) => refuse(&mut planned.refused, reason, 1, data),
        }
    }
    if let Some(reason) = &contents.unseen {
        refuse(&mut planned.refused, reason.clone(), 0, 0);
    }
    planned
}

/// The mapping through which a block is lifted.
struct Place {
    view: usize,
    already: bool,
}

/// The offsets of a block.
pub(crate) fn offsets(block: u64, huge: PageSize) -> Option<Range<u64>> {
    let start = block.checked_mul(huge.bytes())?;
    Some(start..start.checked_add(huge.bytes())?)
}

fn place(segment: &Segment, length: u64, machine: &Machine, block: u64) -> Result<Place, Reason> {
    if let Some(reason) = &machine.refused {
        return Err(reason.clone());
    }
    let no_block = Reason::NoWholeBlock { size: machine.huge };
    let whole = offsets(block, machine.huge).filter(|offsets| offsets.end <= length).ok_or(no_block.clone())?;
    let mut refusal = no_block;
    let mut found: Option<Place> = None;
    for (index, view) in segment.views.iter().enumerate() {
        match usable(view, machine, &whole) {
            Some(Ok(already)) if already || found.is_none() => found = Some(Place { view: index, already }),
            Some(Err(reason)) => refusal = reason,
            Some(Ok(_)) | None => {}
        }
    }
    found.ok_or(refusal)
}

/// Another mapping through which a block can be lifted than those that are gone.
pub(crate) fn other_view(segment: &Segment, machine: &Machine, block: u64, gone: &[usize]) -> Option<usize> {
    let whole = offsets(block, machine.huge)?;
    let fits = |view: &View| matches!(usable(view, machine, &whole), Some(Ok(_)));
    segment.views.iter().enumerate().find(|(index, view)| !gone.contains(index) && fits(view)).map(|(index, _)| index)
}

/// Returns whether a block is huge already in a mapping, or why it cannot be huge; `None` if it is not mapped whole.
fn usable(view: &View, machine: &Machine, whole: &Range<u64>) -> Option<Result<bool, Reason>> {
    let addresses = view.addresses(whole)?;
    let bytes = view.out_of_step(machine.huge);
    Some(match &view.refused {
        _ if bytes != 0 => Err(Reason::OutOfStep { bytes, size: machine.huge, never: machine.never }),
        Some(reason) => Err(reason.clone()),
        None => Ok(view.huge_parts.covers(addresses)),
    })
}
