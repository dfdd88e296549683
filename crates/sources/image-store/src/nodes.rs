//! Copies for one NUMA node: the check that the node has room for a copy, and that all its pages are on that node.

use crate::coverage::runs;
use crate::recipe::Recipe;
use crate::{FileSystem, Image, StoreError};
use address_space::PageSize;
use linux::file_mapping::FileMapping;
use linux::nodes::{nodes_of_pages, prefer_in_this_thread};
use linux::pages::base_page;
use linux::watch::with_same_limit;
use machine_facts::NumaFacts;
use machine_facts::{System, numa_facts};
use std::collections::BTreeMap;
use std::fs::File;
use std::io;

impl Image {
    /// The bytes of the image's mappable pages on each NUMA node, ascending, as the kernel reports them now.
    ///
    /// # Errors
    /// [`StoreError::Io`], also on a kernel without NUMA.
    pub fn bytes_on_nodes(&self) -> Result<BTreeMap<u32, u64>, StoreError> {
        bytes_on_nodes(self.file(), self.mappable_pages(), self.layout().page_size())
    }
}

/// Refuses a copy for which the node has too little, before anything is written.
pub(crate) fn check_room(node: u32, kind: FileSystem, size: PageSize, needed: u64) -> Result<(), StoreError> {
    let facts = numa_facts(&System, "/proc/thread-self", &[size]);
    room(facts.as_ref(), node, kind, size, needed)
}

fn room(facts: Option<&NumaFacts>, node: u32, kind: FileSystem, size: PageSize, needed: u64) -> Result<(), StoreError> {
    let allowed = facts.map(|facts| facts.allowed.clone()).unwrap_or_default();
    let found = facts.and_then(|facts| facts.nodes.iter().find(|found| found.node == node));
    let Some(found) = found.filter(|_| allowed.contains(node)) else {
        return Err(StoreError::NodeForbidden { node, allowed });
    };
    let pages = || found.pools.iter().filter(|(other, _)| *other == size).map(|(_, free)| free * size.bytes()).sum();
    let (free, what, fix) = match kind {
        FileSystem::Tmpfs => (found.memory, "of memory free", "free memory on that node".to_owned()),
        FileSystem::Hugetlbfs => {
            let fix = format!("pagelift pool reserve {}:{}@{node}", size.word(), size.pages_for(needed));
            (pages(), "in free pages of the pool", fix)
        }
    };
    if needed <= free { Ok(()) } else { Err(StoreError::NodeTooSmall { node, needed, free, what, fix }) }
}

/// Fills a file in a thread that takes memory of one node, and checks that all pages of the file are there. The
/// thread's policy applies to pages of tmpfs and hugetlbfs. A policy for a mapping of hugetlbfs would have no effect
/// (`hugetlb_vm_ops` in mm/hugetlb.c has no `set_policy`).
pub(crate) fn filled_on(
    node: u32,
    recipe: &Recipe,
    size: PageSize,
    fill: impl FnOnce() -> Result<File, StoreError> + Send,
) -> Result<File, StoreError> {
    let filled = || {
        prefer_in_this_thread(node)
            .map_err(|error| StoreError::io(format!("preferring memory of node {node}"), error))?;
        fill()
    };
    let filled = with_same_limit(filled);
    let ended = std::thread::scope(|scope| scope.spawn(filled).join());
    let file = ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
    let due = recipe.pages().count() as u64 * size.bytes();
    let there = bytes_on_nodes(&file, recipe.pages(), size)?.remove(&node).unwrap_or(0);
    if there == due { Ok(file) } else { Err(StoreError::OnOtherNodes { node, elsewhere: due - there.min(due) }) }
}

/// Returns the bytes on each node, for some huge pages of a file.
fn bytes_on_nodes(
    file: &File,
    pages: impl Iterator<Item = u64>,
    size: PageSize,
) -> Result<BTreeMap<u32, u64>, StoreError> {
    let explain = |error: io::Error| StoreError::io("reading the nodes of an image", error);
    let mut found = BTreeMap::new();
    for (offset, length) in runs(pages, size) {
        let mapping = FileMapping::readable(file, offset, length, size).map_err(explain)?;
        // Before Linux 5.14 pages are made present by a lock, which ends with the mapping.
        mapping.populate().or_else(|_| mapping.lock_part(0, length)).map_err(explain)?;
        for node in nodes_of_pages(mapping.range(), base_page()).map_err(explain)?.into_iter().flatten() {
            *found.entry(node).or_default() += base_page().bytes();
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use machine_facts::NodeFacts;

    #[test]
    fn a_node_without_room_is_named_with_what_it_lacks() {
        let size = PageSize::new(2 << 20).unwrap();
        let node = |node, pages, memory| NodeFacts { node, pools: vec![(size, pages)], memory };
        let facts = NumaFacts {
            nodes: vec![node(0, 3, 64 << 20), node(1, 9, 4 << 20)],
            allowed: [0, 1].into_iter().collect(),
            ..NumaFacts::default()
        };
        let said = |node, kind| room(Some(&facts), node, kind, size, 8 << 20).map_err(|error| error.to_string());
        assert_eq!(said(0, FileSystem::Tmpfs), Ok(()));
        assert_eq!(said(1, FileSystem::Hugetlbfs), Ok(()));
        let little = |node: u32| format!("node {node} has too little memory for its copy: needed 8.0 MiB, found");
        let memory = format!("{} 4.0 MiB of memory free; fix: free memory on that node", little(1));
        let reserve = "pagelift pool reserve 2M:4@0";
        let pages = format!("{} 6.0 MiB in free pages of the pool; fix: {reserve}", little(0));
        assert_eq!(said(1, FileSystem::Tmpfs), Err(memory));
        assert_eq!(said(0, FileSystem::Hugetlbfs), Err(pages));
        let none =
            "no copy can be made for node 2: found nodes 0, 1 to take memory from; needed: a cpuset with that node";
        assert_eq!(said(2, FileSystem::Tmpfs), Err(none.to_owned()));
    }
}
