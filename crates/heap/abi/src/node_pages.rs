//! Free pool pages by NUMA node, and how a share of them is taken. Both sides use this: the launcher, and the heap itself
//! where no launcher is.

use crate::{MOST_NODES, NodePages};
use address_space::PageSize;

/// Without a given size, the heap takes the available pages of the pool divided by this.
const DEFAULT_SHARE: u64 = 2;

/// Highest number of nodes for which a kernel is built (`CONFIG_NODES_SHIFT` is 10 at most).
const MOST_NODE_NUMBERS: u32 = 1024;

/// Number of pages to take from a pool: for `wanted` bytes, or else the usual share of the available pages.
pub fn pages_to_take(size: PageSize, available: u64, wanted: Option<u64>) -> u64 {
    wanted.map_or(available.div_ceil(DEFAULT_SHARE), |bytes| size.pages_for(bytes))
}

/// The nodes with free pages. `online` is the kernel's list of nodes, such as `0-1,4`
/// (`/sys/devices/system/node/online`), and `free` reads the number of free pages of one.
pub fn free_pages_by_node(online: &str, mut free: impl FnMut(u32) -> Option<u64>) -> [NodePages; MOST_NODES] {
    let mut nodes = [NodePages::default(); MOST_NODES];
    let mut places = nodes.iter_mut();
    for entry in online.trim().split(',') {
        let (first, last) = entry.split_once('-').unwrap_or((entry, entry));
        let (Ok(first), Ok(last)) = (first.parse::<u32>(), last.parse::<u32>()) else { continue };
        for node in first..last.saturating_add(1).min(MOST_NODE_NUMBERS) {
            let Some(pages) = free(node).filter(|&pages| pages > 0) else { continue };
            let Some(place) = places.next() else { return nodes };
            *place = NodePages { node, pages };
        }
    }
    nodes
}

/// Distributes `wanted` pages over the nodes in proportion to their free pages; all from node 0 if those are not known.
pub fn share_by_node(free: &[NodePages; MOST_NODES], wanted: u64) -> [NodePages; MOST_NODES] {
    let mut shares = [NodePages::default(); MOST_NODES];
    let total = free.iter().fold(0u64, |sum, node| sum.saturating_add(node.pages));
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
        let free = free_pages_by_node("0-2\n", |node| [Some(30), None, Some(10)][node as usize]);
        let shares = share_by_node(&free, 21);
        assert_eq!((shares[0].pages, shares[1].pages, shares[1].node), (16, 5, 2));
        assert_eq!(share_by_node(&free, 100).iter().map(|node| node.pages).sum::<u64>(), 100);
        assert_eq!(share_by_node(&[NodePages::default(); MOST_NODES], 7)[0], NodePages { node: 0, pages: 7 });
    }

    #[test]
    fn any_list_of_nodes_is_read_to_an_end() {
        let pages = |online: &str| free_pages_by_node(online, |node| Some(u64::from(node) + 1)).map(|node| node.pages);
        assert_eq!(pages("1,3-4")[..4], [2, 4, 5, 0]);
        // A node without free pages takes no place.
        let even = free_pages_by_node("0-3", |node| Some(u64::from(node) % 2));
        assert_eq!([even[0], even[1], even[2]].map(|node| (node.node, node.pages)), [(1, 1), (3, 1), (0, 0)]);
        assert_eq!(pages("0-4294967295"), core::array::from_fn(|index| index as u64 + 1));
        for text in ["", "x", "4-2", "-1", "1-", ",,"] {
            assert_eq!(pages(text), [0; MOST_NODES], "{text}");
        }
    }

    #[test]
    fn half_of_the_pool_is_taken_where_no_size_is_told() {
        let size = PageSize::new(2 << 20).unwrap();
        assert_eq!([pages_to_take(size, 7, None), pages_to_take(size, 0, None)], [4, 0]);
        assert_eq!(pages_to_take(size, 7, Some((64 << 20) + 1)), 33);
    }
}
