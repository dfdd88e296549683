//! Sets of NUMA nodes.

use alloc::vec;
use alloc::vec::Vec;
use core::fmt;
use serde::{Serialize, Serializer};

/// Numbers of NUMA nodes, ascending.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Nodes(Vec<u32>);

impl Nodes {
    /// True if the set contains the node.
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

    /// The set in the kernel's format (mbind(2)): bit N of the words is node N.
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
