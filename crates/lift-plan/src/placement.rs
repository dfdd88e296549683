//! NUMA nodes: what a process may use, and where the pages of a lift are to lie.

use crate::{HugePool, MachineFacts, Numa, Reason};
use address_space::PageSize;
use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use core::fmt;
use serde::{Serialize, Serializer};

/// Numbers of NUMA nodes, ascending.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Nodes(Vec<u32>);

impl Nodes {
    /// True where the set has the node.
    pub fn contains(&self, node: u32) -> bool {
        self.0.binary_search(&node).is_ok()
    }

    /// The numbers.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.iter().copied()
    }

    /// True without any node.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The nodes of both sets.
    #[must_use]
    pub fn within(&self, other: &Self) -> Self {
        self.iter().filter(|&node| other.contains(node)).collect()
    }

    /// The set as the kernel takes it (mbind(2)): bit N of the words stands for node N.
    pub fn mask(&self) -> Vec<u64> {
        let words = self.0.last().map_or(0, |last| *last as usize / 64 + 1);
        let mut mask = vec![0u64; words];
        self.iter().for_each(|node| mask[node as usize / 64] |= 1 << (node % 64));
        mask
    }
}

impl FromIterator<u32> for Nodes {
    fn from_iter<I: IntoIterator<Item = u32>>(numbers: I) -> Self {
        let mut numbers: Vec<u32> = numbers.into_iter().collect();
        numbers.sort_unstable();
        numbers.dedup();
        Self(numbers)
    }
}

impl fmt::Display for Nodes {
    /// As `node 0` or `nodes 0, 2`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.len() == 1 { "node" } else { "nodes" })?;
        for (index, node) in self.iter().enumerate() {
            write!(f, "{} {node}", if index == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

impl Serialize for Nodes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter())
    }
}

/// How the kernel chooses among nodes (set_mempolicy(2)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Preference {
    /// These nodes and no others (`MPOL_BIND`).
    Bind,
    /// These nodes in turn; others where they have no memory (`MPOL_INTERLEAVE`).
    Interleave,
}

/// A memory policy for the pages of a lift.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Placement {
    /// How the kernel chooses.
    pub preference: Preference,
    /// Among which nodes; never none.
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

/// What one node has left.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct NodeFacts {
    /// Number.
    pub node: u32,
    /// Free pages of each pool.
    pub pools: Vec<(PageSize, u64)>,
    /// Memory that can be had there without memory pressure, in bytes.
    pub memory: u64,
}

/// The facts about NUMA on which a plan depends.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct NumaFacts {
    /// All nodes with memory.
    pub nodes: Vec<NodeFacts>,
    /// Those from which the process may take memory: its cpuset.
    pub allowed: Nodes,
    /// The nodes to which the process's own memory policy binds it (set_mempolicy(2)), if it does.
    pub bound: Option<Nodes>,
    /// The node of the CPU on which the process runs.
    pub running_on: Option<u32>,
}

impl NumaFacts {
    /// The nodes to which the kernel confines what the process takes by itself.
    fn confinement(&self) -> Nodes {
        let both = self.bound.as_ref().map(|bound| bound.within(&self.allowed));
        // A policy whose nodes the cpuset has taken away is without effect.
        both.filter(|both| !both.is_empty()).unwrap_or_else(|| self.allowed.clone())
    }
}

/// Where the pages of a lift are to lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Placed {
    /// The policy that new memory gets; `None`: that of the thread which makes it.
    pub placement: Option<Placement>,
    /// The nodes from which alone pages may come.
    pub nodes: Nodes,
}

/// Decides where the pages of a lift are to lie; `None` on a machine with one node.
pub(crate) fn place(machine: &MachineFacts, numa: Numa) -> Result<Option<Placed>, Reason> {
    let Some(facts) = &machine.numa else {
        return match numa {
            Numa::Node(node) if node != 0 => Err(Reason::NodeForbidden { node, allowed: Nodes::from_iter([0]) }),
            _ => Ok(None),
        };
    };
    let with = |preference, nodes: Nodes| Placement { preference, nodes };
    let only = |node: u32| {
        if !facts.allowed.contains(node) {
            return Err(Reason::NodeForbidden { node, allowed: facts.allowed.clone() });
        }
        let nodes = Nodes::from_iter([node]);
        Ok(Placed { placement: Some(with(Preference::Bind, nodes.clone())), nodes })
    };
    Ok(Some(match numa {
        Numa::Node(node) => only(node)?,
        Numa::Local => only(facts.running_on.ok_or(Reason::NoLocalNode)?)?,
        Numa::Interleave => {
            let placement = Some(with(Preference::Interleave, facts.allowed.clone()));
            Placed { placement, nodes: facts.allowed.clone() }
        }
        Numa::Own => Placed { placement: None, nodes: facts.confinement() },
    }))
}

/// Returns the pages of a pool that are available on the nodes, and those that are available elsewhere only.
pub(crate) fn pool_on(machine: &MachineFacts, pool: &HugePool, nodes: &Nodes) -> (u64, u64) {
    let free = |node: &NodeFacts| node.pools.iter().filter(|(size, _)| *size == pool.size).map(|(_, free)| free).sum();
    let (mut here, mut all) = (0u64, 0u64);
    for node in machine.numa.iter().flat_map(|facts| &facts.nodes) {
        let pages: u64 = free(node);
        all += pages;
        here += if nodes.contains(node.node) { pages } else { 0 };
    }
    // What exceeds the free pages are surplus pages, which the kernel may allocate on any node.
    let available = pool.available.min(here + pool.available.saturating_sub(all));
    (available, pool.available - available)
}

/// Returns the memory that is left on the nodes, and what to call that bound; `None` where other bounds are tighter.
pub(crate) fn memory_on(machine: &MachineFacts, nodes: &Nodes) -> Option<(u64, String)> {
    let facts = machine.numa.as_ref()?;
    let memory: u64 = facts.nodes.iter().filter(|node| nodes.contains(node.node)).map(|node| node.memory).sum();
    (memory < machine.memory_available).then(|| (memory, format!("available memory of {nodes}")))
}

/// The bound of memory of a plan.
pub(crate) fn memory_bound(machine: &MachineFacts, placed: Option<&Placed>) -> (u64, String) {
    let of_machine = || (machine.memory_available, machine.memory_bound.to_owned());
    placed.and_then(|placed| memory_on(machine, &placed.nodes)).unwrap_or_else(of_machine)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    fn nodes(numbers: &[u32]) -> Nodes {
        numbers.iter().copied().collect()
    }

    fn size() -> PageSize {
        PageSize::new(2 << 20).unwrap()
    }

    fn machine(numa: Option<NumaFacts>) -> MachineFacts {
        MachineFacts { numa, memory_available: 900, memory_bound: "available memory".into(), ..crate::facts::bare() }
    }

    fn two_nodes(allowed: &[u32], bound: Option<&[u32]>) -> MachineFacts {
        let node = |node, free, memory| NodeFacts { node, pools: vec![(size(), free)], memory };
        let both = vec![node(0, 2, 400), node(1, 40, 700)];
        machine(Some(NumaFacts { nodes: both, allowed: nodes(allowed), bound: bound.map(nodes), running_on: Some(0) }))
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
    fn pages_of_other_nodes_are_not_available_but_known() {
        let machine = two_nodes(&[0, 1], None);
        let pool = |available| HugePool { size: size(), total: 42, available };
        assert_eq!(pool_on(&machine, &pool(42), &nodes(&[0])), (2, 40));
        assert_eq!(pool_on(&machine, &pool(42), &nodes(&[0, 1])), (42, 0));
        assert_eq!(pool_on(&machine, &pool(47), &nodes(&[0])), (7, 40));
        assert_eq!(pool_on(&machine, &pool(1), &nodes(&[0])), (1, 0));
    }

    #[test]
    fn memory_of_other_nodes_does_not_count() {
        let machine = two_nodes(&[0, 1], None);
        let bound = |list: &[u32]| memory_bound(&machine, Some(&Placed { placement: None, nodes: nodes(list) }));
        assert_eq!(bound(&[0]), (400, "available memory of node 0".into()));
        assert_eq!(bound(&[0, 1]), (900, "available memory".into()));
        assert_eq!(memory_bound(&machine, None), (900, "available memory".into()));
    }
}
