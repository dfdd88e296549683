//! The NUMA node that a process belongs to, and its mappings of shared pages on other nodes.

use address_space::{AddressRange, AddressSpace, Mapping, format_bytes};
use foreign_text::quoted_path;
use image_store::default_directory;
use lift_plan::{MachineFacts, Numa};
use linux::nodes::has_several_nodes;
use machine_facts::{System, bytes_by_mapping, numa_facts};
use process_view::printable;
use serde::Serialize;
use std::fmt;
use std::path::Path;

/// The node whose copies of shared code a process is to run from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Home {
    /// The machine has one node.
    OneNode,
    /// This node.
    Node(u32),
    /// It belongs to several nodes, or the kernel does not report it.
    Unknown,
}

/// Returns the node of a process, by the user's choice, its cpuset, memory policy and CPUs.
pub fn home_of(pid: i32, machine: &MachineFacts, numa: Numa) -> Home {
    let read = || has_several_nodes().then(|| numa_facts(&System, &format!("/proc/{pid}"), &[])).flatten();
    match machine.numa.clone().or_else(read) {
        None => Home::OneNode,
        Some(facts) => facts.home(numa).map_or(Home::Unknown, Home::Node),
    }
}

/// Bytes on one NUMA node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct NodeBytes {
    /// Number of the node.
    pub node: u32,
    /// Bytes.
    pub bytes: u64,
}

/// Pages of a file, or of an image, that a process maps from other nodes than its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FarPages {
    /// Path of the file or image.
    pub path: String,
    /// The process's node.
    pub home: u32,
    /// Bytes that the process maps of the file, on all nodes.
    pub of: u64,
    /// Bytes on other nodes.
    pub elsewhere: Vec<NodeBytes>,
}

impl FarPages {
    /// Their bytes on each node.
    pub fn place(&self) -> String {
        let on = |node: &NodeBytes| format!("{} on node {}", format_bytes(node.bytes), node.node);
        let elsewhere: Vec<_> = self.elsewhere.iter().map(on).collect();
        let (path, of) = (printable(&self.path), format_bytes(self.of));
        format!("{path}: {} of {of} that the process maps", elsewhere.join(", "))
    }

    /// The command, for root, after which the program's next start runs from its own node.
    pub fn command(&self) -> String {
        // The path of an image is no file of which one could be made.
        let is_image = Path::new(&self.path).starts_with(default_directory());
        let file = if is_image { "FILE".to_owned() } else { quoted_path(&self.path) };
        format!("pagelift image add --per-node {file}")
    }
}

impl fmt::Display for FarPages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (place, home, command) = (self.place(), self.home, self.command());
        write!(f, "{place}, and it runs on node {home}; fix, as root, and then start it again: {command}")
    }
}

/// Returns the pages of files and images in these ranges that a process maps from other nodes than its own. A mapping
/// is counted as a whole: the kernel does not report more.
pub fn far_pages(pid: i32, space: &AddressSpace, home: Home, ranges: &[AddressRange]) -> Vec<FarPages> {
    let Home::Node(home) = home else { return Vec::new() };
    let is_chosen = |mapping: &Mapping| {
        mapping.inode != 0 && !mapping.protection.write && ranges.iter().any(|range| range.overlaps(mapping.range))
    };
    let found = bytes_by_mapping(&System, &format!("/proc/{pid}"), space);
    let chosen = found.into_iter().filter(|(mapping, _)| is_chosen(mapping));
    gather(home, chosen.filter_map(|(mapping, bytes)| Some((mapping.path()?, bytes))))
}

/// Sums the mappings of each file, and keeps files with pages on other nodes.
fn gather<'a>(home: u32, mapped: impl Iterator<Item = (&'a str, Vec<(u32, u64)>)>) -> Vec<FarPages> {
    let mut files: Vec<FarPages> = Vec::new();
    for (path, bytes) in mapped {
        let known = files.iter().position(|file| file.path == path);
        let index = known.unwrap_or_else(|| {
            files.push(FarPages { path: path.to_owned(), home, of: 0, elsewhere: Vec::new() });
            files.len() - 1
        });
        let file = &mut files[index];
        for (node, bytes) in bytes {
            file.of += bytes;
            match file.elsewhere.iter_mut().find(|other| other.node == node) {
                Some(other) => other.bytes += bytes,
                None if node != home => file.elsewhere.push(NodeBytes { node, bytes }),
                None => {}
            }
        }
    }
    files.retain(|file| !file.elsewhere.is_empty());
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_on_other_nodes_are_added_up_by_file() {
        const MIB: u64 = 1 << 20;
        let mapped = [
            ("/bin/a", vec![(0, 2 * MIB), (1, MIB)]),
            ("/lib/b", vec![(1, 5 * MIB)]),
            ("/bin/a", vec![(0, 4 * MIB), (2, MIB)]),
        ];
        let found = gather(1, mapped.into_iter());
        let said: Vec<_> = found.iter().map(ToString::to_string).collect();
        let expected = "/bin/a: 6.0 MiB on node 0, 1.0 MiB on node 2 of 8.0 MiB that the process maps, and it runs on node 1; \
                        fix, as root, and then start it again: pagelift image add --per-node /bin/a";
        assert_eq!(said, [expected]);
    }

    #[test]
    fn the_fix_for_an_image_does_not_name_the_image() {
        let path = default_directory().join("v2-x/a").display().to_string();
        let found = gather(0, [(path.as_str(), vec![(1, 4096)])].into_iter());
        assert!(found[0].to_string().ends_with("--per-node FILE"));
    }
}
