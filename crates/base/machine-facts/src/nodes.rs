//! NUMA nodes and their memory (`Documentation/ABI/stable/sysfs-devices-node`).

use crate::files::Files;
use crate::meminfo::meminfo_bytes;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use serde::Serialize;

/// Where the kernel shows its nodes.
pub const NODES: &str = "/sys/devices/system/node";

/// Maximum number of nodes that is read from a list: the kernel's own (`CONFIG_NODES_SHIFT` of at most 10).
pub const MOST_NODES: u32 = 1 << 10;

/// Memory of one node, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct NodeMemory {
    /// Number of the node.
    pub node: u32,
    /// All memory of the node.
    pub total: u64,
    /// Memory that nothing uses, not even the page cache.
    pub free: u64,
    /// Memory that can be had without swapping: what is free, file pages and what the kernel can reclaim, as MemAvailable
    /// counts for the whole machine (without its reserves).
    pub available: u64,
}

/// The numbers of the nodes that are online, ascending; empty on a kernel without NUMA.
pub fn node_numbers(files: &impl Files) -> Vec<u32> {
    numbers_in(&files.text(&format!("{NODES}/online")).unwrap_or_default(), MOST_NODES)
}

/// The nodes from which the process whose directory in /proc is `process` may take memory (`Mems_allowed_list`, which its
/// cpuset sets), as far as they are online.
pub fn allowed_nodes(files: &impl Files, process: &str) -> Vec<u32> {
    let online = node_numbers(files);
    let status = files.text(&format!("{process}/status")).unwrap_or_default();
    match status.lines().find_map(|line| line.strip_prefix("Mems_allowed_list:")) {
        Some(list) => {
            let allowed = numbers_in(list, MOST_NODES);
            online.into_iter().filter(|node| allowed.contains(node)).collect()
        }
        None => online,
    }
}

/// Memory of each node that is online.
pub fn node_memory(files: &impl Files) -> Vec<NodeMemory> {
    let memory = |node: u32| {
        let text = files.text(&format!("{NODES}/node{node}/meminfo"))?;
        // Its lines are those of /proc/meminfo after the name of the node.
        let prefix = format!("Node {node} ");
        let lines: String =
            text.lines().map(|line| format!("{}\n", line.trim_start_matches(prefix.as_str()))).collect();
        let bytes = |field| meminfo_bytes(&lines, field);
        let (total, free) = (bytes("MemTotal")?, bytes("MemFree")?);
        let cached = ["Active(file)", "Inactive(file)", "SReclaimable"].into_iter().filter_map(bytes);
        Some(NodeMemory { node, total, free, available: free + cached.sum::<u64>() })
    };
    node_numbers(files).into_iter().filter_map(memory).collect()
}

/// The numbers of a list such as `0-2,5`, up to `most`; what is not understood is left out.
pub fn numbers_in(list: &str, most: u32) -> Vec<u32> {
    let mut numbers = Vec::new();
    for part in list.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (Ok(first), Ok(last)) = (first.trim().parse::<u32>(), last.trim().parse::<u32>()) else { continue };
        numbers.extend(first..=last.min(most));
    }
    numbers
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::tests::WrittenFiles;

    #[test]
    fn lists_have_numbers_and_spans() {
        let numbers_in = |list| numbers_in(list, MOST_NODES);
        assert_eq!(numbers_in("0-2,5\n"), [0, 1, 2, 5]);
        assert_eq!(numbers_in("0"), [0]);
        assert!(numbers_in("").is_empty() && numbers_in("x,3-1").is_empty());
        assert_eq!(numbers_in("0-4294967295").len() as u32, MOST_NODES + 1);
    }

    #[test]
    fn a_process_is_kept_to_the_nodes_of_its_cpuset() {
        let mut files = WrittenFiles::default();
        files.write("/sys/devices/system/node/online", "0-1");
        files.write("/proc/7/status", "Name:\tprog\nMems_allowed_list:\t1-3");
        assert_eq!(allowed_nodes(&files, "/proc/7"), [1]);
        assert_eq!(allowed_nodes(&files, "/proc/8"), [0, 1]);
    }

    #[test]
    fn memory_of_a_node_is_in_bytes() {
        let mut files = WrittenFiles::default();
        files.write("/sys/devices/system/node/online", "0-1");
        files.write(
            "/sys/devices/system/node/node1/meminfo",
            "Node 1 MemTotal:   64 kB\nNode 1 MemFree:    8 kB\nNode 1 Inactive(file):  4 kB",
        );
        let expected = NodeMemory { node: 1, total: 64 << 10, free: 8 << 10, available: 12 << 10 };
        assert_eq!(node_memory(&files), [expected]);
    }
}
