//! The plan: the blocks to lift and the mapping for each, the added memory, and the reasons for leaving others alone.

use crate::segment::{Contents, Held, Segment, View};
use crate::{Fill, Margins, Reason, SegmentKey, SegmentKind, most_holes};
use address_space::PageSize;
use std::collections::BTreeMap;
use std::ops::Range;

/// The machine.
#[derive(Clone, Debug)]
pub struct Machine {
    /// Size of a huge page, and so of a block.
    pub huge: PageSize,
    /// Why nothing at all can be lifted.
    pub refused: Option<Reason>,
    /// `shmem_enabled` is `never`.
    pub never: bool,
    /// Why nothing is filled: the kernel would fill holes that userfaultfd watches.
    pub no_fill: Option<Reason>,
}

/// The user's choices.
#[derive(Clone, Copy, Debug, Default)]
pub struct Policy {
    /// The blocks with holes that are filled; empty blocks are left alone.
    pub fill: Fill,
    /// Most bytes that the lift adds, all together: holes that it fills, and swapped data that it reads back.
    pub most: Option<u64>,
}

/// One block to be lifted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// Number of the block in its segment.
    pub block: u64,
    /// Index of the mapping through which it is lifted.
    pub view: usize,
    /// Its contents.
    pub held: Held,
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
    /// Blocks that are left alone, by reason.
    pub refused: Vec<Refused>,
}

impl SegmentPlan {
    /// Bytes that the lift adds: holes that it fills, and swapped data that it reads back.
    pub fn adds(&self, huge: PageSize) -> u64 {
        self.work.iter().map(|work| work.held.adds(huge)).sum()
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
            (Reason::SwappedOut { swapped }, Reason::SwappedOut { swapped: more }) => {
                *swapped += more;
                true
            }
            (Reason::Forked { common }, Reason::Forked { common: more }) => {
                *common += more;
                true
            }
            (Reason::Busy { tries, seconds }, Reason::Busy { tries: more, seconds: same }) if seconds == same => {
                *tries = (*tries).max(*more);
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

/// Checks whether a lift takes a block with these contents, wherever it is mapped.
///
/// # Errors
/// Why the block is left alone.
pub fn refused_contents(held: Held, machine: &Machine, fill: Fill) -> Result<(), Reason> {
    let would_add = held.adds(machine.huge);
    let most = if fill == Fill::Half { machine.huge.bytes() / 2 } else { most_holes(machine.huge) };
    match &machine.no_fill {
        _ if held.guards > 0 => Err(Reason::Guarded),
        _ if held.common > 0 => Err(Reason::Forked { common: held.common }),
        Some(reason) if would_add > 0 => Err(reason.clone()),
        _ if fill == Fill::All => Ok(()),
        _ if held.swapped > 0 => Err(Reason::SwappedOut { swapped: held.swapped }),
        _ if would_add > most => Err(Reason::Holes { would_add }),
        _ => Ok(()),
    }
}

/// Bytes that may still be added.
struct Room<'a> {
    of_tmpfs: BTreeMap<(u32, u32), u64>,
    margins: &'a mut Margins<(u32, u32)>,
    most: Option<u64>,
    left: u64,
}

impl Room<'_> {
    /// Takes the bytes of memory that a block adds, and the bytes of its holes that its file system provides.
    fn take(&mut self, key: &SegmentKey, contents: &Contents, adds: u64, holes: u64) -> Result<(), Reason> {
        if adds > self.left {
            return Err(Reason::MostMemory { most: self.most.unwrap_or(u64::MAX) });
        }
        if let Some(room) = contents.room.filter(|_| holes > 0) {
            let left = self.of_tmpfs.entry(key.device).or_insert(room);
            self.margins.check(key.device, *left, holes).map_err(|kept| Reason::Quota { left: *left, kept })?;
            *left -= holes;
        }
        self.left -= adds;
        Ok(())
    }
}

/// Plans the lift of all segments.
pub fn plan(segments: &[Segment], machine: &Machine, policy: Policy) -> Plan {
    plan_within(segments, machine, policy, &mut Margins::default())
}

/// Plans one of several lifts. `margins` has the rooms of file systems as earlier ones found them.
pub fn plan_within(segments: &[Segment], machine: &Machine, policy: Policy, margins: &mut Margins<(u32, u32)>) -> Plan {
    let (most, left) = (policy.most, policy.most.unwrap_or(u64::MAX));
    let mut room = Room { of_tmpfs: BTreeMap::new(), margins, most, left };
    Plan { segments: segments.iter().map(|segment| plan_segment(segment, machine, policy, &mut room)).collect() }
}

fn plan_segment(segment: &Segment, machine: &Machine, policy: Policy, room: &mut Room) -> SegmentPlan {
    let mut planned = SegmentPlan { data: 0, huge: segment.huge(), work: Vec::new(), refused: Vec::new() };
    let contents = match &segment.contents {
        Ok(contents) => contents,
        Err(reason) => {
            planned.data = segment.huge();
            refuse(&mut planned.refused, reason.clone(), machine.huge.pages_for(segment.longest_mapping()), 0);
            return planned;
        }
    };
    planned.data = contents.data();
    for &(block, held) in &contents.blocks {
        let planned_work = place(segment, contents.length, machine, block).and_then(|place| {
            let Place { view, already: false } = place else { return Ok(None) };
            refused_contents(held, machine, policy.fill)?;
            room.take(&segment.key, contents, held.adds(machine.huge), held.holes(machine.huge))?;
            Ok(Some(Work { block, view, held }))
        });
        match planned_work {
            Ok(work) => planned.work.extend(work),
            Err(reason) => refuse(&mut planned.refused, reason, 1, held.data()),
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
    if segment.is_watched(&whole) {
        return Err(Reason::Watched);
    }
    let mut refusal = no_block;
    let mut found: Option<Place> = None;
    for index in segment.candidates(&whole) {
        match usable(&segment.views[index], segment.key.kind, machine, &whole) {
            Some(Ok(already)) if already || found.is_none() => found = Some(Place { view: index, already }),
            Some(Err(reason)) => refusal = reason,
            Some(Ok(_)) | None => {}
        }
    }
    found.ok_or(refusal)
}

/// The first mapping from number `from` on that is not gone and through which a block can be lifted.
pub(crate) fn next_view(segment: &Segment, machine: &Machine, block: u64, from: usize, gone: &[bool]) -> Option<usize> {
    let whole = offsets(block, machine.huge)?;
    let fits = |view: &View| matches!(usable(view, segment.key.kind, machine, &whole), Some(Ok(_)));
    let mut candidates = segment.candidates(&whole).skip_while(|index| *index < from);
    candidates.find(|index| !gone[*index] && fits(&segment.views[*index]))
}

/// Returns whether a block is huge already in a mapping, or why it cannot be huge; `None` if it is not mapped whole.
fn usable(view: &View, kind: SegmentKind, machine: &Machine, whole: &Range<u64>) -> Option<Result<bool, Reason>> {
    let addresses = view.addresses(whole)?;
    let bytes = view.out_of_step(machine.huge);
    Some(match &view.refused {
        _ if bytes != 0 => Err(Reason::OutOfStep { bytes, size: machine.huge, kind, never: machine.never }),
        _ if view.huge_parts.covers(addresses) => Ok(true),
        Some(reason) => Err(reason.clone()),
        None => Ok(false),
    })
}
