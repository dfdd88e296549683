//! The NUMA nodes for the pages of a lift.

use crate::reason::Reason;
use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::String;
use machine_facts::{HugePool, MachineFacts, NodeFacts, Nodes, NumaFacts};
use options::Numa;
use serde::Serialize;

/// The kernel's choice among nodes (set_mempolicy(2)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Preference {
    /// These nodes and no others (`MPOL_BIND`).
    Bind,
    /// These nodes in turn; other nodes if they have no memory (`MPOL_INTERLEAVE`).
    Interleave,
}

/// A memory policy for the pages of a lift.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Placement {
    /// The kernel's choice.
    pub preference: Preference,
    /// The nodes; never none.
    pub nodes: Nodes,
}

impl Placement {
    /// The kernel's number of the mode (`linux/mempolicy.h`).
    pub const fn mode(&self) -> u64 {
        match self.preference {
            Preference::Bind => 2,
            Preference::Interleave => 3,
        }
    }
}

/// The nodes for the pages of a lift.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Placed {
    /// The policy of new memory; `None`: the policy of the thread that allocates it.
    pub placement: Option<Placement>,
    /// The nodes from which alone pages may come.
    pub nodes: Nodes,
}

/// Chooses the nodes for the pages of a lift; `None` on a machine with one node.
pub(crate) fn place(machine: &MachineFacts, numa: Numa) -> Result<Option<Placed>, Reason> {
    let Some(facts) = &machine.numa else {
        return match numa {
            Numa::Node(node) if node != 0 => Err(Reason::NodeForbidden { node, allowed: Nodes::from_iter([0]) }),
            _ => Ok(None),
        };
    };
    let nodes = nodes_for(facts, numa)?;
    let with = |preference| Some(Placement { preference, nodes: nodes.clone() });
    let placement = match numa {
        Numa::Node(_) | Numa::Local => with(Preference::Bind),
        Numa::Interleave => with(Preference::Interleave),
        Numa::Own => None,
    };
    Ok(Some(Placed { placement, nodes }))
}

/// The available pages of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolOnNodes {
    /// Pages that are available on the chosen nodes.
    pub here: u64,
    /// Pages that are available only on other nodes.
    pub elsewhere: u64,
}

/// Returns the available pages of a pool, divided by the nodes.
pub fn pool_on(machine: &MachineFacts, pool: &HugePool, nodes: &Nodes) -> PoolOnNodes {
    let free = |node: &NodeFacts| node.pools.iter().filter(|(size, _)| *size == pool.size).map(|(_, free)| free).sum();
    let (mut here, mut all) = (0u64, 0u64);
    for node in machine.numa.iter().flat_map(|facts| &facts.nodes) {
        let pages: u64 = free(node);
        all += pages;
        here += if nodes.contains(node.node) { pages } else { 0 };
    }
    // Pages beyond the free ones are surplus pages, which the kernel may allocate on any node.
    let here = pool.available.min(here + pool.available.saturating_sub(all));
    PoolOnNodes { here, elsewhere: pool.available - here }
}

/// Returns the available memory on the nodes, and the name of that bound; `None` if other bounds are tighter.
pub(crate) fn memory_on(machine: &MachineFacts, nodes: &Nodes) -> Option<(u64, String)> {
    let facts = machine.numa.as_ref()?;
    let memory: u64 = facts.nodes.iter().filter(|node| nodes.contains(node.node)).map(|node| node.memory).sum();
    (memory < machine.memory_available).then(|| (memory, format!("available memory of {nodes}")))
}

/// The nodes from which alone the pages of a lift with `numa` may come.
///
/// # Errors
/// [`Reason::NodeForbidden`] and [`Reason::NoLocalNode`].
pub fn nodes_for(facts: &NumaFacts, numa: Numa) -> Result<Nodes, Reason> {
    let only = |node: u32| match facts.allowed.contains(node) {
        true => Ok(Nodes::from_iter([node])),
        false => Err(Reason::NodeForbidden { node, allowed: facts.allowed.clone() }),
    };
    match numa {
        Numa::Node(node) => only(node),
        Numa::Local => only(facts.running_on.ok_or(Reason::NoLocalNode)?),
        Numa::Interleave => Ok(facts.allowed.clone()),
        Numa::Own => Ok(facts.confinement()),
    }
}

/// The bound of memory of a plan.
pub(crate) fn memory_bound(machine: &MachineFacts, placed: Option<&Placed>) -> (u64, String) {
    let of_machine = || (machine.memory_available, machine.memory_bound.to_owned());
    placed.and_then(|placed| memory_on(machine, &placed.nodes)).unwrap_or_else(of_machine)
}

#[cfg(test)]
mod tests {
    use super::*;
    use address_space::PageSize;
    use alloc::string::ToString;
    use alloc::vec;
    use machine_facts::{ThpFacts, ThpMode};

    /// The facts of a machine with two pools of one page each.
    fn bare() -> MachineFacts {
        let size = |bytes: u64| PageSize::new(bytes).unwrap();
        let pool = |bytes: u64| HugePool { size: size(bytes), total: 1, available: 1 };
        MachineFacts {
            elf_machine: 62,
            base_page: size(1 << 12),
            pools: vec![pool(1 << 21), pool(1 << 30)],
            default_hugetlb: Some(size(1 << 30)),
            thp: Some(ThpFacts { size: size(1 << 21), mode: ThpMode::Madvise }),
            movable_hugetlb: true,
            collapse: true,
            refaults_huge: true,
            memory_available: 0,
            memory_bound: String::new(),
            max_mappings: 0,
            numa: None,
            pool_limits: Vec::new(),
        }
    }

    fn nodes(numbers: &[u32]) -> Nodes {
        numbers.iter().copied().collect()
    }

    fn size() -> PageSize {
        PageSize::new(2 << 20).unwrap()
    }

    fn machine(numa: Option<NumaFacts>) -> MachineFacts {
        MachineFacts { numa, memory_available: 900, memory_bound: "available memory".into(), ..bare() }
    }

    fn two_nodes(allowed: &[u32], bound: Option<&[u32]>) -> MachineFacts {
        let node = |node, free, memory| NodeFacts { node, pools: vec![(size(), free)], memory };
        let both = vec![node(0, 2, 400), node(1, 40, 700)];
        machine(Some(NumaFacts {
            nodes: both,
            allowed: nodes(allowed),
            bound: bound.map(nodes),
            running_on: Some(0),
            cpus: nodes(&[0, 1]),
        }))
    }

    #[test]
    fn a_set_of_nodes_is_shown_and_given_to_the_kernel() {
        let set = nodes(&[65, 0, 3, 3]);
        assert_eq!(set.to_string(), "nodes 0, 3, 65");
        assert_eq!(set.mask(), [0b1001, 0b10]);
        assert_eq!((nodes(&[7]).to_string().as_str(), nodes(&[]).mask()), ("node 7", vec![]));
        assert_eq!(set.within(&nodes(&[3, 4])), nodes(&[3]));
    }

    #[test]
    fn a_mask_has_as_many_words_as_its_last_node_needs() {
        let masks = [&[7][..], &[63], &[64]].map(|numbers| nodes(numbers).mask());
        assert_eq!(masks, [vec![1u64 << 7], vec![1 << 63], vec![0, 1]]);
    }

    #[test]
    fn one_node_needs_no_placement_and_has_no_second() {
        for numa in [Numa::Own, Numa::Local, Numa::Interleave, Numa::Node(0)] {
            assert_eq!(place(&machine(None), numa), Ok(None));
        }
        let forbidden = Reason::NodeForbidden { node: 1, allowed: nodes(&[0]) };
        assert_eq!(place(&machine(None), Numa::Node(1)), Err(forbidden));
    }

    #[test]
    fn a_wish_never_leaves_the_cpuset() {
        let bind = |list: &[u32]| Some(Placement { preference: Preference::Bind, nodes: nodes(list) });
        let both = two_nodes(&[0, 1], None);
        let placed = |machine: &MachineFacts, numa| place(machine, numa).unwrap().unwrap();
        assert_eq!(placed(&both, Numa::Node(1)), Placed { placement: bind(&[1]), nodes: nodes(&[1]) });
        assert_eq!(placed(&both, Numa::Local), Placed { placement: bind(&[0]), nodes: nodes(&[0]) });
        let turn = placed(&both, Numa::Interleave);
        assert_eq!((turn.placement.unwrap().mode(), turn.nodes), (3, nodes(&[0, 1])));
        let first = two_nodes(&[0], None);
        let forbidden = Reason::NodeForbidden { node: 1, allowed: nodes(&[0]) };
        assert_eq!(place(&first, Numa::Node(1)), Err(forbidden));
        assert_eq!(placed(&first, Numa::Interleave).nodes, nodes(&[0]));
    }

    #[test]
    fn the_programs_own_policy_and_cpuset_confine_it() {
        let own = |allowed: &[u32], bound: Option<&[u32]>| {
            let placed = place(&two_nodes(allowed, bound), Numa::Own).unwrap().unwrap();
            assert_eq!(placed.placement, None);
            placed.nodes
        };
        assert_eq!(own(&[0, 1], None), nodes(&[0, 1]));
        assert_eq!(own(&[1], None), nodes(&[1]));
        assert_eq!(own(&[0, 1], Some(&[1])), nodes(&[1]));
        assert_eq!(own(&[0], Some(&[1])), nodes(&[0]));
    }

    #[test]
    fn a_process_belongs_to_the_node_it_is_kept_to_else_to_the_one_it_runs_on() {
        let facts = |allowed: &[u32], bound: Option<&[u32]>, cpus: &[u32], running_on| {
            let numa = two_nodes(allowed, bound).numa.unwrap();
            NumaFacts { cpus: nodes(cpus), running_on, ..numa }
        };
        let home = |allowed: &[u32], bound: Option<&[u32]>, cpus: &[u32], running_on| {
            facts(allowed, bound, cpus, running_on).home(Numa::Own)
        };
        let both = [0, 1].as_slice();
        assert_eq!(home(both, None, both, Some(1)), Some(1));
        assert_eq!(home(both, None, &[0], Some(1)), Some(0));
        assert_eq!(home(both, Some(&[1]), &[0], Some(0)), Some(1));
        assert_eq!(home(&[0], Some(&[1]), &[1], Some(1)), Some(0));
        assert_eq!(home(both, None, &[], None), None);
        // A node whose memory the process may not use, on a machine with more nodes.
        assert_eq!(home(both, None, &[2, 3], Some(2)), None);
        let with = |numa| facts(&[0], None, both, Some(1)).home(numa);
        assert_eq!(with(Numa::Node(0)), Some(0));
        assert_eq!([Numa::Node(1), Numa::Local, Numa::Interleave].map(with), [None; 3]);
        assert_eq!(facts(both, None, both, Some(1)).home(Numa::Local), Some(1));
    }

    #[test]
    fn pages_of_other_nodes_are_not_available_but_known() {
        let machine = two_nodes(&[0, 1], None);
        let pool = |available| HugePool { size: size(), total: 42, available };
        let found = |pages, on: &[u32]| {
            let PoolOnNodes { here, elsewhere } = pool_on(&machine, &pool(pages), &nodes(on));
            (here, elsewhere)
        };
        assert_eq!(found(42, &[0]), (2, 40));
        assert_eq!(found(42, &[0, 1]), (42, 0));
        assert_eq!(found(47, &[0]), (7, 40));
        assert_eq!(found(1, &[0]), (1, 0));
    }

    #[test]
    fn memory_of_other_nodes_does_not_count() {
        let machine = two_nodes(&[0, 1], None);
        let bound = |list: &[u32]| memory_bound(&machine, Some(&Placed { placement: None, nodes: nodes(list) }));
        assert_eq!(bound(&[0]), (400, "available memory of node 0".into()));
        assert_eq!(bound(&[0, 1]), (900, "available memory".into()));
        assert_eq!(memory_bound(&machine, None), (900, "available memory".into()));
    }

    #[test]
    fn a_node_with_as_much_memory_as_the_machine_is_no_bound() {
        let machine = MachineFacts { memory_available: 400, ..two_nodes(&[0, 1], None) };
        let first = Placed { placement: None, nodes: nodes(&[0]) };
        assert_eq!(memory_bound(&machine, Some(&first)), (400, "available memory".into()));
    }
}
