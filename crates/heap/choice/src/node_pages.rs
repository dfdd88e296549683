//! Free pool pages by NUMA node, from the files of `/sys`.

use address_space::PageSize;
use heap_abi::{MOST_NODES, NodePages};
use std::fs;
use std::path::Path;

/// Free pages of one size on each node, below `/sys/devices/system/node`; none where the kernel tells none.
pub fn free_pages_by_node(nodes: &Path, size: PageSize) -> [NodePages; MOST_NODES] {
    let online = fs::read_to_string(nodes.join("online")).unwrap_or_default();
    heap_abi::free_pages_by_node(&online, |node| {
        let file = nodes.join(format!("node{node}/hugepages/hugepages-{}kB/free_hugepages", size.kib()));
        fs::read_to_string(file).ok()?.trim().parse().ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_read_from_their_folders() {
        let root = tempfile::tempdir().unwrap();
        for (node, pages) in [("node1", "5\n"), ("node0", "3\n")] {
            let folder = root.path().join(node).join("hugepages/hugepages-2048kB");
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("free_hugepages"), pages).unwrap();
        }
        let size = PageSize::new(2048 << 10).unwrap();
        let found = || free_pages_by_node(root.path(), size).map(|node| (node.node, node.pages));
        assert_eq!(found(), [(0, 0); MOST_NODES], "without a list of nodes");
        fs::write(root.path().join("online"), "0-2\n").unwrap();
        assert_eq!(found()[..3], [(0, 3), (1, 5), (0, 0)]);
    }
}
