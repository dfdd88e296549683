//! The machine, from its files in /proc and /sys.

use crate::facts::{HostFacts, Measured, MeasuringFacts, MemoryFacts, PoolFacts, ThpFacts};
use address_space::PageSize;
use machine_facts::{Files, POOLS, THP, pools_at};
use std::collections::BTreeMap;
use working_set::{Holds, PageClass, Reach};

const NODES: &str = "/sys/devices/system/node";

/// The word in brackets, or the only one.
fn chosen(text: &str) -> Option<String> {
    let inside = text.split_once('[').and_then(|(_, rest)| rest.split_once(']')).map(|(word, _)| word);
    inside.or_else(|| (text.split_whitespace().count() == 1).then_some(text.trim())).map(str::to_owned)
}

/// Transparent huge pages, without any process's own setting.
pub fn thp(files: &impl Files, size: Option<PageSize>) -> ThpFacts {
    let word = |file: &str| chosen(&files.text(&format!("{THP}/{file}"))?);
    let own = |name: &String| {
        let kib: u64 = name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
        Some((PageSize::new(kib.checked_mul(1024)?).ok()?, word(&format!("{name}/enabled"))?))
    };
    let mut sizes: Vec<_> = files.names_in(THP).iter().filter_map(own).collect();
    sizes.sort_by_key(|(size, _)| *size);
    ThpFacts {
        size,
        general: word("enabled"),
        sizes,
        defrag: word("defrag"),
        max_ptes_none: files.number(&format!("{THP}/khugepaged/max_ptes_none")),
        switched_off: None,
    }
}

/// The pools, with the free pages of each node.
pub fn pools(files: &impl Files) -> Vec<PoolFacts> {
    let online = online(files);
    let of_pool = |pool: &lift_plan::HugePool| {
        let name = format!("hugepages-{}kB", pool.size.kib());
        let free =
            |node: &u32| Some((*node, files.number(&format!("{NODES}/node{node}/hugepages/{name}/free_hugepages"))?));
        PoolFacts {
            size: pool.size,
            total: pool.total,
            available: pool.available,
            overcommit: files.number(&format!("{POOLS}/{name}/nr_overcommit_hugepages")).unwrap_or(0),
            nodes: online.iter().filter_map(free).collect(),
        }
    };
    pools_at(files, POOLS).iter().map(of_pool).collect()
}

fn online(files: &impl Files) -> Vec<u32> {
    numbers(&files.text(&format!("{NODES}/online")).unwrap_or_default())
}

/// The numbers of a list such as `0-1,4` (cpuset(7), "List format"), 1,024 at most, as many as a kernel has nodes.
pub fn numbers(list: &str) -> Vec<u32> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some((first.trim().parse::<u32>().ok()?, last.trim().parse::<u32>().ok()?))
    };
    list.trim().split(',').filter_map(range).flat_map(|(first, last)| first..=last).take(1024).collect()
}

/// Memory.
pub fn memory(files: &impl Files, base: PageSize, huge: Option<PageSize>) -> MemoryFacts {
    let buddies = files.text("/proc/buddyinfo").unwrap_or_default();
    let meminfo = files.text("/proc/meminfo").unwrap_or_default();
    let total = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB"));
    MemoryFacts {
        nodes: huge.map(|huge| free_blocks(&buddies, base, huge)).unwrap_or_default(),
        online: online(files),
        zones: buddies.lines().count() as u64,
        min_free_kib: files.number("/proc/sys/vm/min_free_kbytes"),
        total: total.and_then(|kib| kib.trim().parse::<u64>().ok()?.checked_mul(1024)),
        numa_balancing: files.number("/proc/sys/kernel/numa_balancing"),
        ksm: files.number("/sys/kernel/mm/ksm/run"),
        proactiveness: files.number("/proc/sys/vm/compaction_proactiveness"),
    }
}

/// Of each node its number, free bytes, and bytes of these in blocks of a huge page or larger; nothing where the kernel
/// counts no blocks of that size. A line is `Node 0, zone Normal` with a count for each power of two of pages
/// (`Documentation/filesystems/proc.rst`).
fn free_blocks(buddies: &str, base: PageSize, huge: PageSize) -> Vec<(u32, u64, u64)> {
    let order = huge.log2().saturating_sub(base.log2()) as usize;
    let mut nodes: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
    for line in buddies.lines() {
        let mut words = line.split_whitespace();
        let node = words.nth(1).and_then(|word| word.trim_end_matches(',').parse().ok());
        let counts: Vec<u64> = words.skip(2).filter_map(|word| word.parse().ok()).collect();
        let Some(node) = node.filter(|_| counts.len() > order) else { continue };
        let bytes = |(order, count): (usize, &u64)| count.saturating_mul(base.bytes() << order);
        let all = counts.iter().enumerate().map(bytes).fold(0, u64::saturating_add);
        let large = counts.iter().enumerate().skip(order).map(bytes).fold(0, u64::saturating_add);
        let sum = nodes.entry(node).or_default();
        *sum = (sum.0.saturating_add(all), sum.1.saturating_add(large));
    }
    nodes.into_iter().map(|(node, (free, large))| (node, free, large)).collect()
}

/// The host.
pub fn host(files: &impl Files, measured: Option<Measured>) -> HostFacts {
    let line = |path: &str| files.text(path).map(|text| text.trim().to_owned());
    HostFacts {
        virtual_machine: tlb_probe::is_virtual_machine(),
        nx_huge_pages: line("/sys/module/kvm/parameters/nx_huge_pages"),
        itlb_multihit: line("/sys/devices/system/cpu/vulnerabilities/itlb_multihit"),
        measured,
        entries: entries(&Reach::of_this_cpu()),
    }
}

fn entries(reach: &Reach) -> Option<(u64, u64)> {
    reach.entries(Holds::Code, PageClass::Base).zip(reach.entries(Holds::Data, PageClass::Base))
}

/// What measuring needs.
pub fn measuring(files: &impl Files, tracepoints: bool) -> MeasuringFacts {
    let paranoid = files.text("/proc/sys/kernel/perf_event_paranoid").and_then(|text| text.trim().parse().ok());
    MeasuringFacts { paranoid, tracepoints }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gather::tests::Written;

    fn size(bytes: u64) -> PageSize {
        PageSize::new(bytes).unwrap()
    }

    #[test]
    fn free_blocks_are_counted_by_node() {
        let text = "Node 0, zone      DMA      0 1 0 0 0 0 0 0 0 1 3 \n\
                    Node 0, zone   Normal      4 0 0 0 0 0 0 0 0 0 0 \n\
                    Node 1, zone   Normal      1 0 0 0 0 0 0 0 0 2 0 \nnonsense\n";
        let found = free_blocks(text, size(4096), size(2 << 20));
        let large = (2 << 20) + 3 * (4 << 20);
        assert_eq!(found, [(0, large + 8192 + 4 * 4096, large), (1, (4 << 20) + 4096, 4 << 20)]);
        assert!(free_blocks(text, size(4096), size(1 << 30)).is_empty(), "blocks of that size are not counted");
    }

    #[test]
    fn lists_are_read_and_bounded() {
        assert_eq!(numbers("0-2,5\n"), [0, 1, 2, 5]);
        assert_eq!(numbers(""), [0; 0]);
        assert_eq!(numbers("0-4294967295").len(), 1024);
    }

    #[test]
    fn each_size_has_its_mode_and_each_pool_its_nodes() {
        let files = Written::of(&[
            ("/sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never"),
            ("/sys/kernel/mm/transparent_hugepage/defrag", "always defer defer+madvise madvise [never]"),
            ("/sys/kernel/mm/transparent_hugepage/khugepaged/max_ptes_none", "511"),
            ("/sys/kernel/mm/transparent_hugepage/hugepages-2048kB/enabled", "always [inherit] madvise never"),
            ("/sys/kernel/mm/transparent_hugepage/hugepages-64kB/enabled", "always inherit madvise [never]"),
            ("/sys/devices/system/node/online", "0-1"),
            ("/sys/devices/system/node/node1/hugepages/hugepages-2048kB/free_hugepages", "7"),
            ("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "9"),
            ("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "7"),
            ("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_overcommit_hugepages", "5"),
        ]);
        let thp = thp(&files, Some(size(2 << 20)));
        assert_eq!((thp.general.as_deref(), thp.defrag.as_deref()), (Some("madvise"), Some("never")));
        assert_eq!(thp.sizes, [(size(64 << 10), "never".to_owned()), (size(2 << 20), "inherit".to_owned())]);
        assert_eq!(thp.max_ptes_none, Some(511));
        let pool = PoolFacts { size: size(2 << 20), total: 9, available: 12, overcommit: 5, nodes: vec![(1, 7)] };
        assert_eq!(pools(&files), [pool]);
    }
}
