//! The machine, from its files in /proc and /sys.

use crate::facts::{
    DamonReclaim, FreeMemory, HostFacts, Khugepaged, Measured, MeasuringFacts, MemoryFacts, Place, PoolFacts, ThpFacts,
};
use address_space::PageSize;
use machine_facts::{
    Files, FreeBlocks, PoolCounts, THP, chosen_word, free_blocks, meminfo_bytes, node_numbers, pool_counts,
};
use nix::sys::statvfs::{FsFlags, statvfs};
use pools::RecordedPages;
use translation::working_set::{Holds, PageClass, Reach};

const DAMON: &str = "/sys/kernel/mm/damon/admin/kdamonds";
const DAMON_MODULE: &str = "/sys/module/damon_reclaim/parameters";
/// Most kdamonds, contexts of one and schemes of one that are read.
const MOST_OF_DAMON: usize = 16;

/// The place where this process runs.
pub fn place() -> Place {
    let is_read_only = |path: &str| statvfs(path).is_ok_and(|found| found.flags().contains(FsFlags::ST_RDONLY));
    let path = std::env::var_os("PATH").unwrap_or_default();
    Place {
        is_read_only: ["/sys", "/proc/sys"].into_iter().any(is_read_only),
        lacks_sudo: !std::env::split_paths(&path).any(|folder| folder.join("sudo").exists()),
    }
}

/// Transparent huge pages, without any process's own setting.
pub fn thp(files: &impl Files, size: Option<PageSize>) -> ThpFacts {
    let word = |file: &str| chosen_word(&files.text(&format!("{THP}/{file}"))?).map(str::to_owned);
    let own = |name: &String| Some((PageSize::of_directory(name)?, word(&format!("{name}/enabled"))?));
    let mut sizes: Vec<_> = files.names_in(THP).iter().filter_map(own).collect();
    sizes.sort_by_key(|(size, _)| *size);
    ThpFacts {
        size,
        general: word("enabled"),
        sizes,
        defrag: word("defrag"),
        max_ptes_none: files.number(&format!("{THP}/khugepaged/max_ptes_none")),
        khugepaged: khugepaged(files),
        shared: word("shmem_enabled"),
        shared_of_size: size.and_then(|size| word(&format!("{}/shmem_enabled", size.directory()))),
        switched_off: None,
    }
}

fn khugepaged(files: &impl Files) -> Option<Khugepaged> {
    let number = |name: &str| files.number(&format!("{THP}/khugepaged/{name}"));
    let compacts = number("defrag")? != 0;
    Some(Khugepaged { compacts, pages: number("pages_to_scan")?, pause: number("scan_sleep_millisecs")? })
}

/// The pools, with the part of each node, and the pages of `records`.
pub fn pools(files: &impl Files, records: &[RecordedPages]) -> Vec<PoolFacts> {
    let recorded_of = |size: PageSize| {
        let changes = records.iter().flat_map(|record| &record.changes).filter(|change| change.size == size);
        changes.map(|change| (change.node, change.pages)).collect()
    };
    let of_pool = |pool: PoolCounts| PoolFacts {
        size: pool.size,
        total: pool.total,
        available: pool.unpromised() + pool.headroom(),
        overcommit: pool.overcommit,
        nodes: pool.nodes,
        recorded: recorded_of(pool.size),
    };
    pool_counts(files).into_iter().map(of_pool).collect()
}

/// Memory.
pub fn memory(files: &impl Files, base: PageSize, huge: Option<PageSize>) -> MemoryFacts {
    let buddies = files.text("/proc/buddyinfo").unwrap_or_default();
    let nodes = free_blocks(files);
    let meminfo = files.text("/proc/meminfo").unwrap_or_default();
    MemoryFacts {
        nodes: huge
            .map_or_else(Vec::new, |huge| nodes.iter().filter_map(|node| free_memory(node, base, huge)).collect()),
        online: node_numbers(files),
        zones: buddies.lines().count() as u64,
        min_free_kib: files.number("/proc/sys/vm/min_free_kbytes"),
        total: meminfo_bytes(&meminfo, "MemTotal"),
        numa_balancing: files.number("/proc/sys/kernel/numa_balancing"),
        ksm: files.number("/sys/kernel/mm/ksm/run"),
        proactiveness: files.number("/proc/sys/vm/compaction_proactiveness"),
        damon: damon(files),
    }
}

/// The running schemes of DAMON that page out physical memory, both the module's and manual ones; `None` if only root
/// may read some.
fn damon(files: &impl Files) -> Option<Vec<DamonReclaim>> {
    let word = |path: &str| files.text(path).map(|text| text.trim().to_owned());
    let is = |path: &str, value: &str| word(path).as_deref() == Some(value);
    let numbered = |folder: &str| -> Vec<String> {
        let names = files.names_in(folder).into_iter().filter(|name| name.parse::<u32>().is_ok());
        names.take(MOST_OF_DAMON).map(|name| format!("{folder}/{name}")).collect()
    };
    let spares_mapped = |scheme: &String| {
        ["filters", "core_filters", "ops_filters"].iter().flat_map(|kind| numbered(&format!("{scheme}/{kind}"))).any(
            |filter| {
                let allows = is(&format!("{filter}/allow"), "Y") == is(&format!("{filter}/matching"), "Y");
                is(&format!("{filter}/type"), "unmapped") && allows
            },
        )
    };
    let kdamonds = numbered(DAMON);
    if kdamonds.iter().any(|kdamond| word(&format!("{kdamond}/state")).is_none()) {
        return None;
    }
    let by_hand = kdamonds.into_iter().filter(|kdamond| is(&format!("{kdamond}/state"), "on"));
    let contexts = by_hand.flat_map(|kdamond| numbered(&format!("{kdamond}/contexts")));
    let physical = contexts.filter(|context| is(&format!("{context}/operations"), "paddr"));
    let schemes = physical.flat_map(|context| numbered(&format!("{context}/schemes")));
    let found = schemes.filter(|scheme| is(&format!("{scheme}/action"), "pageout"));
    let mut found: Vec<_> = found.map(|place| DamonReclaim { spares_mapped: spares_mapped(&place), place }).collect();
    if is(&format!("{DAMON_MODULE}/enabled"), "Y") {
        found.push(DamonReclaim { place: DAMON_MODULE.to_owned(), spares_mapped: false });
    }
    Some(found)
}

/// Returns the free memory of a node; `None` if the kernel counts no blocks of the size of a huge page.
fn free_memory(node: &FreeBlocks, base: PageSize, huge: PageSize) -> Option<FreeMemory> {
    let in_blocks = node.pages_of(huge, base)? * huge.bytes();
    Some(FreeMemory { node: node.node, free: node.bytes(base), in_blocks })
}

/// The host.
pub fn host(files: &impl Files, measured: Option<Measured>) -> HostFacts {
    let line = |path: &str| files.text(path).map(|text| text.trim().to_owned());
    HostFacts {
        virtual_machine: translation::tlb_probe::is_virtual_machine(),
        nx_huge_pages: line("/sys/module/kvm/parameters/nx_huge_pages"),
        itlb_multihit: line("/sys/devices/system/cpu/vulnerabilities/itlb_multihit"),
        measured,
        entries: entries(&Reach::of_this_cpu()),
    }
}

fn entries(reach: &Reach) -> Option<(u64, u64)> {
    reach.entries(Holds::Code, PageClass::Base).zip(reach.entries(Holds::Data, PageClass::Base))
}

/// The requirements of measuring.
pub fn measuring(files: &impl Files, tracepoints: bool) -> MeasuringFacts {
    let paranoid = files.text("/proc/sys/kernel/perf_event_paranoid").and_then(|text| text.trim().parse().ok());
    MeasuringFacts { paranoid, tracepoints }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::NodePool;
    use crate::gather::tests::Written;
    use pools::Change;

    fn size(bytes: u64) -> PageSize {
        PageSize::new(bytes).unwrap()
    }

    #[test]
    fn damon_reclaims_where_a_running_scheme_pages_out_physical_memory() {
        const SCHEME: &str = "/sys/kernel/mm/damon/admin/kdamonds/0/contexts/0/schemes/1";
        const SOUND: [(&str, &str); 6] = [
            ("/sys/kernel/mm/damon/admin/kdamonds/0/state", "on"),
            ("/sys/kernel/mm/damon/admin/kdamonds/0/contexts/0/operations", "paddr"),
            ("/sys/kernel/mm/damon/admin/kdamonds/0/contexts/0/schemes/1/action", "pageout"),
            ("/sys/kernel/mm/damon/admin/kdamonds/0/contexts/0/schemes/1/ops_filters/0/type", "unmapped"),
            ("/sys/kernel/mm/damon/admin/kdamonds/0/contexts/0/schemes/1/ops_filters/0/matching", "Y"),
            ("/sys/kernel/mm/damon/admin/kdamonds/0/contexts/0/schemes/1/ops_filters/0/allow", "Y"),
        ];
        let with = |changes: &[(&str, &'static str)]| {
            let changed = |path: &str| changes.iter().find(|(end, _)| path.ends_with(end)).map(|(_, text)| *text);
            damon(&Written::of(&SOUND.map(|(path, text)| (path, changed(path).unwrap_or(text)))))
        };
        let found = |spares_mapped| Some(vec![DamonReclaim { place: SCHEME.to_owned(), spares_mapped }]);
        assert_eq!((with(&[]), with(&[("allow", "N")])), (found(true), found(false)));
        assert_eq!(with(&[("type", "anon")]), found(false));
        for other in [("state", "off"), ("operations", "vaddr"), ("action", "stat")] {
            assert_eq!(with(&[other]), Some(Vec::new()), "{other:?}");
        }
        let module = damon(&Written::of(&[("/sys/module/damon_reclaim/parameters/enabled", "Y")]));
        assert_eq!(module, Some(vec![DamonReclaim { place: DAMON_MODULE.to_owned(), spares_mapped: false }]));
        // Folders are readable by all, their files by root only.
        assert_eq!(damon(&Written::of(&SOUND[1..])), None);
    }

    #[test]
    fn free_memory_in_blocks_of_a_huge_page_is_a_part_of_all_that_is_free() {
        let node = FreeBlocks { node: 1, by_order: vec![4, 2, 0, 0, 0, 0, 0, 0, 0, 1, 3] };
        let in_blocks = (2 << 20) + 3 * (4 << 20);
        let free = in_blocks + 4 * 4096 + 2 * 8192;
        assert_eq!(free_memory(&node, size(4096), size(2 << 20)), Some(FreeMemory { node: 1, free, in_blocks }));
        assert_eq!(free_memory(&node, size(4096), size(1 << 30)), None, "blocks of that size are not counted");
    }

    #[test]
    fn each_size_has_its_mode_and_each_pool_its_nodes() {
        let files = Written::of(&[
            ("/sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never"),
            ("/sys/kernel/mm/transparent_hugepage/defrag", "always defer defer+madvise madvise [never]"),
            ("/sys/kernel/mm/transparent_hugepage/khugepaged/max_ptes_none", "511"),
            ("/sys/kernel/mm/transparent_hugepage/hugepages-2048kB/enabled", "always [inherit] madvise never"),
            ("/sys/kernel/mm/transparent_hugepage/hugepages-2048kB/shmem_enabled", "always inherit [never]"),
            ("/sys/kernel/mm/transparent_hugepage/hugepages-64kB/enabled", "always inherit madvise [never]"),
            ("/sys/devices/system/node/online", "0-1"),
            ("/sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages", "9"),
            ("/sys/devices/system/node/node1/hugepages/hugepages-2048kB/free_hugepages", "7"),
            ("/sys/devices/system/node/node1/hugepages/hugepages-2048kB/surplus_hugepages", "1"),
            ("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "9"),
            ("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "7"),
            ("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_overcommit_hugepages", "5"),
        ]);
        let thp = thp(&files, Some(size(2 << 20)));
        assert_eq!((thp.general.as_deref(), thp.defrag.as_deref()), (Some("madvise"), Some("never")));
        assert_eq!(thp.sizes, [(size(64 << 10), "never".to_owned()), (size(2 << 20), "inherit".to_owned())]);
        assert_eq!((thp.max_ptes_none, thp.shared_of_size.as_deref()), (Some(511), Some("never")));
        let nodes = vec![NodePool { node: 1, total: 9, free: 7, surplus: 1 }];
        let pool = PoolFacts {
            size: size(2 << 20),
            total: 9,
            available: 12,
            overcommit: 5,
            nodes,
            recorded: vec![(Some(1), 3)],
        };
        let change = |bytes, pages| Change { size: size(bytes), node: Some(1), pages };
        let record = RecordedPages {
            name: "db".to_owned(),
            holder: None,
            changes: vec![change(2 << 20, 3), change(1 << 30, 1)],
        };
        assert_eq!(pools(&files, &[record]), [pool]);
    }
}
