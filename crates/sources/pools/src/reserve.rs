//! Enlarges pools.
//!
//! After a write to `nr_hugepages` the kernel allocates the whole pages that it finds, and does not report the rest
//! (`Documentation/admin-guide/mm/hugetlbpage.rst`): so memory is compacted first, the pool is read back, and missing
//! pages are tried again, at last node by node.

use crate::change::{Change, changes_since, check_node, give_back, part_of, persistent, pool_of, set_size, total};
use crate::settings::DROP_CACHES;
use crate::{Obstacle, PoolError, PoolRequest, Settings};
use address_space::PageSize;
use machine_facts::{NODES, PoolCounts, free_blocks, meminfo_bytes, node_memory, page_blocks};
use serde::Serialize;

/// Compacts the memory of all nodes.
const COMPACT: &str = "/proc/sys/vm/compact_memory";
/// Maximum number of attempts; those after the first that brings nothing are not made.
const ATTEMPTS: u32 = 5;
/// Share of all memory that stays available by default.
const SHARE_LEFT_ALONE: u64 = 16;

/// The meaning of the number in a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goal {
    /// The number of pages that are free and promised to nobody afterwards.
    Available,
    /// The number of pages that are added to the existing ones.
    Added,
    /// The number of pages by which the persistent pool is larger afterwards, with those that were added before. Surplus pages
    /// become persistent first: a reservation that is given back while its pages are in use, and then made again, takes none
    /// twice.
    Persistent,
}

/// Options of a reservation.
#[derive(Clone, Copy, Debug)]
pub struct ReserveOptions {
    /// The goal of a request.
    pub goal: Goal,
    /// Minimum of available memory that a reservation leaves, in bytes; for pages of a node also the node's share by
    /// its size.
    pub floor: u64,
    /// Drop caches first.
    pub drop_caches: bool,
    /// Undo everything if a request is not met in full.
    pub all_or_nothing: bool,
    /// Base page of the machine.
    pub base_page: PageSize,
}

/// The outcome of one request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ReserveOutcome {
    /// The request.
    pub request: PoolRequest,
    /// Pages that were free and promised to nobody before.
    pub available_before: u64,
    /// Pages that are free and promised to nobody now.
    pub available: u64,
    /// Pages of the request that were added before.
    pub held: u64,
    /// Pages that were to be added.
    pub wanted: u64,
    /// Pages that were added.
    pub added: u64,
    /// The pools that were enlarged; the input of [`give_back`].
    pub changes: Vec<Change>,
    /// The obstacles for the other pages.
    pub obstacles: Vec<Obstacle>,
    /// True if all changes were undone because a request was not met in full.
    pub undone: bool,
}

impl ReserveOutcome {
    /// True if the request was met in full.
    pub const fn is_met(&self) -> bool {
        self.added >= self.wanted && !self.undone
    }
}

/// The default of the memory that a reservation leaves available, in bytes.
pub fn usual_floor(settings: &impl Settings) -> u64 {
    let meminfo = settings.text("/proc/meminfo").unwrap_or_default();
    meminfo_bytes(&meminfo, "MemTotal").unwrap_or(0) / SHARE_LEFT_ALONE
}

/// Reserves the requested pages, request by request.
///
/// # Errors
/// [`PoolError`] if a request names a pool or node that does not exist; then nothing was changed.
pub fn reserve(
    settings: &impl Settings,
    requests: &[PoolRequest],
    options: &ReserveOptions,
) -> Result<Vec<ReserveOutcome>, PoolError> {
    reserve_beside(settings, &[], requests, options)
}

/// Like [`reserve`], but adds only pages that `held`, the pages added for these requests before, lacks.
pub(crate) fn reserve_beside(
    settings: &impl Settings,
    held: &[Change],
    requests: &[PoolRequest],
    options: &ReserveOptions,
) -> Result<Vec<ReserveOutcome>, PoolError> {
    for request in requests {
        check_node(&pool_of(settings, request.size)?, request.node)?;
    }
    if options.drop_caches
        && let Err(error) = settings.set(DROP_CACHES, "3")
    {
        return Err(PoolError::Refused { path: DROP_CACHES.to_owned(), error });
    }
    let mut outcomes: Vec<ReserveOutcome> = Vec::new();
    let mut held = held.to_vec();
    for request in &merged(requests) {
        let of_size = outcomes.iter().filter(|outcome| outcome.request.size == request.size);
        let claimed = of_size.map(|outcome| outcome.request.pages).sum();
        let held = part_of(&mut held, request).iter().map(|change| change.pages).sum();
        let outcome = reserve_one(settings, request, Known { claimed, held }, options)?;
        let is_met = outcome.is_met();
        outcomes.push(outcome);
        if !is_met && options.all_or_nothing {
            undo(settings, &mut outcomes)?;
            break;
        }
    }
    Ok(outcomes)
}

/// Adds up requests for the same pages; requests for a node come before those for any node, which count the rest.
fn merged(requests: &[PoolRequest]) -> Vec<PoolRequest> {
    let mut merged: Vec<PoolRequest> = Vec::new();
    for request in requests {
        match merged.iter_mut().find(|other| (other.size, other.node) == (request.size, request.node)) {
            Some(other) => other.pages = other.pages.saturating_add(request.pages),
            None => merged.push(*request),
        }
    }
    merged.sort_by_key(|request| request.node.is_none());
    merged
}

fn undo(settings: &impl Settings, outcomes: &mut [ReserveOutcome]) -> Result<(), PoolError> {
    let changes: Vec<_> = outcomes.iter().flat_map(|outcome| outcome.changes.clone()).collect();
    give_back(settings, &changes)?;
    for outcome in outcomes {
        outcome.undone = true;
        outcome.changes.clear();
    }
    Ok(())
}

/// The facts about a request before it is processed.
struct Known {
    /// Available pages that requests before it count on.
    claimed: u64,
    /// Pages that were added before.
    held: u64,
}

fn reserve_one(
    settings: &impl Settings,
    request: &PoolRequest,
    known: Known,
    options: &ReserveOptions,
) -> Result<ReserveOutcome, PoolError> {
    let before = pool_of(settings, request.size)?;
    let available_of = |pool: &PoolCounts| match request.node {
        Some(node) => pool.unpromised_on(node),
        None => pool.unpromised().saturating_sub(known.claimed),
    };
    let (held, available_before) = (known.held, available_of(&before));
    let wanted = match options.goal {
        Goal::Available => request.pages.saturating_sub(available_before),
        Goal::Added | Goal::Persistent => request.pages.saturating_sub(held),
    };
    let counted = Counted { node: request.node, persistent: options.goal == Goal::Persistent };
    let mut obstacles = Vec::new();
    // Surplus pages that become persistent take no memory.
    let there = counted.surplus_to_keep(&before).min(wanted);
    let aim = match there + above_floor(settings, request, wanted - there, options.floor, &mut obstacles) {
        // A request that cannot be met in full is not begun, since it would only push other programs out of memory.
        fits if fits < wanted && options.all_or_nothing => 0,
        fits => fits,
    };
    let mut enlarging = Enlarging { settings, request, counted, before: &before, aim, base_page: options.base_page };
    let refused = enlarging.run()?;
    let now = pool_of(settings, request.size)?;
    let added = counted.growth(&before, &now);
    if added < aim {
        match refused {
            Some(refused) => obstacles.push(refused),
            None if settings.is_interrupted() => obstacles.push(Obstacle::Interrupted),
            None => obstacles.extend(enlarging.fragmentation()),
        }
    }
    let (changes, available) = (changes_since(&before, &now), available_of(&now));
    let undone = false;
    Ok(ReserveOutcome {
        request: *request,
        available_before,
        available,
        held,
        wanted,
        added,
        changes,
        obstacles,
        undone,
    })
}

/// Which pages of a pool count towards a goal.
#[derive(Clone, Copy)]
struct Counted {
    /// Those of a node only.
    node: Option<u32>,
    /// Persistent ones only.
    persistent: bool,
}

impl Counted {
    fn pages(self, pool: &PoolCounts, node: Option<u32>) -> u64 {
        if self.persistent { persistent(pool, node) } else { total(pool, node) }
    }

    fn growth(self, before: &PoolCounts, now: &PoolCounts) -> u64 {
        self.pages(now, self.node).saturating_sub(self.pages(before, self.node))
    }

    /// Surplus pages that count once they are persistent.
    fn surplus_to_keep(self, pool: &PoolCounts) -> u64 {
        total(pool, self.node).saturating_sub(self.pages(pool, self.node))
    }
}

/// Returns the pages that may be taken without going below the floor, at most `wanted`: the machine's floor, and for
/// pages of a node also the node's share.
fn above_floor(
    settings: &impl Settings,
    request: &PoolRequest,
    wanted: u64,
    floor: u64,
    obstacles: &mut Vec<Obstacle>,
) -> u64 {
    let meminfo = settings.text("/proc/meminfo").unwrap_or_default();
    let available = meminfo_bytes(&meminfo, "MemAvailable").unwrap_or(0);
    let machine = Room { node: None, available, floor };
    let of_node = request.node.and_then(|node| {
        let memory = node_memory(settings).into_iter().find(|memory| memory.node == node)?;
        let all = u128::from(meminfo_bytes(&meminfo, "MemTotal").unwrap_or(0).max(1));
        let share = (u128::from(floor) * u128::from(memory.total) / all) as u64;
        Some(Room { node: Some(node), available: memory.available, floor: share })
    });
    let pages = |room: &Room| room.available.saturating_sub(room.floor) / request.size.bytes();
    let tightest = of_node.filter(|of_node| pages(of_node) < pages(&machine)).unwrap_or(machine);
    if pages(&tightest) < wanted {
        let Room { node, available, floor } = tightest;
        let wanted = wanted.saturating_mul(request.size.bytes());
        obstacles.push(Obstacle::Floor { node, available, floor, wanted });
    }
    wanted.min(pages(&tightest))
}

/// Available memory of the machine or a node, and the floor, in bytes.
struct Room {
    node: Option<u32>,
    available: u64,
    floor: u64,
}

/// One pool on its way to its size.
struct Enlarging<'a, S> {
    settings: &'a S,
    request: &'a PoolRequest,
    counted: Counted,
    before: &'a PoolCounts,
    /// Pages to be added.
    aim: u64,
    base_page: PageSize,
}

impl<S: Settings> Enlarging<'_, S> {
    /// Tries until all pages are there or no more are available. Returns the refusal if the kernel refuses the size.
    fn run(&mut self) -> Result<Option<Obstacle>, PoolError> {
        for _ in 0..ATTEMPTS {
            let left = self.left()?;
            if left == 0 || self.settings.is_interrupted() {
                return Ok(None);
            }
            self.compact(left);
            if let Some(refused) = self.add(self.request.node, left)? {
                return Ok(Some(refused));
            }
            if self.left()? == left {
                break;
            }
        }
        if self.request.node.is_none() && self.before.nodes.len() > 1 {
            return self.node_by_node();
        }
        Ok(None)
    }

    /// Pages that are still missing.
    fn left(&self) -> Result<u64, PoolError> {
        let now = pool_of(self.settings, self.request.size)?;
        Ok(self.aim.saturating_sub(self.counted.growth(self.before, &now)))
    }

    /// Requests this number of additional pages.
    fn add(&self, node: Option<u32>, pages: u64) -> Result<Option<Obstacle>, PoolError> {
        // The kernel makes surplus pages persistent first: a size that adds pages to all existing ones includes them.
        let now = self.counted.pages(&pool_of(self.settings, self.request.size)?, node);
        match set_size(self.settings, self.request.size, node, now + pages) {
            Ok(()) => Ok(None),
            Err(PoolError::Refused { path, error }) => Ok(Some(Obstacle::refused(path, &error))),
            Err(error) => Err(error),
        }
    }

    /// Requests the missing pages from each node, the one with most free memory first.
    fn node_by_node(&self) -> Result<Option<Obstacle>, PoolError> {
        let mut nodes = node_memory(self.settings);
        nodes.sort_by_key(|node| std::cmp::Reverse(node.free));
        for node in nodes {
            let left = self.left()?;
            if left == 0 || self.settings.is_interrupted() {
                break;
            }
            if let Some(refused) = self.add(Some(node.node), left)? {
                return Ok(Some(refused));
            }
        }
        Ok(None)
    }

    /// Compacts memory unless enough is in one piece. A failure is no error: the kernel also compacts on its own, only
    /// less.
    fn compact(&self, pages: u64) {
        let surplus = pool_of(self.settings, self.request.size).map(|now| self.counted.surplus_to_keep(&now));
        let pages = pages.saturating_sub(surplus.unwrap_or(0));
        if pages == 0 {
            return;
        }
        let nodes = free_blocks(self.settings);
        let of_interest = nodes.iter().filter(|node| self.request.node.is_none_or(|wanted| wanted == node.node));
        let at_once: Option<u64> = of_interest.map(|node| node.pages_of(self.request.size, self.base_page)).sum();
        if at_once.is_some_and(|at_once| at_once >= pages) {
            return;
        }
        let file = match self.request.node {
            Some(node) => format!("{NODES}/node{node}/compact"),
            None => COMPACT.to_owned(),
        };
        let _ = self.settings.set(&file, "1");
    }

    /// The present fragmentation of the nodes' memory.
    fn fragmentation(&self) -> Vec<Obstacle> {
        let blocks = page_blocks(self.settings);
        let nodes = free_blocks(self.settings);
        let of_interest = nodes.iter().filter(|free| self.request.node.is_none_or(|node| node == free.node));
        of_interest.map(|free| Obstacle::fragmented(free, &blocks, self.request.size, self.base_page)).collect()
    }
}

#[cfg(test)]
mod tests;
