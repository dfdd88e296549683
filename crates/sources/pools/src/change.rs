//! The sizes of pools, changed by differences, so that simultaneous changes by others stay.

use crate::{PoolError, PoolRequest, Settings};
use address_space::PageSize;
use machine_facts::{PoolCounts, pool_counts, pool_directory};
use serde::Serialize;

/// The growth of a pool on one node, or in all on a machine without nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Change {
    /// Page size.
    pub size: PageSize,
    /// The node.
    pub node: Option<u32>,
    /// Pages by which the persistent pool was enlarged. They include surplus pages that the kernel has made persistent
    /// on the way.
    pub pages: u64,
}

impl Change {
    /// The change that reserves the requested pages.
    pub(crate) const fn of(request: &PoolRequest) -> Self {
        Self { size: request.size, node: request.node, pages: request.pages }
    }
}

/// The outcome for pages that were given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct GivenBack {
    /// The change that was taken back.
    pub change: Change,
    /// Pages that are the system's again. The others are in use, and follow when they are freed.
    pub freed: u64,
}

/// The counts of one pool.
///
/// # Errors
/// [`PoolError::NoPool`].
pub(crate) fn pool_of(settings: &impl Settings, size: PageSize) -> Result<PoolCounts, PoolError> {
    let pools = pool_counts(settings);
    let found = pools.iter().map(|pool| pool.size).collect();
    pools.into_iter().find(|pool| pool.size == size).ok_or(PoolError::NoPool { size, found })
}

/// Checks that the machine has the node.
pub(crate) fn check_node(pool: &PoolCounts, node: Option<u32>) -> Result<(), PoolError> {
    match node {
        Some(node) if pool.on_node(node).is_none() => {
            Err(PoolError::NoNode { node, found: pool.nodes.iter().map(|pool| pool.node).collect() })
        }
        _ => Ok(()),
    }
}

/// All pages of a pool, or of its part on a node.
pub(crate) fn total(pool: &PoolCounts, node: Option<u32>) -> u64 {
    node.map_or(pool.total, |node| pool.on_node(node).map_or(0, |pool| pool.total))
}

/// The pages that stay in a pool, or in its part on a node.
pub(crate) fn persistent(pool: &PoolCounts, node: Option<u32>) -> u64 {
    node.map_or(pool.persistent(), |node| pool.on_node(node).map_or(0, |pool| pool.persistent()))
}

/// Sets the number of persistent pages, of the whole machine or of a node. The kernel makes surplus pages persistent
/// before it allocates any, frees unused pages, and makes the rest surplus (`set_max_huge_pages` in mm/hugetlb.c).
pub(crate) fn set_size(
    settings: &impl Settings,
    size: PageSize,
    node: Option<u32>,
    pages: u64,
) -> Result<(), PoolError> {
    set(settings, format!("{}/nr_hugepages", pool_directory(size, node)), pages)
}

/// Writes a number.
pub(crate) fn set(settings: &impl Settings, path: String, value: u64) -> Result<(), PoolError> {
    settings.set(&path, &value.to_string()).map_err(|error| PoolError::Refused { path, error })
}

/// The growth of the pool since `before`, node by node.
pub(crate) fn changes_since(before: &PoolCounts, now: &PoolCounts) -> Vec<Change> {
    let nodes: Vec<_> = match now.nodes.as_slice() {
        [] => vec![None],
        nodes => nodes.iter().map(|pool| Some(pool.node)).collect(),
    };
    let change =
        |node| Change { size: now.size, node, pages: persistent(now, node).saturating_sub(persistent(before, node)) };
    nodes.into_iter().map(change).filter(|change| change.pages > 0).collect()
}

/// Removes the pages that `request` names from `changes`, to give them back before the others.
pub fn part_of(changes: &mut [Change], request: &PoolRequest) -> Vec<Change> {
    let mut left = request.pages;
    let mut part = Vec::new();
    let is_meant = |change: &Change| {
        change.size == request.size && (request.node.is_none() || change.node.is_none() || change.node == request.node)
    };
    for change in changes.iter_mut().filter(|change| is_meant(change)) {
        let pages = change.pages.min(left);
        (left, change.pages) = (left - pages, change.pages - pages);
        part.extend((pages > 0).then_some(Change { pages, ..*change }));
    }
    part
}

/// Shrinks each pool by the pages that were added. Pages in use become surplus: the kernel takes them back when they
/// are freed.
///
/// # Errors
/// The first refusal, of which the pool keeps its size; the other changes are reverted all the same.
pub fn give_back(settings: &impl Settings, changes: &[Change]) -> Result<Vec<GivenBack>, PoolError> {
    let (mut given, mut failed) = (Vec::new(), None);
    for change in changes.iter().rev() {
        match give_back_one(settings, *change) {
            Ok(one) => given.push(one),
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    failed.map_or(Ok(given), Err)
}

fn give_back_one(settings: &impl Settings, change: Change) -> Result<GivenBack, PoolError> {
    let before = pool_of(settings, change.size)?;
    check_node(&before, change.node)?;
    let found = persistent(&before, change.node);
    // A count that cannot be read is 0, and a size of 0 would take the pages of others.
    if found > 0 {
        set_size(settings, change.size, change.node, found.saturating_sub(change.pages))?;
    }
    // The pages have gone back, also if the counts cannot be read now: a caller that tries again would take others' pages.
    let counted = pool_of(settings, change.size).ok().filter(|after| check_node(after, change.node).is_ok());
    let freed = counted.map_or(0, |after| total(&before, change.node).saturating_sub(total(&after, change.node)));
    Ok(GivenBack { change, freed })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_taken_from_where_it_was_added() {
        let size: PageSize = "2M".parse().unwrap();
        let change = |node, pages| Change { size, node: Some(node), pages };
        let mut changes = [change(0, 3), change(1, 4)];
        let mut part = |text: &str| part_of(&mut changes, &text.parse().unwrap());
        assert_eq!(part("2M:2@1"), [change(1, 2)]);
        assert_eq!(part("2M:4"), [change(0, 3), change(1, 1)]);
        assert_eq!(part("2M:4@1"), [change(1, 1)]);
        assert!(part("2M:1").is_empty() && part("1G:1").is_empty());
        let mut without_nodes = [Change { size, node: None, pages: 2 }];
        assert_eq!(part_of(&mut without_nodes, &"2M:1@0".parse().unwrap()).len(), 1);
        assert_eq!(without_nodes[0].pages, 1);
    }
}
