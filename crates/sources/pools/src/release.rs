//! Makes pools smaller.

use crate::change::{Change, check_node, persistent, pool_of, set_size, total};
use crate::request::{RequestParts, parts};
use crate::{PoolError, RecordedPages, RequestError, Settings};
use address_space::PageSize;
use machine_facts::PoolCounts;
use serde::Serialize;
use std::str::FromStr;

/// The number of pages to release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    /// This number of pages.
    Pages(u64),
    /// All that are free, promised to nobody, and in no record.
    All,
}

/// `SIZE:COUNT[@NODE]`; COUNT may be `all`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReleaseRequest {
    /// Page size.
    pub size: PageSize,
    /// Number of pages.
    pub amount: Amount,
    /// The node; `None`: wherever pages are free.
    pub node: Option<u32>,
}

impl FromStr for ReleaseRequest {
    type Err = RequestError;

    fn from_str(text: &str) -> Result<Self, RequestError> {
        let RequestParts { size, count, node } = parts(text)?;
        let amount = match count {
            "all" => Amount::All,
            count => Amount::Pages(
                count.parse().map_err(|_| RequestError::new(text, "found neither a number of pages nor `all`"))?,
            ),
        };
        Ok(Self { size, amount, node })
    }
}

/// The released pages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Released {
    /// Page size.
    pub size: PageSize,
    /// The requested node.
    pub node: Option<u32>,
    /// Pages that are the system's again.
    pub pages: u64,
    /// Requested pages that stay: they are in use, promised, or not there.
    pub kept: u64,
    /// Free pages that [`Amount::All`] leaves to reservations with a record.
    pub recorded: Vec<KeptFor>,
    /// Pages that are in the pool now, on the requested node if there is one.
    pub left: u64,
}

/// Free pages that stay in a pool for a reservation with a record, or for a process that holds them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct KeptFor {
    /// The name of the record.
    pub name: String,
    /// The process that releases the pages when it ends; `None` if a user has named the reservation.
    pub holder: Option<i32>,
    /// Number of pages.
    pub pages: u64,
}

/// Gives free pages that are promised to nobody back to the system. [`Amount::All`] leaves as many free pages as `records`
/// name: the pool does not show whether the pages in use are recorded ones.
///
/// # Errors
/// [`PoolError`]: no such pool or node, or the kernel refuses.
pub fn release(
    settings: &impl Settings,
    records: &[RecordedPages],
    request: &ReleaseRequest,
) -> Result<Released, PoolError> {
    let ReleaseRequest { size, amount, node } = *request;
    let before = pool_of(settings, size)?;
    check_node(&before, node)?;
    let (asked, recorded) = match amount {
        Amount::Pages(pages) => {
            // The kernel keeps promised pages, whichever node they may come from.
            let free = before.unpromised().min(free_on(&before, node));
            shrink(settings, &before, node, pages.min(free))?;
            (pages, Vec::new())
        }
        Amount::All => release_unrecorded(settings, records, &before, node)?,
    };
    let left = total(&pool_of(settings, size)?, node);
    let pages = total(&before, node).saturating_sub(left);
    Ok(Released { size, node, pages, kept: asked.saturating_sub(pages), recorded, left })
}

/// Releases the free pages that are not recorded, node by node, since the kernel would take pages from all nodes in turn.
/// Returns the number of pages to be released, and the free pages that stay for each record.
fn release_unrecorded(
    settings: &impl Settings,
    records: &[RecordedPages],
    before: &PoolCounts,
    node: Option<u32>,
) -> Result<(u64, Vec<KeptFor>), PoolError> {
    let nodes: Vec<_> = match (node, before.nodes.as_slice()) {
        (None, nodes @ [_, ..]) => nodes.iter().map(|pool| Some(pool.node)).collect(),
        (node, _) => vec![node],
    };
    let mut parts: Vec<_> = nodes.into_iter().map(|node| (node, free_on(before, node))).collect();
    let recorded = set_aside(records, before.size, &mut parts);
    // The recorded pages may be others than the promised ones.
    let unpromised = before.unpromised().saturating_sub(recorded.iter().map(|kept| kept.pages).sum());
    let all = parts.iter().map(|part| part.1).sum::<u64>().min(unpromised);
    let mut left = all;
    for (node, free) in parts {
        let pages = free.min(left);
        shrink(settings, before, node, pages)?;
        left -= pages;
    }
    Ok((all, recorded))
}

/// Subtracts the recorded pages of a size from the free pages of each node. Returns the subtracted pages by record.
fn set_aside(records: &[RecordedPages], size: PageSize, parts: &mut [(Option<u32>, u64)]) -> Vec<KeptFor> {
    let kept_for =
        |RecordedPages { name, holder, .. }: &RecordedPages| KeptFor { name: name.clone(), holder: *holder, pages: 0 };
    let mut kept: Vec<_> = records.iter().map(kept_for).collect();
    let changes = records.iter().zip(0..).flat_map(|(record, index)| record.changes.iter().map(move |c| (index, c)));
    let mut changes: Vec<(usize, &Change)> = changes.filter(|(_, change)| change.size == size).collect();
    // Pages of any node come last: they can be where others have left some.
    changes.sort_by_key(|(_, change)| change.node.is_none());
    for (index, change) in changes {
        let mut pages = change.pages;
        let is_same = |node: Option<u32>| change.node.is_none() || node.is_none() || node == change.node;
        for (_, free) in parts.iter_mut().filter(|(node, _)| is_same(*node)) {
            let aside = pages.min(*free);
            (pages, *free) = (pages - aside, *free - aside);
            kept[index].pages += aside;
        }
    }
    kept.retain(|kept| kept.pages > 0);
    kept
}

/// The free pages of a pool, or of its part on a node.
fn free_on(pool: &PoolCounts, node: Option<u32>) -> u64 {
    node.map_or(pool.free, |node| pool.on_node(node).map_or(0, |pool| pool.free))
}

/// Makes a pool smaller by this number of pages at most: surplus pages leave by themselves.
fn shrink(settings: &impl Settings, pool: &PoolCounts, node: Option<u32>, pages: u64) -> Result<(), PoolError> {
    let size = persistent(pool, node);
    match pages.min(size) {
        0 => Ok(()),
        pages => set_size(settings, pool.size, node, size - pages),
    }
}
