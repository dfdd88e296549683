//! The machine's facts, read without any library: pools, transparent huge pages, memory, limits of cgroups. The command
//! line has the same by the standard library in `huge-page-pools`; the tests below hold the two together.

use crate::{calls, files};
use address_space::PageSize;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use lift_plan::{HugePool, MachineFacts, ThpFacts, ThpMode};

/// Of available memory this share is left alone, so that a lift never brings the machine or a cgroup to its limit.
const SHARE_LEFT_ALONE: u64 = 16;

/// `e_machine` of the programs that this build can live in (elf.h: EM_X86_64, EM_AARCH64).
const ELF_MACHINE: u16 = if cfg!(target_arch = "x86_64") { 62 } else { 183 };

/// `vm.max_map_count` where it cannot be read: the kernel's default.
const USUAL_MOST_MAPPINGS: u64 = 65530;

const POOLS: &str = "/sys/kernel/mm/hugepages";

/// The machine's facts for a plan that concerns this process.
pub fn machine_facts(base_page: PageSize) -> MachineFacts {
    let mut pools = pools();
    let meminfo = files::text_or_nothing("/proc/meminfo");
    let available = meminfo_bytes(&meminfo, "MemAvailable").unwrap_or(u64::MAX);
    let mut memory = (available, String::from("available memory"));
    limit_by_cgroups(&mut pools, &mut memory);
    if memory.0 < available {
        // At the limit of its cgroup a program is killed; what is left must serve more than the lift.
        memory.0 /= 2;
    }
    let release = kernel_release();
    MachineFacts {
        elf_machine: ELF_MACHINE,
        base_page,
        pools,
        default_hugetlb: meminfo_bytes(&meminfo, "Hugepagesize").and_then(|bytes| PageSize::new(bytes).ok()),
        thp: thp().map(|thp| if is_thp_off() { ThpFacts { mode: ThpMode::OffInProcess, ..thp } } else { thp }),
        movable_hugetlb: release >= (5, 16),
        collapse: release >= (6, 1),
        memory_available: memory.0 - memory.0 / SHARE_LEFT_ALONE,
        memory_bound: memory.1,
        max_mappings: number("/proc/sys/vm/max_map_count").unwrap_or(USUAL_MOST_MAPPINGS),
    }
}

/// Bytes of the smallest huge pages that are used where none are named.
#[cfg(feature = "preload")]
pub fn smallest_huge_page() -> u64 {
    let usual = meminfo_bytes(&files::text_or_nothing("/proc/meminfo"), "Hugepagesize");
    thp().map(|thp| thp.size.bytes()).into_iter().chain(usual).min().unwrap_or(u64::MAX)
}

fn pools() -> Vec<HugePool> {
    let Some(directory) = files::c_path(POOLS) else { return Vec::new() };
    let sizes = files::names_in(&directory).unwrap_or_default().into_iter().filter_map(|name| {
        let kib: u64 = name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
        PageSize::new(kib.checked_mul(1024)?).ok()
    });
    let mut pools: Vec<_> = sizes.map(pool).collect();
    pools.sort_by_key(|pool| pool.size);
    pools
}

fn pool(size: PageSize) -> HugePool {
    let read = |file: &str| number(&format!("{POOLS}/hugepages-{}kB/{file}", size.kib())).unwrap_or(0);
    let [free, reserved, overcommit, surplus] =
        ["free_hugepages", "resv_hugepages", "nr_overcommit_hugepages", "surplus_hugepages"].map(read);
    let available = HugePool::available_of(free, reserved, overcommit, surplus);
    HugePool { size, total: read("nr_hugepages"), available }
}

fn thp() -> Option<ThpFacts> {
    const THP: &str = "/sys/kernel/mm/transparent_hugepage";
    let size = PageSize::new(number(&format!("{THP}/hpage_pmd_size"))?).ok()?;
    let general = files::text_or_nothing(&format!("{THP}/enabled"));
    let own = files::text_or_nothing(&format!("{THP}/hugepages-{}kB/enabled", size.kib()));
    Some(ThpFacts { size, mode: ThpMode::read(&general, &own)? })
}

/// True where this process has switched transparent huge pages off for itself (`THP_enabled`, Linux 5.0).
fn is_thp_off() -> bool {
    let status = files::text_or_nothing("/proc/self/status");
    status.lines().find_map(|line| line.strip_prefix("THP_enabled:")).is_some_and(|value| value.trim() == "0")
}

fn number(path: &str) -> Option<u64> {
    files::text_or_nothing(path).trim().parse().ok()
}

fn meminfo_bytes(meminfo: &str, field: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
    line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// Major and minor number of the running kernel.
fn kernel_release() -> (u32, u32) {
    let release = calls::kernel_release();
    let text = core::str::from_utf8(&release).unwrap_or_default();
    let mut numbers = text.split(|c: char| !c.is_ascii_digit()).map(|digits| digits.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

/// Cuts what is available by the limits of this process's cgroups, version 1 and 2 (cgroups(7)). What cannot be read
/// counts as no limit; the kernel has the last word.
fn limit_by_cgroups(pools: &mut [HugePool], memory: &mut (u64, String)) {
    let membership = files::text_or_nothing("/proc/self/cgroup");
    let mounts = files::text_or_nothing("/proc/self/mountinfo");
    for line in membership.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
        let second = controllers.is_empty();
        for controller in ["memory", "hugetlb"] {
            if !second && !controllers.split(',').any(|name| name == controller) {
                continue;
            }
            let Some((point, root)) = mount_of(&mounts, (!second).then_some(controller)) else { continue };
            let inside = path.strip_prefix(root.trim_end_matches('/')).unwrap_or(path);
            for directory in ancestors(point, inside) {
                match controller {
                    "memory" => limit_memory(memory, &directory, second),
                    _ => pools.iter_mut().for_each(|pool| limit_pool(pool, &directory, second)),
                }
            }
        }
    }
}

/// Mount point and mounted root of the cgroup2 hierarchy, or of the version 1 hierarchy with a controller.
fn mount_of<'a>(mountinfo: &'a str, controller: Option<&str>) -> Option<(&'a str, &'a str)> {
    mountinfo.lines().find_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        let mut right = right.split(' ');
        let kind = right.next()?;
        let options = right.nth(1)?;
        let fits = match controller {
            None => kind == "cgroup2",
            Some(name) => kind == "cgroup" && options.split(',').any(|option| option == name),
        };
        let mut left = left.split(' ').skip(3);
        let (root, point) = (left.next()?, left.next()?);
        fits.then_some((point, root))
    })
}

/// The cgroup's directory and those above it, up to the root of the hierarchy.
fn ancestors(point: &str, inside: &str) -> Vec<String> {
    let mut directories = Vec::new();
    let mut inside = inside.trim_matches('/');
    while !inside.is_empty() {
        directories.push(format!("{point}/{inside}"));
        inside = inside.rsplit_once('/').map_or("", |(above, _)| above);
    }
    directories.push(point.to_string());
    directories
}

fn limit_memory(memory: &mut (u64, String), directory: &str, second: bool) {
    let names = if second {
        ["memory.max", "memory.current", "inactive_file "]
    } else {
        ["memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file "]
    };
    let read = |name: &str| number(&format!("{directory}/{name}"));
    let (Some(limit), Some(usage)) = (read(names[0]), read(names[1])) else { return };
    // Page cache that nobody has used lately goes at once when the limit is reached.
    let stat = files::text_or_nothing(&format!("{directory}/memory.stat"));
    let idle = stat.lines().find_map(|line| line.strip_prefix(names[2])?.trim().parse().ok()).unwrap_or(0);
    let left = limit.saturating_sub(usage.saturating_sub(idle));
    if left < memory.0 {
        *memory = (left, format!("cgroup {directory}"));
    }
}

fn limit_pool(pool: &mut HugePool, directory: &str, second: bool) {
    let pairs = if second {
        [("max", "current"), ("rsvd.max", "rsvd.current")]
    } else {
        [("limit_in_bytes", "usage_in_bytes"), ("rsvd.limit_in_bytes", "rsvd.usage_in_bytes")]
    };
    for (limit, usage) in pairs {
        let read = |what: &str| number(&format!("{directory}/hugetlb.{}.{what}", name_of(pool.size)));
        if let (Some(limit), Some(usage)) = (read(limit), read(usage)) {
            pool.available = pool.available.min(limit.saturating_sub(usage) / pool.size.bytes());
        }
    }
}

/// The size as cgroup files have it: `2MB`, `1GB`, `64KB`.
fn name_of(size: PageSize) -> String {
    let kib = size.kib();
    match kib {
        _ if kib.is_multiple_of(1 << 20) => format!("{}GB", kib >> 20),
        _ if kib.is_multiple_of(1 << 10) => format!("{}MB", kib >> 10),
        _ => format!("{kib}KB"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_facts_are_those_that_the_command_line_sees() {
        compare();
        nix::sys::prctl::set_thp_disable(true).unwrap();
        compare();
        nix::sys::prctl::set_thp_disable(false).unwrap();
    }

    fn compare() {
        let base_page = crate::auxiliary::Auxiliary::read().unwrap().base_page;
        let (inside, outside) = (machine_facts(base_page), huge_page_pools::machine_facts(std::process::id() as i32));
        let sizes = |facts: &MachineFacts| facts.pools.iter().map(|pool| pool.size).collect::<Vec<_>>();
        assert_eq!(sizes(&inside), sizes(&outside));
        assert_eq!(inside.thp, outside.thp);
        assert_eq!(inside.default_hugetlb, outside.default_hugetlb);
        assert_eq!(inside.memory_bound, outside.memory_bound);
        // Other processes come and go between the two looks.
        let ratio = inside.memory_available as f64 / outside.memory_available as f64;
        assert!((0.8..1.25).contains(&ratio), "{inside:?}\n{outside:?}");
        assert_eq!(inside.max_mappings, outside.max_mappings);
        assert_eq!(
            (inside.elf_machine, inside.movable_hugetlb, inside.collapse),
            (outside.elf_machine, outside.movable_hugetlb, outside.collapse)
        );
    }

    #[test]
    fn every_cgroup_above_counts() {
        assert_eq!(ancestors("/c", "/a/b"), ["/c/a/b", "/c/a", "/c"]);
        assert_eq!(ancestors("/c", "/"), ["/c"]);
    }
}
