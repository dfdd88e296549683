//! Reads the limits of a process's cgroups, version 1 and 2 (cgroups(7)).

use crate::Files;
use crate::cgroup_mount::below;
#[cfg(feature = "std")]
use crate::cgroup_view::{Visible, visible};
use address_space::PageSize;
use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;
use serde::Serialize;

/// Version 1 expresses "no limit" by the largest number of whole pages (`PAGE_COUNTER_MAX`), which no machine has.
pub const NO_LIMIT: u64 = 1 << 62;

/// The room below the tightest limits of a process's cgroups.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CgroupLimits {
    /// Bytes of memory, and the directory that sets them; `None` without a limit.
    pub memory: Option<(u64, String)>,
    /// The tightest limit of hugetlb pages, by size.
    pub hugetlb: Vec<HugetlbLimit>,
}

impl CgroupLimits {
    /// The tightest limit of pages of one size.
    pub fn hugetlb_of(&self, size: PageSize) -> Option<&HugetlbLimit> {
        self.hugetlb.iter().find(|limit| limit.size == size)
    }
}

/// A limit of hugetlb pages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HugetlbLimit {
    /// Which pages.
    pub size: PageSize,
    /// Bytes left below the limit.
    pub left: u64,
    /// The limit in bytes.
    pub limit: u64,
    /// The file that sets it.
    pub file: String,
}

/// A process's cgroups and their directories. Finding them takes longer than reading their limits.
#[derive(Clone, Debug, Default)]
pub struct Cgroups {
    membership: String,
    mounts: String,
    hidden: Option<String>,
}

impl Cgroups {
    /// The cgroups of the process whose directory in /proc is `process`. Cgroups that cannot be read are omitted.
    pub fn of(files: &impl Files, process: &str) -> Self {
        let membership = files.text(&format!("{process}/cgroup")).unwrap_or_default();
        let mounts = files.text("/proc/self/mountinfo").unwrap_or_default();
        Self::visible(files, membership, mounts)
    }

    /// The cgroups as this cgroup namespace sees them.
    #[cfg(feature = "std")]
    fn visible(files: &impl Files, membership: String, mounts: String) -> Self {
        let Visible { membership, mounts, hidden } = visible(files, &membership, &mounts);
        Self { membership, mounts, hidden }
    }

    /// A process that reads its own cgroups needs no translation.
    #[cfg(not(feature = "std"))]
    fn visible(_: &impl Files, membership: String, mounts: String) -> Self {
        Self { membership, mounts, hidden: None }
    }

    /// Path of the cgroup that limits the process's memory, if it is below no mounted hierarchy, so that its limits are
    /// unknown.
    pub fn hidden(&self) -> Option<&str> {
        self.hidden.as_deref()
    }

    /// Calls `look` with each directory, as [`for_each_directory`] does.
    pub fn for_each_directory<'a>(&'a self, look: impl FnMut(CgroupDirectory<'a>)) {
        for_each_directory(&self.membership, &self.mounts, look);
    }

    /// Reads their limits. A limit that cannot be read counts as none; the kernel decides in the end.
    pub fn limits(&self, files: &impl Files, sizes: &[PageSize]) -> CgroupLimits {
        let mut limits = CgroupLimits::default();
        self.for_each_directory(|directory| {
            let (path, version_2) = (directory.to_string(), directory.version_2);
            match directory.controller {
                Controller::Memory => take_memory(files, &mut limits, &path, version_2),
                Controller::Hugetlb => {
                    sizes.iter().for_each(|size| take_hugetlb(files, &mut limits, &path, *size, version_2));
                }
            }
        });
        limits
    }

    /// Returns what each cgroup of the process says about hugetlb pages, its own first. Cgroups without any limit are
    /// left out.
    pub fn hugetlb(&self, files: &impl Files, sizes: &[PageSize]) -> Vec<HugetlbCgroup> {
        let mut found = Vec::new();
        self.for_each_directory(|directory| {
            if directory.controller == Controller::Hugetlb {
                let (path, version_2) = (directory.to_string(), directory.version_2);
                let of_size = |size: &PageSize| HugetlbCgroup::read(files, &path, *size, version_2);
                found.extend(sizes.iter().filter_map(of_size));
            }
        });
        found
    }

    /// Returns the directory of the process's cgroup of version 2 where that is frozen, by itself or with one above it.
    pub fn frozen(&self, files: &impl Files) -> Option<String> {
        let mut own = None;
        self.for_each_directory(|directory| {
            own = own.or_else(|| directory.version_2.then_some(directory));
        });
        let directory = own?.to_string();
        let events = files.text(&format!("{directory}/cgroup.events"))?;
        events.lines().any(|line| line == "frozen 1").then_some(directory)
    }
}

/// The limits that one cgroup sets to hugetlb pages of one size. Bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HugetlbCgroup {
    /// Which pages.
    pub size: PageSize,
    /// Directory of the cgroup.
    pub directory: String,
    /// Limit of pages in use, beyond which a fault is SIGBUS.
    pub in_use: Option<u64>,
    /// Limit of pages promised to mappings, beyond which mmap fails.
    pub promised: Option<u64>,
    /// The file that sets `in_use`.
    pub in_use_file: String,
    /// The file that sets `promised` (Linux 5.7); `None` where the kernel has none.
    pub promised_file: Option<String>,
}

impl HugetlbCgroup {
    fn read(files: &impl Files, directory: &str, size: PageSize, version_2: bool) -> Option<Self> {
        let limit = if version_2 { "max" } else { "limit_in_bytes" };
        let name = hugetlb_name(size);
        let [in_use_file, promised_file] =
            ["", "rsvd."].map(|kind| format!("{directory}/hugetlb.{name}.{kind}{limit}"));
        let bound = |file: &str| files.number(file).filter(|limit| *limit < NO_LIMIT);
        let (in_use, promised) = (bound(&in_use_file), bound(&promised_file));
        let promised_file = files.text(&promised_file).map(|_| promised_file);
        let directory = directory.to_owned();
        let is_limited = in_use.is_some() || promised.is_some();
        is_limited.then_some(Self { size, directory, in_use, promised, in_use_file, promised_file })
    }
}

/// The resource that a cgroup limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Controller {
    /// Memory.
    Memory,
    /// Pages of the hugetlb pools.
    Hugetlb,
}

impl Controller {
    const ALL: [Self; 2] = [Self::Memory, Self::Hugetlb];

    const fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Hugetlb => "hugetlb",
        }
    }
}

/// The directory of a cgroup; shown, its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CgroupDirectory<'a> {
    /// The limited resource.
    pub controller: Controller,
    /// True in the hierarchy of version 2.
    pub version_2: bool,
    mount_point: &'a str,
    /// The path below the mount point, without `/` at its ends.
    inside: &'a str,
}

impl fmt::Display for CgroupDirectory<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.mount_point)?;
        if self.inside.is_empty() { Ok(()) } else { write!(f, "/{}", self.inside) }
    }
}

/// Calls `look` with each directory of the cgroups that limit memory or hugetlb pages of a process, its own first and
/// then the parents. `membership` is the text of `/proc/PID/cgroup`, `mounts` the text of `/proc/self/mountinfo`. A
/// cgroup that is below no mount is omitted. Does not allocate.
pub fn for_each_directory<'a>(membership: &'a str, mounts: &'a str, mut look: impl FnMut(CgroupDirectory<'a>)) {
    for line in membership.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next()) else { continue };
        let version_2 = controllers.is_empty();
        let has = |name: &str| controllers.split(',').any(|c| c == name);
        for controller in Controller::ALL.into_iter().filter(|controller| version_2 || has(controller.name())) {
            let mut mounts = mounts_of(mounts, (!version_2).then_some(controller.name()));
            let place = mounts.find_map(|(point, root)| Some((point, below(path, root)?)));
            let Some((mount_point, inside)) = place else { continue };
            let mut next = Some(inside);
            while let Some(inside) = next {
                look(CgroupDirectory { controller, version_2, mount_point, inside });
                next = (!inside.is_empty()).then(|| inside.rsplit_once('/').map_or("", |(above, _)| above));
            }
        }
    }
}

/// Mount points and mounted roots of the cgroup2 hierarchy, or of the version 1 hierarchy with a controller.
fn mounts_of<'a>(mountinfo: &'a str, controller: Option<&'a str>) -> impl Iterator<Item = (&'a str, &'a str)> {
    mountinfo.lines().filter_map(move |line| {
        let (left, right) = line.split_once(" - ")?;
        let mut right = right.split(' ');
        let kind = right.next()?;
        let options = right.nth(1)?;
        let fits = match controller {
            None => kind == "cgroup2",
            Some(name) => kind == "cgroup" && options.split(',').any(|option| option == name),
        };
        let mut left = left.split(' ');
        let (root, point) = (left.nth(3)?, left.next()?);
        fits.then_some((point, root))
    })
}

/// The files of a cgroup that say how much memory it may have and has.
#[derive(Clone, Copy, Debug)]
pub struct MemoryFiles {
    /// The files with limits in bytes, without a number if there is no limit. Above `memory.high` the kernel slows a process down
    /// so much that it is a limit, too.
    limits: &'static [&'static str],
    /// Holds the bytes that are charged.
    pub usage: &'static str,
    /// Lines of `memory.stat` with inactive and active page cache.
    page_cache: [&'static str; 2],
}

impl MemoryFiles {
    /// The files in the hierarchy of version 1 or 2.
    pub const fn of(version_2: bool) -> Self {
        if version_2 {
            Self {
                limits: &["memory.max", "memory.high"],
                usage: "memory.current",
                page_cache: ["inactive_file ", "active_file "],
            }
        } else {
            Self {
                limits: &["memory.limit_in_bytes"],
                usage: "memory.usage_in_bytes",
                page_cache: ["total_inactive_file ", "total_active_file "],
            }
        }
    }

    /// The smallest limit; `None` without one. `number` reads one of the files.
    pub fn limit(self, number: impl FnMut(&'static str) -> Option<u64>) -> Option<u64> {
        self.limits.iter().copied().filter_map(number).filter(|limit| *limit < NO_LIMIT).min()
    }

    /// Bytes left below a limit, with the text of `memory.stat`. At the limit the kernel reclaims inactive page cache at once, and
    /// active page cache before it refuses memory; half of the latter counts, since the program uses it. The kernel lets active
    /// page cache be several times as large as inactive page cache (`inactive_is_low` in `mm/vmscan.c`).
    pub fn left(self, limit: u64, usage: u64, stat: &str) -> u64 {
        let bytes = |name| {
            let line = stat.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|number| number.trim().parse::<u64>().ok()).unwrap_or(0)
        };
        let [inactive, active] = self.page_cache.map(bytes);
        limit.saturating_sub(usage.saturating_sub(inactive.saturating_add(active / 2)))
    }
}

fn take_memory(files: &impl Files, limits: &mut CgroupLimits, directory: &str, version_2: bool) {
    let names = MemoryFiles::of(version_2);
    // Without a limit the rest need not be read: the kernel sums `memory.stat` over all CPUs for each reader.
    let Some(limit) = names.limit(|name| files.number(&format!("{directory}/{name}"))) else { return };
    let Some(usage) = files.number(&format!("{directory}/{}", names.usage)) else { return };
    let left = names.left(limit, usage, &files.text(&format!("{directory}/memory.stat")).unwrap_or_default());
    if limits.memory.as_ref().is_none_or(|(so_far, _)| left < *so_far) {
        limits.memory = Some((left, directory.to_owned()));
    }
}

fn take_hugetlb(files: &impl Files, limits: &mut CgroupLimits, directory: &str, size: PageSize, version_2: bool) {
    let name = hugetlb_name(size);
    let pairs = if version_2 {
        [("max", "current"), ("rsvd.max", "rsvd.current")]
    } else {
        [("limit_in_bytes", "usage_in_bytes"), ("rsvd.limit_in_bytes", "rsvd.usage_in_bytes")]
    };
    for (limit, usage) in pairs {
        let file = |what: &str| format!("{directory}/hugetlb.{name}.{what}");
        let set_by = file(limit);
        let Some(limit) = files.number(&set_by).filter(|limit| *limit < NO_LIMIT) else { continue };
        let Some(usage) = files.number(&file(usage)) else { continue };
        let left = limit.saturating_sub(usage);
        let found = HugetlbLimit { size, left, limit, file: set_by };
        match limits.hugetlb.iter_mut().find(|so_far| so_far.size == size) {
            Some(so_far) if left < so_far.left => *so_far = found,
            Some(_) => {}
            None => limits.hugetlb.push(found),
        }
    }
}

/// The size as hugetlb cgroup files name it: `2MB`, `1GB`, `64KB`.
fn hugetlb_name(size: PageSize) -> String {
    size.to_string().replace(' ', "").replace("iB", "B")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::tests::WrittenFiles;

    const MOUNTS: &str = "\
30 20 0:26 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
31 20 0:27 /docker/abc /sys/fs/cgroup/hugetlb rw,relatime shared:5 - cgroup cgroup rw,hugetlb
32 20 0:28 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
";

    #[test]
    fn hierarchies_are_found_by_controller() {
        let mount_of = |controller| mounts_of(MOUNTS, controller).next();
        assert_eq!(mount_of(Some("memory")).unwrap().0, "/sys/fs/cgroup/memory");
        assert_eq!(mount_of(Some("hugetlb")).unwrap().1, "/docker/abc");
        assert_eq!(mount_of(None).unwrap().0, "/sys/fs/cgroup/unified");
        assert!(mount_of(Some("cpu")).is_none());
    }

    #[test]
    fn every_ancestor_counts() {
        let directories = |path: &str| {
            let mut found = Vec::new();
            let membership = format!("0::{path}");
            for_each_directory(&membership, "30 20 0:26 / /c rw - cgroup2 cgroup2 rw", |directory| {
                found.extend((directory.controller == Controller::Memory).then(|| directory.to_string()));
            });
            found
        };
        assert_eq!(directories("/a/b"), ["/c/a/b", "/c/a", "/c"]);
        assert_eq!(directories("/"), ["/c"]);
    }

    #[test]
    fn the_tightest_memory_limit_wins() {
        let mut files = WrittenFiles::default();
        for (directory, max, current) in [("/c/a", "max", 500), ("/c", "1000", 600)] {
            files.write(&format!("{directory}/memory.max"), max);
            files.write(&format!("{directory}/memory.current"), current);
            files.write(&format!("{directory}/memory.stat"), "anon 1\ninactive_file 100");
        }
        let mut limits = CgroupLimits::default();
        for directory in ["/c/a", "/c"] {
            take_memory(&files, &mut limits, directory, true);
        }
        assert_eq!(limits.memory, Some((500, "/c".to_owned())));
    }

    #[test]
    fn the_tightest_hugetlb_limit_wins_and_is_named() {
        let mut files = WrittenFiles::default();
        let size = PageSize::new(2 << 20).unwrap();
        for (path, text) in [
            ("/c/a/hugetlb.2MB.max", "9000000"),
            ("/c/a/hugetlb.2MB.current", "1000000"),
            ("/c/a/hugetlb.2MB.rsvd.max", "max"),
            ("/c/a/hugetlb.2MB.rsvd.current", "0"),
            ("/c/hugetlb.2MB.rsvd.max", "2000000"),
            ("/c/hugetlb.2MB.rsvd.current", "2000000"),
        ] {
            files.write(path, text);
        }
        let mut limits = CgroupLimits::default();
        take_hugetlb(&files, &mut limits, "/c/a", size, true);
        assert_eq!(limits.hugetlb_of(size).map(|limit| limit.left), Some(8_000_000));
        take_hugetlb(&files, &mut limits, "/c", size, true);
        let found = HugetlbLimit { size, left: 0, limit: 2_000_000, file: "/c/hugetlb.2MB.rsvd.max".to_owned() };
        assert_eq!(limits.hugetlb, [found]);
    }

    /// Writes the files of one directory.
    fn write(files: &mut WrittenFiles, directory: &str, numbers: &[(&str, u64)]) {
        numbers.iter().for_each(|(name, value)| files.write(&format!("{directory}/{name}"), value));
    }

    #[test]
    fn of_equal_limits_the_first_is_named_and_a_looser_one_never() {
        let (mut files, size) = (WrittenFiles::default(), PageSize::new(2 << 20).unwrap());
        for (name, limit) in [("/tight", 1000), ("/equal", 1000), ("/loose", 1001), ("/none", NO_LIMIT)] {
            write(&mut files, name, &[("memory.max", limit), ("memory.current", 0)]);
            write(&mut files, name, &[("hugetlb.2MB.max", limit), ("hugetlb.2MB.current", 0)]);
        }
        let found = |order: &[&str]| {
            let mut limits = CgroupLimits::default();
            for directory in order {
                take_memory(&files, &mut limits, directory, true);
                take_hugetlb(&files, &mut limits, directory, size, true);
            }
            let hugetlb = limits.hugetlb_of(size).and_then(|limit| Some(limit.file.rsplit_once('/')?.0.to_owned()));
            assert_eq!(limits.memory.map(|(_, directory)| directory), hugetlb);
            hugetlb
        };
        let tight = Some("/tight".to_owned());
        assert_eq!(found(&["/tight", "/equal"]), tight);
        assert_eq!(found(&["/tight", "/loose"]), tight);
        assert_eq!(found(&["/loose", "/tight", "/none"]), tight);
        assert_eq!(found(&["/none"]), None);
    }

    #[test]
    fn limits_are_those_of_the_hierarchies_that_the_process_is_in() {
        let (mut files, size) = (WrittenFiles::default(), PageSize::new(2 << 20).unwrap());
        write(&mut files, "/unified/leaf", &[("memory.max", 900), ("memory.current", 100)]);
        write(&mut files, "/unified/leaf", &[("hugetlb.2MB.max", 9000), ("hugetlb.2MB.current", 1000)]);
        write(&mut files, "/memory/leaf", &[("memory.limit_in_bytes", 500), ("memory.usage_in_bytes", 100)]);
        let hugetlb = [("hugetlb.2MB.limit_in_bytes", 5000), ("hugetlb.2MB.usage_in_bytes", 1000)];
        write(&mut files, "/hugetlb/leaf", &hugetlb);
        write(&mut files, "/cpu/leaf", &[("memory.limit_in_bytes", 1), ("memory.usage_in_bytes", 0)]);
        write(&mut files, "/cpu/leaf", &[("hugetlb.2MB.limit_in_bytes", 1), ("hugetlb.2MB.usage_in_bytes", 0)]);
        let version_1 = |name: &str| format!("31 20 0:27 / /{name} rw - cgroup cgroup rw,{name}\n");
        let mut mounts = "30 20 0:26 /docker/abc /unified rw - cgroup2 cgroup2 rw\n".to_owned();
        mounts.extend(["memory", "hugetlb", "cpu"].map(version_1));
        files.write("/proc/self/mountinfo", mounts);
        let mut left = |membership: &str| {
            files.write("/proc/7/cgroup", membership);
            let limits = Cgroups::of(&files, "/proc/7").limits(&files, &[size]);
            (limits.memory.as_ref().map(|(left, _)| *left), limits.hugetlb_of(size).map(|limit| limit.left))
        };
        assert_eq!(left("0::/docker/abc/leaf\n"), (Some(800), Some(8000)));
        assert_eq!(left("5:memory:/leaf\n"), (Some(400), None));
        assert_eq!(left("6:cpu,hugetlb:/leaf\n"), (None, Some(4000)));
        assert_eq!(left("7:cpu:/leaf\n"), (None, None));
        assert_eq!(left("0::/docker/abc/leaf\n5:memory:/leaf\n6:hugetlb:/leaf\n"), (Some(400), Some(4000)));
    }

    #[test]
    fn each_cgroup_with_a_limit_is_told_with_both_limits() {
        let (mut files, size) = (WrittenFiles::default(), PageSize::new(2 << 20).unwrap());
        files.write("/proc/7/cgroup", "0::/a/b\n5:hugetlb:/c");
        files.write(
            "/proc/self/mountinfo",
            "30 20 0:26 / /two rw - cgroup2 cgroup2 rw\n31 20 0:27 / /one rw - cgroup cgroup rw,hugetlb",
        );
        for (file, text) in [
            ("/two/a/b/hugetlb.2MB.max", "max"),
            ("/two/a/b/hugetlb.2MB.rsvd.max", "max"),
            ("/two/a/hugetlb.2MB.max", "4194304"),
            ("/two/a/hugetlb.2MB.rsvd.max", "2097152"),
            ("/one/c/hugetlb.2MB.limit_in_bytes", "0"),
            // No limit, as version 1 writes it.
            ("/one/hugetlb.2MB.limit_in_bytes", "4611686018427387904"),
        ] {
            files.write(file, text);
        }
        let found = Cgroups::of(&files, "/proc/7").hugetlb(&files, &[size]);
        let limits: Vec<_> = found.iter().map(|c| (c.directory.as_str(), c.in_use, c.promised)).collect();
        assert_eq!(limits, [("/two/a", Some(4 << 20), Some(2 << 20)), ("/one/c", Some(0), None)]);
        assert_eq!(found[0].promised_file.as_deref(), Some("/two/a/hugetlb.2MB.rsvd.max"));
        assert_eq!(found[1].promised_file, None);
    }

    #[test]
    fn directories_lie_below_the_mount_of_a_part_of_the_hierarchy() {
        let mounts = "30 20 0:26 /docker/abc /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";
        let mut found = Vec::new();
        let mut look = |directory: CgroupDirectory<'_>| found.push(directory.to_string());
        for_each_directory("4:memory:/docker/abc/x/y\n3:cpu:/z\n", mounts, &mut look);
        assert_eq!(found, ["/x/y", "/x", ""].map(|inside| format!("/sys/fs/cgroup/memory{inside}")));
    }

    #[test]
    fn a_cgroup_beside_the_mounted_part_has_no_directory() {
        let found = |membership: &str, mounts: &str| {
            let mut found = Vec::new();
            for_each_directory(membership, mounts, |directory| found.push(directory.to_string()));
            found
        };
        let memory = "30 20 0:26 /docker/abc /one rw - cgroup cgroup rw,memory\n";
        assert!(found("4:memory:/docker/abcd\n", memory).is_empty());
        assert!(found("4:memory:/../x\n", "30 20 0:26 / /own rw - cgroup cgroup rw,memory\n").is_empty());
        let both = format!("{memory}31 20 0:26 /docker /two rw - cgroup cgroup rw,memory\n");
        assert_eq!(found("4:memory:/docker/abcd\n", &both), ["/two/abcd", "/two"]);
    }

    /// A pod's agent sees the limits of another pod by the mount of the host's hierarchy.
    #[test]
    fn limits_of_another_pod_are_read_below_the_mount_of_the_host() {
        let (mut files, size) = (WrittenFiles::default(), PageSize::new(2 << 20).unwrap());
        files.write("/proc/7/cgroup", "0::/../podb/x");
        let own = "30 20 0:26 / /own ro - cgroup2 cgroup rw\n";
        files.write("/proc/self/mountinfo", format!("{own}31 20 0:26 /.. /host ro - cgroup2 cgroup rw"));
        write(&mut files, "/host/podb/x", &[("hugetlb.2MB.max", 9000), ("hugetlb.2MB.current", 1000)]);
        write(&mut files, "/host/podb", &[("memory.max", 900), ("memory.current", 100)]);
        let cgroups = Cgroups::of(&files, "/proc/7");
        let limits = cgroups.limits(&files, &[size]);
        assert_eq!(limits.memory, Some((800, "/host/podb".to_owned())));
        assert_eq!((limits.hugetlb_of(size).map(|limit| limit.left), cgroups.hidden()), (Some(8000), None));
        files.write("/proc/self/mountinfo", own);
        let cgroups = Cgroups::of(&files, "/proc/7");
        assert_eq!((cgroups.limits(&files, &[size]).memory, cgroups.hidden()), (None, Some("/../podb/x")));
    }

    #[test]
    fn a_frozen_cgroup_is_found_in_the_hierarchy_of_version_2_only() {
        let mut files = WrittenFiles::default();
        files.write("/proc/self/mountinfo", MOUNTS);
        let mut frozen = |membership: &str, events: &str| {
            files.write("/proc/7/cgroup", membership);
            files.write("/sys/fs/cgroup/unified/a/b/cgroup.events", events);
            Cgroups::of(&files, "/proc/7").frozen(&files)
        };
        let directory = Some("/sys/fs/cgroup/unified/a/b".to_owned());
        assert_eq!(frozen("4:memory:/x\n0::/a/b", "populated 1\nfrozen 1"), directory);
        assert_eq!(frozen("0::/a/b", "populated 1\nfrozen 0"), None);
        assert_eq!(frozen("0::/a", "frozen 1"), None);
        assert_eq!(frozen("0::/", "frozen 1"), None);
        assert_eq!(frozen("4:memory:/a/b", "frozen 1"), None);
        files.write("/proc/self/mountinfo", "30 20 0:26 /a /c rw - cgroup2 cgroup2 rw");
        files.write("/c/b/cgroup.events", "frozen 1");
        files.write("/proc/7/cgroup", "0::/a/b");
        assert_eq!(Cgroups::of(&files, "/proc/7").frozen(&files).as_deref(), Some("/c/b"));
        assert_eq!(Cgroups::of(&files, "/proc/8").frozen(&files), None);
    }

    #[test]
    fn the_limit_above_which_the_kernel_throttles_is_a_limit() {
        let read = |texts: &'static [(&str, u64)]| {
            move |name: &str| texts.iter().find(|(file, _)| *file == name).map(|(_, limit)| *limit)
        };
        let (old, new) = (MemoryFiles::of(false), MemoryFiles::of(true));
        assert_eq!(new.limit(read(&[("memory.max", 9), ("memory.high", 5)])), Some(5));
        assert_eq!(new.limit(read(&[("memory.high", 5)])), Some(5));
        assert_eq!(new.limit(read(&[])), None);
        assert_eq!(old.limit(read(&[("memory.limit_in_bytes", NO_LIMIT)])), None);
    }

    #[test]
    fn page_cache_that_can_be_dropped_is_left() {
        let (old, new) = (MemoryFiles::of(false), MemoryFiles::of(true));
        let stat = "inactive_file 30\ntotal_inactive_file 50\n";
        assert_eq!((old.left(100, 80, stat), new.left(100, 80, stat)), (70, 50));
        // A program that reads all of its files again and again.
        let hot = "inactive_file 6\nactive_file 60\ntotal_inactive_file 4\ntotal_active_file 40\n";
        assert_eq!((old.left(100, 100, hot), new.left(100, 100, hot)), (24, 36));
        assert_eq!((new.left(100, 180, stat), new.left(100, 20, stat), new.left(100, 80, "")), (0, 100, 20));
    }

    #[test]
    fn hugetlb_files_are_named_as_the_kernel_does() {
        assert_eq!(hugetlb_name(PageSize::new(2 << 20).unwrap()), "2MB");
        assert_eq!(hugetlb_name(PageSize::new(1 << 30).unwrap()), "1GB");
    }
}
