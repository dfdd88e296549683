//! Needed, available and missing pages of the pools: pure.

use crate::PoolRequest;
use address_space::PageSize;
use machine_facts::{PoolCounts, PoolPagesOnNode};
use serde::Serialize;

/// The pages of one size that something needs, against the pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PoolNeed {
    /// Page size.
    pub size: PageSize,
    /// Pages that are needed.
    pub pages: u64,
    /// Pages that are free and promised to nobody.
    pub available: u64,
    /// Surplus pages that the kernel may still allocate, if it can.
    pub headroom: u64,
    /// Pages that are not available, or are known to be on the wrong node.
    pub missing: u64,
    /// The share of each node, if the machine has more than one.
    pub nodes: Vec<NodeNeed>,
    /// False if the kernel has no pool of this size.
    pub has_pool: bool,
}

/// The share of one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct NodeNeed {
    /// Number of the node.
    pub node: u32,
    /// Pages that are needed there.
    pub pages: u64,
    /// Free pages there that are certainly promised to nobody.
    pub available: u64,
    /// Pages that are missing there.
    pub missing: u64,
}

impl PoolNeed {
    /// Requests for all pages, as after a boot.
    pub fn requests(&self) -> Vec<PoolRequest> {
        self.of_each_node(|node| node.pages, self.pages)
    }

    fn of_each_node(&self, pages_of: impl Fn(&NodeNeed) -> u64, all: u64) -> Vec<PoolRequest> {
        let request = |pages, node| PoolRequest { size: self.size, pages, node };
        let requests = match self.nodes.as_slice() {
            [] => vec![request(all, None)],
            nodes => nodes.iter().map(|node| request(pages_of(node), Some(node.node))).collect(),
        };
        requests.into_iter().filter(|request| request.pages > 0).collect()
    }
}

/// Compares the needed pages with the pools, smallest pages first. Pages without a node are spread evenly over `nodes`,
/// the nodes that the program may use, as the kernel spreads a pool: the node of the program is not known in advance.
pub fn needs_of(wanted: &[PoolRequest], pools: &[PoolCounts], nodes: &[u32]) -> Vec<PoolNeed> {
    let mut sizes: Vec<_> = wanted.iter().map(|request| request.size).collect();
    sizes.sort_unstable();
    sizes.dedup();
    let is_placed = wanted.iter().any(|request| request.node.is_some());
    sizes
        .into_iter()
        .map(|size| {
            let of_size: Vec<_> = wanted.iter().filter(|request| request.size == size).collect();
            let pool = pools.iter().find(|pool| pool.size == size);
            let pages = of_size.iter().map(|request| request.pages).sum();
            let available = pool.map_or(0, PoolCounts::unpromised);
            let nodes = if nodes.len() > 1 || is_placed { spread(&of_size, pool, nodes) } else { Vec::new() };
            let missing = match nodes.as_slice() {
                [] => u64::saturating_sub(pages, available),
                nodes => nodes.iter().map(|node| node.missing).sum(),
            };
            let headroom = pool.map_or(0, PoolCounts::headroom);
            PoolNeed { size, pages, available, headroom, missing, nodes, has_pool: pool.is_some() }
        })
        .collect()
}

/// Places pages that have no node yet: spread evenly over `nodes`, as the kernel spreads a pool.
pub fn spread_over(requests: &[PoolRequest], nodes: &[u32]) -> Vec<PoolRequest> {
    let share = |request: &PoolRequest, place: usize| {
        let (share, rest) = (request.pages / nodes.len() as u64, request.pages % nodes.len() as u64);
        share + u64::from((place as u64) < rest)
    };
    place(requests, nodes, share)
}

/// Places pages that have no node yet: all pages on each of `nodes`, for a program that takes them from one node which
/// is not known before.
pub fn on_each_of(requests: &[PoolRequest], nodes: &[u32]) -> Vec<PoolRequest> {
    place(requests, nodes, |request, _| request.pages)
}

fn place(requests: &[PoolRequest], nodes: &[u32], pages: impl Fn(&PoolRequest, usize) -> u64) -> Vec<PoolRequest> {
    let mut placed = Vec::new();
    for request in requests {
        if request.node.is_some() || nodes.is_empty() {
            placed.push(*request);
            continue;
        }
        let on =
            |(place, &node): (usize, &u32)| PoolRequest { pages: pages(request, place), node: Some(node), ..*request };
        placed.extend(nodes.iter().enumerate().map(on).filter(|request| request.pages > 0));
    }
    placed
}

/// Returns the pages of `held` that a program does not use; `used` are the pages that it uses. If it has taken pages of
/// one node in place of another's, only pages that are unused in all counts are returned.
pub fn unused(held: &[PoolRequest], used: &[PoolPagesOnNode]) -> Vec<PoolRequest> {
    let mut unused = Vec::new();
    let mut sizes: Vec<_> = held.iter().map(|request| request.size).collect();
    sizes.sort_unstable();
    sizes.dedup();
    for size in sizes {
        let used_on = |node: Option<u32>| -> u64 {
            let of_size = used.iter().filter(|used| used.size == size && node.is_none_or(|node| node == used.node));
            of_size.map(|used| used.pages).sum()
        };
        let of_size = || held.iter().filter(|request| request.size == size);
        let mut left = of_size().map(|request| request.pages).sum::<u64>().saturating_sub(used_on(None));
        let mut over: Vec<_> =
            of_size().map(|held| (held.pages.saturating_sub(used_on(held.node)), held.node)).collect();
        over.sort_by_key(|&(pages, _)| std::cmp::Reverse(pages));
        for (pages, node) in over {
            let pages = pages.min(left);
            left -= pages;
            unused.extend((pages > 0).then_some(PoolRequest { size, pages, node }));
        }
    }
    unused
}

fn spread(wanted: &[&PoolRequest], pool: Option<&PoolCounts>, allowed: &[u32]) -> Vec<NodeNeed> {
    let placed = wanted.iter().filter_map(|request| request.node);
    let mut nodes: Vec<u32> = placed.chain(allowed.iter().copied()).collect();
    nodes.sort_unstable();
    nodes.dedup();
    let anywhere: u64 = wanted.iter().filter(|request| request.node.is_none()).map(|request| request.pages).sum();
    let (share, rest) = (anywhere / allowed.len().max(1) as u64, anywhere % allowed.len().max(1) as u64);
    let need = |node: u32| {
        let place = allowed.iter().position(|&allowed| allowed == node);
        let even = place.map_or(0, |place| share + u64::from((place as u64) < rest));
        let own: u64 = wanted.iter().filter(|request| request.node == Some(node)).map(|request| request.pages).sum();
        let (pages, available) = (own + even, pool.map_or(0, |pool| pool.unpromised_on(node)));
        NodeNeed { node, pages, available, missing: pages.saturating_sub(available) }
    };
    nodes.into_iter().map(need).filter(|need| need.pages > 0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use machine_facts::NodePool;

    fn size(bytes: u64) -> PageSize {
        PageSize::new(bytes).unwrap()
    }

    fn pool(nodes: &[u64]) -> PoolCounts {
        let free = nodes.iter().sum();
        let node = |(node, &free): (usize, &u64)| NodePool { node: node as u32, total: free, free, surplus: 0 };
        let nodes = nodes.iter().enumerate().map(node).collect();
        let size = size(2 << 20);
        PoolCounts { size, total: free, free, reserved: 1, surplus: 0, overcommit: 5, demotes_to: None, nodes }
    }

    fn requests(texts: &[&str]) -> Vec<PoolRequest> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn texts(requests: &[PoolRequest]) -> Vec<String> {
        requests.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn one_node_needs_no_placing() {
        let needs = needs_of(&requests(&["2M:10", "2M:2", "1G:1"]), &[pool(&[5])], &[0]);
        let found: Vec<_> =
            needs.iter().map(|need| (need.pages, need.available, need.headroom, need.missing)).collect();
        assert_eq!(found, [(12, 4, 5, 8), (1, 0, 0, 1)]);
        assert_eq!(texts(&needs[0].requests()), ["2M:12"]);
        assert!(needs[0].has_pool && !needs[1].has_pool);
    }

    #[test]
    fn pages_are_spread_over_the_nodes_that_the_program_may_use() {
        let needs = needs_of(&requests(&["2M:9"]), &[pool(&[9, 2])], &[0, 1]);
        assert_eq!(texts(&needs[0].requests()), ["2M:5@0", "2M:4@1"]);
        assert_eq!(needs[0].nodes.iter().map(|node| node.missing).collect::<Vec<_>>(), [0, 3]);
        assert_eq!((needs[0].available, needs[0].missing), (10, 3));
        let kept_to_one = needs_of(&requests(&["2M:9"]), &[pool(&[9, 2])], &[1]);
        assert_eq!(texts(&kept_to_one[0].requests()), ["2M:9"]);
    }

    #[test]
    fn pages_are_placed_on_the_nodes_that_a_lift_takes_them_of() {
        let wanted = requests(&["2M:5", "2M:1@7"]);
        assert_eq!(texts(&spread_over(&wanted, &[1])), ["2M:5@1", "2M:1@7"]);
        assert_eq!(texts(&spread_over(&wanted, &[0, 2])), ["2M:3@0", "2M:2@2", "2M:1@7"]);
        assert_eq!(texts(&spread_over(&requests(&["2M:1"]), &[0, 2])), ["2M:1@0"]);
        assert_eq!(texts(&on_each_of(&wanted, &[0, 2])), ["2M:5@0", "2M:5@2", "2M:1@7"]);
        assert_eq!(texts(&spread_over(&wanted, &[])), ["2M:5", "2M:1@7"]);
        let needs = needs_of(&spread_over(&requests(&["2M:9"]), &[1]), &[pool(&[9, 2])], &[0, 1]);
        assert_eq!((texts(&needs[0].requests()), needs[0].missing), (vec!["2M:9@1".to_owned()], 8));
    }

    #[test]
    fn what_a_program_does_not_use_is_left_over() {
        let size = size(2 << 20);
        let over = |held: &[&str], used: &[(u32, u64)]| {
            let used: Vec<_> = used.iter().map(|&(node, pages)| PoolPagesOnNode { size, node, pages }).collect();
            texts(&unused(&requests(held), &used))
        };
        assert_eq!(over(&["2M:10"], &[(0, 7)]), ["2M:3"]);
        assert!(over(&["2M:10"], &[(0, 10)]).is_empty() && over(&["2M:10"], &[(0, 12)]).is_empty());
        // `--numa local`: all pages are on each node.
        assert_eq!(over(&["2M:5@0", "2M:5@1"], &[(1, 5)]), ["2M:5@0"]);
        assert_eq!(over(&["2M:5@0", "2M:5@1"], &[(0, 8)]), ["2M:2@1"]);
        assert_eq!(over(&["1G:1", "2M:2"], &[(0, 2)]), ["1G:1"]);
    }

    #[test]
    fn a_node_that_is_named_gets_its_pages() {
        let needs = needs_of(&requests(&["2M:3@1", "2M:2"]), &[pool(&[9, 9])], &[0]);
        assert_eq!(texts(&needs[0].requests()), ["2M:2@0", "2M:3@1"]);
    }
}
