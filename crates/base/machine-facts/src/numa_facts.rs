//! A process's rights to use the machine's NUMA nodes.

use crate::node_set::Nodes;
use address_space::PageSize;
use alloc::vec::Vec;
use options::Numa;
use serde::Serialize;

/// Free resources of one node.
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
    /// The nodes of the CPUs on which it may run (sched_setaffinity(2), cpuset).
    pub cpus: Nodes,
}

impl NumaFacts {
    /// The node whose copy of shared code the process should run from: the one that `numa` names; otherwise the only
    /// one that its cpuset and memory policy allow; otherwise the only allowed one on whose CPUs it may run; otherwise
    /// the one on which it runs now. `None` if that node is not among the nodes that it may use, and for an interleaved
    /// lift.
    pub fn home(&self, numa: Numa) -> Option<u32> {
        let only = |nodes: &Nodes| nodes.iter().next().filter(|_| nodes.iter().count() == 1);
        let usable = self.confinement();
        match numa {
            Numa::Interleave => None,
            Numa::Node(node) => Some(node).filter(|&node| self.allowed.contains(node)),
            Numa::Local => self.running_on.filter(|&node| self.allowed.contains(node)),
            Numa::Own => only(&usable)
                .or_else(|| only(&self.cpus.within(&usable)))
                .or_else(|| self.running_on.filter(|&node| usable.contains(node))),
        }
    }

    /// The nodes to which the kernel confines what the process takes by itself.
    pub fn confinement(&self) -> Nodes {
        let both = self.bound.as_ref().map(|bound| bound.within(&self.allowed));
        // A policy whose nodes the cpuset has taken away is without effect.
        both.filter(|both| !both.is_empty()).unwrap_or_else(|| self.allowed.clone())
    }
}
