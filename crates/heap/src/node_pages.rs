//! Free pool pages by NUMA node, and how a share of them is taken.

use address_space::PageSize;
use heap_contract::{MOST_NODES, NodePages};
use std::fs;
use std::path::Path;

/// Free pages of one size on each node, below `/sys/devices/system/node`; empty where the kernel tells none.
pub fn free_pages_by_node(nodes: &Path, size: PageSize) -> Vec<NodePages> {
    let entries = fs::read_dir(nodes).into_iter().flatten().flatten();
    let mut found: Vec<NodePages> = entries
        .filter_map(|entry| {
            let node = entry.file_name().to_str()?.strip_prefix("node")?.parse().ok()?;
            let file = entry.path().join(format!("hugepages/hugepages-{}kB/free_hugepages", size.kib()));
            let pages = fs::read_to_string(file).ok()?.trim().parse().ok()?;
            Some(NodePages { node, pages })
        })
        .collect();
    found.sort_by_key(|node| node.node);
    found.truncate(MOST_NODES);
    found
}

/// Takes so many pages from the nodes in proportion to what is free there; all from node 0 where nothing is told.
pub fn share_by_node(free: &[NodePages], wanted: u64) -> [NodePages; MOST_NODES] {
    let mut shares = [NodePages::default(); MOST_NODES];
    let total: u64 = free.iter().map(|node| node.pages).sum();
    if total == 0 {
        shares[0] = NodePages { node: 0, pages: wanted };
        return shares;
    }
    let mut left = wanted;
    for (share, node) in shares.iter_mut().zip(free) {
        let part = u128::from(wanted) * u128::from(node.pages) / u128::from(total);
        *share = NodePages { node: node.node, pages: (part as u64).min(left) };
        left -= share.pages;
    }
    // What rounding left over, and what is wanted beyond all that is free, goes where most is free.
    if let Some(most) = (0..free.len()).max_by_key(|&index| free[index].pages) {
        shares[most].pages += left;
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_taken_where_they_are() {
        let free = [NodePages { node: 0, pages: 30 }, NodePages { node: 2, pages: 10 }];
        let shares = share_by_node(&free, 21);
        assert_eq!((shares[0].pages, shares[1].pages, shares[1].node), (16, 5, 2));
        assert_eq!(share_by_node(&free, 100).iter().map(|node| node.pages).sum::<u64>(), 100);
        assert_eq!(share_by_node(&[], 7)[0], NodePages { node: 0, pages: 7 });
    }

    #[test]
    fn nodes_are_read_from_their_folders() {
        let root = tempfile::tempdir().unwrap();
        for (node, pages) in [("node1", "5\n"), ("node0", "3\n")] {
            let folder = root.path().join(node).join("hugepages/hugepages-2048kB");
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("free_hugepages"), pages).unwrap();
        }
        fs::create_dir_all(root.path().join("power")).unwrap();
        let size = PageSize::new(2048 << 10).unwrap();
        let found: Vec<_> = free_pages_by_node(root.path(), size).iter().map(|n| (n.node, n.pages)).collect();
        assert_eq!(found, [(0, 3), (1, 5)]);
    }
}
