//! Free pool pages by NUMA node, and the choice of a share. The launcher uses this, and so does the heap if it has no
//! launcher.

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

/// Returns how many `available` pages of a pool a process may take if it is confined to nodes with `here` of the `all`
/// free pages. Pages beyond the free ones are surplus pages, which the kernel may allocate on any node.
pub fn available_on(available: u64, here: u64, all: u64) -> u64 {
    available.min(here.saturating_add(available.saturating_sub(all)))
}

/// Distributes `wanted` pages over the nodes in proportion to their free pages; all to `home` if those are not known.
pub fn share_by_node(free: &[NodePages; MOST_NODES], wanted: u64, home: u32) -> [NodePages; MOST_NODES] {
    let mut shares = [NodePages::default(); MOST_NODES];
    let total = free.iter().fold(0u64, |sum, node| sum.saturating_add(node.pages));
    if total == 0 {
        shares[0] = NodePages { node: home, pages: wanted };
        return shares;
    }
    let mut left = wanted;
    for (share, node) in shares.iter_mut().zip(free) {
        let part = u128::from(wanted) * u128::from(node.pages) / u128::from(total);
        *share = NodePages { node: node.node, pages: (part as u64).min(left) };
        left -= share.pages;
    }
    // The remainder of the rounding, and the demand beyond all free pages, go to the node with most free pages.
    if let Some(most) = (0..free.len()).max_by_key(|&index| free[index].pages) {
        shares[most].pages += left;
    }
    shares
}

/// Distributes `wanted` pages evenly over the nodes, if each has free ones; the rest as [`share_by_node`] does.
pub fn share_evenly(free: &[NodePages; MOST_NODES], wanted: u64, home: u32) -> [NodePages; MOST_NODES] {
    let mut shares = free.map(|node| NodePages { node: node.node, pages: 0 });
    let mut left = wanted;
    loop {
        let with_room = shares.iter().zip(free).filter(|(share, node)| share.pages < node.pages).count() as u64;
        if left == 0 || with_room == 0 {
            break;
        }
        let part = left.div_ceil(with_room);
        for (share, node) in shares.iter_mut().zip(free) {
            let part = part.min(node.pages - share.pages).min(left);
            share.pages += part;
            left -= part;
        }
    }
    for (share, beyond) in shares.iter_mut().zip(share_by_node(free, left, home)) {
        *share = NodePages { node: beyond.node, pages: share.pages + beyond.pages };
    }
    shares
}

/// A set of nodes in the kernel's format (get_mempolicy(2)): bit N of the words is node N.
pub type NodeMask = [u64; MOST_NODE_NUMBERS as usize / 64];

/// The empty set.
pub const NO_NODES: NodeMask = [0; MOST_NODE_NUMBERS as usize / 64];

/// True if the set contains the node.
pub fn has_node(mask: &NodeMask, node: u32) -> bool {
    mask.get(node as usize / 64).is_some_and(|word| word >> (node % 64) & 1 == 1)
}

/// The first node of a set.
pub fn first_node(mask: &NodeMask) -> Option<u32> {
    (0..MOST_NODE_NUMBERS).find(|&node| has_node(mask, node))
}

/// The nodes from which a process may take memory: allowed by its cpuset and, if its memory policy binds it, by the
/// policy. If the cpuset has removed all nodes of the policy, the policy has no effect.
pub fn confinement(allowed: &NodeMask, mode: i32, policy: &NodeMask) -> NodeMask {
    /// `MPOL_BIND`, and the bits above the modes, which are flags (`linux/mempolicy.h`).
    const BIND: i32 = 2;
    const FLAGS: i32 = 0xe000;
    let mut both = *allowed;
    both.iter_mut().zip(policy).for_each(|(word, policy)| *word &= policy);
    if mode & !FLAGS == BIND && both != NO_NODES { both } else { *allowed }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_taken_where_they_are() {
        let free = free_pages_by_node("0-2\n", |node| [Some(30), None, Some(10)][node as usize]);
        let shares = share_by_node(&free, 21, 0);
        assert_eq!((shares[0].pages, shares[1].pages, shares[1].node), (16, 5, 2));
        assert_eq!(share_by_node(&free, 100, 0).iter().map(|node| node.pages).sum::<u64>(), 100);
        assert_eq!(share_by_node(&[NodePages::default(); MOST_NODES], 7, 3)[0], NodePages { node: 3, pages: 7 });
    }

    #[test]
    fn pages_are_taken_of_each_node_in_turn_where_that_is_asked_for() {
        extern crate std;
        use std::vec::Vec;
        let free = free_pages_by_node("0-2", |node| Some([30, 4, 10][node as usize]));
        let shares = |wanted| share_evenly(&free, wanted, 0)[..3].iter().map(|share| share.pages).collect::<Vec<_>>();
        assert_eq!(shares(9), [3, 3, 3]);
        assert_eq!(shares(21), [9, 4, 8]);
        assert_eq!(shares(44), [30, 4, 10]);
        assert_eq!(shares(48).iter().sum::<u64>(), 48);
        assert_eq!(share_evenly(&[NodePages::default(); MOST_NODES], 7, 1)[0], NodePages { node: 1, pages: 7 });
    }

    #[test]
    fn a_process_takes_no_pages_of_nodes_that_it_may_not_use() {
        let set = |nodes: &[u32]| {
            let mut mask = NO_NODES;
            nodes.iter().for_each(|&node| mask[node as usize / 64] |= 1u64 << (node % 64));
            mask
        };
        let of = |allowed: &[u32], mode, policy: &[u32]| confinement(&set(allowed), mode, &set(policy));
        assert_eq!(of(&[0, 1, 65], 0, &[]), set(&[0, 1, 65]));
        assert_eq!(of(&[0, 1, 65], 2, &[65]), set(&[65]));
        // MPOL_F_STATIC_NODES.
        assert_eq!(of(&[0, 1], 2 | 1 << 15, &[1]), set(&[1]));
        assert_eq!(of(&[0], 2, &[1]), set(&[0]));
        // Interleaved memory may come from other nodes if a node has none.
        assert_eq!(of(&[0, 1], 3, &[1]), set(&[0, 1]));
        assert_eq!((first_node(&set(&[65])), first_node(&NO_NODES)), (Some(65), None));
        assert!(!has_node(&set(&[0]), 5000));
        assert_eq!([available_on(42, 2, 42), available_on(47, 2, 42), available_on(1, 2, 42)], [2, 7, 1]);
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
