//! The memory that a process may take from each NUMA node, and the nodes of its memory (`numa_maps` in
//! proc_pid_numa_maps(5)).

use crate::facts::SpecialMapping;
use crate::files::Files;
use crate::meminfo::meminfo_bytes;
use crate::node_set::Nodes;
use crate::nodes::{MOST_NODES, NODES, allowed_nodes, node_memory, node_numbers, numbers_in};
use crate::numa_facts::{NodeFacts, NumaFacts};
use crate::pools::pool_directory;
use address_space::{Address, AddressSpace, Mapping, PageSize, ProcessStat, RangeSet};
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

/// Share of a node's memory that is kept free.
const SHARE_LEFT_ALONE: u64 = 16;

/// NUMA facts for a plan for the process whose directory in /proc is `process`, with the pools of these page sizes;
/// `None` on a machine with one node, where no other file is read.
pub fn numa_facts(files: &impl Files, process: &str, pools: &[PageSize]) -> Option<NumaFacts> {
    let online = node_numbers(files);
    if online.len() < 2 {
        return None;
    }
    let nodes = online.iter().map(|&node| node_facts(files, node, pools)).collect();
    let allowed = allowed_nodes(files, process).into_iter().collect();
    let maps = files.text(&format!("{process}/numa_maps")).unwrap_or_default();
    let bound = own_policy(&maps).and_then(bound_nodes);
    let cpus = online.iter().copied().filter(|&node| may_run_on(files, process, node)).collect();
    Some(NumaFacts { nodes, allowed, bound, running_on: running_on(files, process, &online), cpus })
}

fn node_facts(files: &impl Files, node: u32, pools: &[PageSize]) -> NodeFacts {
    let free = |&size: &PageSize| {
        let free = files.number(&format!("{}/free_hugepages", pool_directory(size, Some(node))));
        (size, free.unwrap_or(0))
    };
    let text = files.text(&format!("{NODES}/node{node}/meminfo")).unwrap_or_default();
    let prefix = format!("Node {node} ");
    let lines: String = text.lines().map(|line| format!("{}\n", line.trim_start_matches(prefix.as_str()))).collect();
    // Cached memory that is not in use is freed without swapping.
    let bytes = |field| meminfo_bytes(&lines, field).unwrap_or(0);
    let memory = bytes("MemFree") + bytes("Inactive(file)");
    NodeFacts { node, pools: pools.iter().map(free).collect(), memory: memory - memory / SHARE_LEFT_ALONE }
}

fn running_on(files: &impl Files, process: &str, online: &[u32]) -> Option<u32> {
    let stat = files.text(&format!("{process}/stat"))?;
    let cpu = ProcessStat::parse(&stat)?.last_cpu()?;
    online.iter().copied().find(|&node| cpus_of(files, node).contains(&cpu))
}

/// The CPUs of a node.
fn cpus_of(files: &impl Files, node: u32) -> Vec<u32> {
    numbers_in(&files.text(&format!("{NODES}/node{node}/cpulist")).unwrap_or_default(), MOST_CPUS)
}

/// True if the process may run on a CPU of the node (`Cpus_allowed_list`).
fn may_run_on(files: &impl Files, process: &str, node: u32) -> bool {
    let status = files.text(&format!("{process}/status")).unwrap_or_default();
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    let allowed = list.map(|list| numbers_in(list, MOST_CPUS));
    let of_node = cpus_of(files, node);
    allowed.map_or(!of_node.is_empty(), |allowed| of_node.iter().any(|cpu| allowed.binary_search(cpu).is_ok()))
}

/// The nodes that have both memory and CPUs, ascending: those from which programs run. Empty on a kernel without NUMA.
pub fn nodes_with_cpus(files: &impl Files) -> Vec<u32> {
    let nodes = node_memory(files).into_iter().filter(|node| node.total > 0).map(|node| node.node);
    nodes.filter(|&node| !cpus_of(files, node).is_empty()).collect()
}

/// Maximum number of CPUs (`CONFIG_NR_CPUS` of at most 8192).
const MOST_CPUS: u32 = 8192;

/// One line of `numa_maps`.
struct Line<'a> {
    start: Address,
    policy: &'a str,
    words: Vec<&'a str>,
}

/// Lines are `START POLICY WORDS...`; the policy may have a blank in it: `weighted interleave:0-1`. The path of a file may
/// have colons in it.
fn lines(maps: &str) -> impl Iterator<Item = Line<'_>> {
    maps.lines().filter_map(|line| {
        let (start, rest) = line.split_once(' ')?;
        let start = Address(u64::from_str_radix(start, 16).ok()?);
        let is_named = |word: &str| ["heap", "stack", "huge"].contains(&word) || word.starts_with("file=");
        let is_word = |word: &str| is_named(word) || word.contains('=') && !word.contains(':');
        let end = rest.split(' ').take_while(|word| !is_word(word)).map(|word| word.len() + 1).sum::<usize>();
        let policy = rest.get(..end.saturating_sub(1)).unwrap_or(rest).trim();
        Some(Line { start, policy, words: rest.get(end.min(rest.len())..)?.split_whitespace().collect() })
    })
}

/// The memory policy of the process's first thread. The kernel shows it for memory without its own policy, for example
/// the stack.
fn own_policy(maps: &str) -> Option<&str> {
    lines(maps).find(|line| line.words.contains(&"stack")).map(|line| line.policy)
}

/// The nodes of a policy that binds: `bind:0-1`, `bind=static:0`.
fn bound_nodes(policy: &str) -> Option<Nodes> {
    let (mode, nodes) = policy.split_once(':')?;
    (mode == "bind" || mode.starts_with("bind=")).then(|| numbers_in(nodes, MOST_NODES).into_iter().collect())
}

/// The mappings of a process that have a memory policy of their own (mbind(2)), which a copy would lose. Empty on a machine
/// with one node.
pub fn placed_mappings(files: &impl Files, process: &str, space: &AddressSpace) -> Vec<SpecialMapping> {
    if node_numbers(files).len() < 2 {
        return Vec::new();
    }
    let maps = files.text(&format!("{process}/numa_maps")).unwrap_or_default();
    let Some(usual) = own_policy(&maps) else { return Vec::new() };
    let placed = lines(&maps).filter(|line| line.policy != usual).filter_map(|line| {
        let range = space.find(line.start)?.range;
        Some(SpecialMapping { range, property: format!("placed by its own memory policy (mbind: {})", line.policy) })
    });
    placed.collect()
}

/// The bytes of the mappings within `ranges` on each node, ascending, as the kernel reports them.
pub fn bytes_on_nodes(files: &impl Files, process: &str, space: &AddressSpace, ranges: &RangeSet) -> Vec<(u32, u64)> {
    let mut bytes: BTreeMap<u32, u64> = BTreeMap::new();
    for (mapping, on_nodes) in bytes_by_mapping(files, process, space) {
        if ranges.covers(mapping.range) {
            on_nodes.into_iter().for_each(|(node, more)| *bytes.entry(node).or_default() += more);
        }
    }
    bytes.into_iter().collect()
}

/// The bytes of each mapping that are present in the process, by node, as the kernel shows them.
pub fn bytes_by_mapping<'a>(
    files: &impl Files,
    process: &str,
    space: &'a AddressSpace,
) -> Vec<(&'a Mapping, Vec<(u32, u64)>)> {
    let maps = files.text(&format!("{process}/numa_maps")).unwrap_or_default();
    lines(&maps).filter_map(|line| Some((space.find(line.start)?, bytes_of(&line)))).collect()
}

/// Pages of one pool on one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolPagesOnNode {
    /// Page size.
    pub size: PageSize,
    /// Number of the node.
    pub node: u32,
    /// Number of pages.
    pub pages: u64,
}

/// The pages of the pools that a process has mapped and present, by size and node, ascending; `None` if the kernel does
/// not report them.
pub fn pool_pages_by_node(files: &impl Files, process: &str) -> Option<Vec<PoolPagesOnNode>> {
    let maps = files.text(&format!("{process}/numa_maps"))?;
    let mut pages: BTreeMap<(PageSize, u32), u64> = BTreeMap::new();
    for line in lines(&maps).filter(|line| line.words.contains(&"huge")) {
        let kib = line.words.iter().find_map(|word| word.strip_prefix("kernelpagesize_kB=")?.parse::<u64>().ok());
        let Some(size) = kib.and_then(|kib| PageSize::new(kib.checked_mul(1024)?).ok()) else { continue };
        for (node, bytes) in bytes_of(&line) {
            *pages.entry((size, node)).or_default() += bytes / size.bytes();
        }
    }
    Some(pages.into_iter().map(|((size, node), pages)| PoolPagesOnNode { size, node, pages }).collect())
}

/// The bytes on each node of one line: `N0=3 N1=2 kernelpagesize_kB=4`.
fn bytes_of(line: &Line<'_>) -> Vec<(u32, u64)> {
    let number = |word: &str, name: &str| word.strip_prefix(name)?.parse::<u64>().ok();
    let kib = line.words.iter().find_map(|word| number(word, "kernelpagesize_kB=")).unwrap_or(0);
    let on_node = |word: &&str| {
        let (node, pages) = word.strip_prefix('N')?.split_once('=')?;
        let pages = pages.parse::<u64>().ok()?;
        Some((node.parse().ok()?, pages.saturating_mul(kib).saturating_mul(1024)))
    };
    line.words.iter().filter_map(on_node).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::tests::WrittenFiles;
    use alloc::string::ToString;

    const MAPS: &str = "\
55d0c0a00000 bind:1 file=/usr/bin/a\\040b:c anon=512 dirty=512 N1=512 kernelpagesize_kB=4
55d0c0c00000 bind:1 huge anon=3 dirty=3 N0=1 N1=2 kernelpagesize_kB=2048
7f0000000000 weighted interleave:0-1 anon=1 dirty=1 N0=1 kernelpagesize_kB=4
7ffd00000000 bind:1 stack anon=3 dirty=3 N1=3 kernelpagesize_kB=4
";

    fn files() -> WrittenFiles {
        let mut files = WrittenFiles::default();
        files.write("/sys/devices/system/node/online", "0-1");
        files.write("/sys/devices/system/node/node0/cpulist", "0-1");
        files.write("/sys/devices/system/node/node1/cpulist", "2-3");
        let meminfo = "Node 1 MemFree:   96 kB\nNode 1 Inactive(file):   64 kB";
        files.write("/sys/devices/system/node/node1/meminfo", meminfo);
        files.write("/sys/devices/system/node/node1/hugepages/hugepages-2048kB/free_hugepages", 7);
        files.write("/proc/7/status", "Cpus_allowed_list:\t3\nMems_allowed_list:\t0-1");
        files.write("/proc/7/numa_maps", MAPS);
        let zeros = "0 ".repeat(35);
        files.write("/proc/7/stat", format!("7 (a) b) S {zeros}3 0"));
        files
    }

    fn space() -> AddressSpace {
        let maps = "\
55d0c0a00000-55d0c0c00000 r-xp 0 00:00 0
55d0c0c00000-55d0c1200000 r--p 0 00:00 0
7f0000000000-7f0000001000 rw-p 0 00:00 0
7ffd00000000-7ffd00003000 rw-p 0 00:00 0 [stack]
";
        AddressSpace::parse(maps).unwrap()
    }

    #[test]
    fn a_machine_with_one_node_is_not_looked_at() {
        let mut files = files();
        files.write("/sys/devices/system/node/online", "0");
        assert_eq!(numa_facts(&files, "/proc/7", &[]), None);
        assert!(placed_mappings(&files, "/proc/7", &space()).is_empty());
    }

    #[test]
    fn nodes_and_the_process_on_them_are_found() {
        let size = PageSize::new(2 << 20).unwrap();
        let facts = numa_facts(&files(), "/proc/7", &[size]).unwrap();
        assert_eq!((facts.allowed.to_string().as_str(), facts.running_on), ("nodes 0, 1", Some(1)));
        assert_eq!(facts.bound.unwrap().to_string(), "node 1");
        assert_eq!(facts.cpus.to_string(), "node 1");
        let other = numa_facts(&files(), "/proc/8", &[]).unwrap();
        assert_eq!((other.cpus.to_string().as_str(), other.running_on), ("nodes 0, 1", None));
        assert_eq!(facts.nodes[0], NodeFacts { node: 0, pools: vec![(size, 0)], memory: 0 });
        assert_eq!(facts.nodes[1], NodeFacts { node: 1, pools: vec![(size, 7)], memory: 150 << 10 });
    }

    #[test]
    fn programs_run_from_nodes_with_memory_and_cpus() {
        let mut files = files();
        files.write("/sys/devices/system/node/online", "0-2");
        for (node, kib) in [(0, 64), (1, 0), (2, 64)] {
            let meminfo = format!("Node {node} MemTotal: {kib} kB\nNode {node} MemFree: 8 kB");
            files.write(&format!("/sys/devices/system/node/node{node}/meminfo"), meminfo);
        }
        assert_eq!(nodes_with_cpus(&files), [0]);
        files.write("/sys/devices/system/node/node2/cpulist", "40");
        assert_eq!(nodes_with_cpus(&files), [0, 2]);
    }

    #[test]
    fn policies_that_bind_are_told_from_others() {
        let bound = |policy| bound_nodes(policy).map(|nodes| nodes.to_string());
        assert_eq!(bound("bind:0-1").as_deref(), Some("nodes 0, 1"));
        assert_eq!(bound("bind=static:1").as_deref(), Some("node 1"));
        assert_eq!([bound("default"), bound("prefer:1"), bound("weighted interleave:0-1")], [None, None, None]);
    }

    #[test]
    fn a_mapping_with_a_policy_of_its_own_is_special() {
        let placed = placed_mappings(&files(), "/proc/7", &space());
        let found: Vec<_> = placed.iter().map(|m| (m.range.start().0, m.property.as_str())).collect();
        let property = "placed by its own memory policy (mbind: weighted interleave:0-1)";
        assert_eq!(found, [(0x7f00_0000_0000, property)]);
    }

    #[test]
    fn pages_of_the_pools_are_counted_by_size_and_node() {
        let size = PageSize::new(2 << 20).unwrap();
        assert_eq!(
            pool_pages_by_node(&files(), "/proc/7"),
            Some(vec![PoolPagesOnNode { size, node: 0, pages: 1 }, PoolPagesOnNode { size, node: 1, pages: 2 }])
        );
        assert_eq!(pool_pages_by_node(&files(), "/proc/8"), None);
    }

    #[test]
    fn pages_are_counted_by_node() {
        let lifted = |first: usize, last: usize| {
            space().mappings()[first..last].iter().map(|mapping| mapping.range).collect::<RangeSet>()
        };
        let on_nodes = |ranges: &RangeSet| bytes_on_nodes(&files(), "/proc/7", &space(), ranges);
        assert_eq!(on_nodes(&lifted(0, 2)), [(0, 2 << 20), (1, 6 << 20)]);
        assert_eq!(on_nodes(&lifted(1, 2)), [(0, 2 << 20), (1, 4 << 20)]);
        assert_eq!(on_nodes(&RangeSet::new()), []);
    }
}
