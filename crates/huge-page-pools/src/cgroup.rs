//! Limits that a process's cgroups set, version 1 and 2 (cgroups(7)).

use address_space::PageSize;
use kernel_calls::text::text_of;
use std::path::{Path, PathBuf};

/// Version 1 says "no limit" by the largest number of whole pages (`PAGE_COUNTER_MAX`), which no machine has.
const NO_LIMIT: u64 = 1 << 62;

/// What is left below the tightest limits of a process's cgroups.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CgroupLimits {
    /// Bytes of memory, and the directory that sets them; `None` without a limit.
    pub memory: Option<(u64, PathBuf)>,
    /// Of hugetlb pages, the tightest by size.
    pub hugetlb: Vec<HugetlbLimit>,
}

impl CgroupLimits {
    /// The tightest limit of pages of one size.
    pub fn hugetlb_of(&self, size: PageSize) -> Option<&HugetlbLimit> {
        self.hugetlb.iter().find(|limit| limit.size == size)
    }
}

/// A limit of hugetlb pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HugetlbLimit {
    /// Which pages.
    pub size: PageSize,
    /// Bytes that can still be had.
    pub left: u64,
    /// The file that sets it.
    pub file: PathBuf,
}

/// A process's cgroups, and where they are to be found. It takes longer to find them than to read their limits.
#[derive(Clone, Debug, Default)]
pub struct Cgroups {
    membership: String,
    mounts: String,
}

impl Cgroups {
    /// The cgroups of a process. What cannot be read counts as none.
    pub fn of(pid: i32) -> Self {
        Self {
            membership: text_of(format!("/proc/{pid}/cgroup")).unwrap_or_default(),
            mounts: text_of("/proc/self/mountinfo").unwrap_or_default(),
        }
    }

    /// Reads their limits. What cannot be read counts as no limit; the kernel has the last word.
    pub fn limits(&self, sizes: &[PageSize]) -> CgroupLimits {
        limits_of(&self.membership, &self.mounts, sizes)
    }
}

fn limits_of(membership: &str, mounts: &str, sizes: &[PageSize]) -> CgroupLimits {
    let mut limits = CgroupLimits::default();
    for line in membership.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next()) else { continue };
        let version_2 = controllers.is_empty();
        let has = |name: &str| controllers.split(',').any(|c| c == name);
        for name in ["memory", "hugetlb"].into_iter().filter(|name| version_2 || has(name)) {
            let Some((root, mounted_root)) = mount_of(mounts, (!version_2).then_some(name)) else { continue };
            let inside = path.strip_prefix(mounted_root.trim_end_matches('/')).unwrap_or(path);
            for directory in ancestors(&root, inside) {
                if name == "memory" {
                    take_memory(&mut limits, &directory, version_2);
                } else {
                    sizes.iter().for_each(|size| take_hugetlb(&mut limits, &directory, *size, version_2));
                }
            }
        }
    }
    limits
}

/// Mount point and mounted root of the cgroup2 hierarchy, or of the version 1 hierarchy with a controller.
fn mount_of(mountinfo: &str, controller: Option<&str>) -> Option<(PathBuf, String)> {
    mountinfo.lines().find_map(|line| {
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
        fits.then(|| (PathBuf::from(point), root.to_owned()))
    })
}

/// The cgroup's directory and those above it, up to the root of the hierarchy.
fn ancestors(root: &Path, inside: &str) -> Vec<PathBuf> {
    let leaf = root.join(inside.trim_start_matches('/'));
    leaf.ancestors().take_while(|path| path.starts_with(root)).map(Path::to_owned).collect()
}

fn number(path: &Path) -> Option<u64> {
    text_of(path).ok()?.trim().parse().ok()
}

fn take_memory(limits: &mut CgroupLimits, directory: &Path, version_2: bool) {
    let (limit, usage) =
        if version_2 { ("memory.max", "memory.current") } else { ("memory.limit_in_bytes", "memory.usage_in_bytes") };
    // Without a limit the rest need not be read: the kernel adds up `memory.stat` from all processors for each reader.
    let Some(limit) = number(&directory.join(limit)).filter(|limit| *limit < NO_LIMIT) else { return };
    let Some(usage) = number(&directory.join(usage)) else { return };
    // Page cache that nobody has used lately goes at once when the limit is reached.
    let stat = text_of(directory.join("memory.stat")).unwrap_or_default();
    let name = if version_2 { "inactive_file " } else { "total_inactive_file " };
    let reclaimable = stat.lines().find_map(|l| l.strip_prefix(name)).and_then(|n| n.trim().parse().ok()).unwrap_or(0);
    let left = limit.saturating_sub(usage.saturating_sub(reclaimable));
    if limits.memory.as_ref().is_none_or(|(so_far, _)| left < *so_far) {
        limits.memory = Some((left, directory.to_owned()));
    }
}

fn take_hugetlb(limits: &mut CgroupLimits, directory: &Path, size: PageSize, version_2: bool) {
    let name = hugetlb_name(size);
    let pairs = if version_2 {
        [("max", "current"), ("rsvd.max", "rsvd.current")]
    } else {
        [("limit_in_bytes", "usage_in_bytes"), ("rsvd.limit_in_bytes", "rsvd.usage_in_bytes")]
    };
    for (limit, usage) in pairs {
        let file = |what: &str| directory.join(format!("hugetlb.{name}.{what}"));
        let set_by = file(limit);
        let Some(limit) = number(&set_by).filter(|limit| *limit < NO_LIMIT) else { continue };
        let Some(usage) = number(&file(usage)) else { continue };
        let left = limit.saturating_sub(usage);
        let found = HugetlbLimit { size, left, file: set_by };
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
    use std::fs;

    const MOUNTS: &str = "\
30 20 0:26 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
31 20 0:27 /docker/abc /sys/fs/cgroup/hugetlb rw,relatime shared:5 - cgroup cgroup rw,hugetlb
32 20 0:28 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
";

    #[test]
    fn hierarchies_are_found_by_controller() {
        assert_eq!(mount_of(MOUNTS, Some("memory")).unwrap().0, Path::new("/sys/fs/cgroup/memory"));
        assert_eq!(mount_of(MOUNTS, Some("hugetlb")).unwrap().1, "/docker/abc");
        assert_eq!(mount_of(MOUNTS, None).unwrap().0, Path::new("/sys/fs/cgroup/unified"));
        assert!(mount_of(MOUNTS, Some("cpu")).is_none());
    }

    #[test]
    fn every_ancestor_counts() {
        let all = ancestors(Path::new("/sys/fs/cgroup"), "/a/b");
        assert_eq!(all, ["/sys/fs/cgroup/a/b", "/sys/fs/cgroup/a", "/sys/fs/cgroup"].map(PathBuf::from));
    }

    #[test]
    fn the_tightest_memory_limit_wins() {
        let root = std::env::temp_dir().join(format!("pagelift-cgroup-{}", std::process::id()));
        let leaf = root.join("a");
        fs::create_dir_all(&leaf).unwrap();
        let write = |directory: &Path, max: &str, current: &str| {
            fs::write(directory.join("memory.max"), max).unwrap();
            fs::write(directory.join("memory.current"), current).unwrap();
            fs::write(directory.join("memory.stat"), "anon 1\ninactive_file 100\n").unwrap();
        };
        write(&leaf, "max", "500");
        write(&root, "1000", "600");
        let mut limits = CgroupLimits::default();
        ancestors(&root, "a").iter().for_each(|directory| take_memory(&mut limits, directory, true));
        fs::remove_dir_all(&root).unwrap();
        assert_eq!(limits.memory, Some((500, root)));
    }

    #[test]
    fn the_tightest_hugetlb_limit_wins_and_is_named() {
        let root = tempfile::tempdir().unwrap();
        let leaf = root.path().join("a");
        fs::create_dir_all(&leaf).unwrap();
        let size = PageSize::new(2 << 20).unwrap();
        for (folder, file, text) in [
            (&*leaf, "max", "9000000"),
            (&*leaf, "current", "1000000"),
            (&*leaf, "rsvd.max", "max"),
            (&*leaf, "rsvd.current", "0"),
            (root.path(), "rsvd.max", "2000000"),
            (root.path(), "rsvd.current", "2000000"),
        ] {
            fs::write(folder.join(format!("hugetlb.2MB.{file}")), text).unwrap();
        }
        let mut limits = CgroupLimits::default();
        take_hugetlb(&mut limits, &leaf, size, true);
        assert_eq!(limits.hugetlb_of(size).map(|limit| limit.left), Some(8_000_000));
        take_hugetlb(&mut limits, root.path(), size, true);
        let found = HugetlbLimit { size, left: 0, file: root.path().join("hugetlb.2MB.rsvd.max") };
        assert_eq!(limits.hugetlb, [found]);
    }

    /// Writes the files of one directory.
    fn write(directory: &Path, files: &[(&str, u64)]) {
        fs::create_dir_all(directory).unwrap();
        files.iter().for_each(|(name, value)| fs::write(directory.join(name), format!("{value}\n")).unwrap());
    }

    #[test]
    fn of_equal_limits_the_first_is_named_and_a_looser_one_never() {
        let (root, size) = (tempfile::tempdir().unwrap(), PageSize::new(2 << 20).unwrap());
        for (name, limit) in [("tight", 1000), ("equal", 1000), ("loose", 1001), ("none", NO_LIMIT)] {
            let memory = [("memory.max", limit), ("memory.current", 0)];
            write(&root.path().join(name), &memory);
            write(&root.path().join(name), &[("hugetlb.2MB.max", limit), ("hugetlb.2MB.current", 0)]);
        }
        let found = |order: &[&str]| {
            let mut limits = CgroupLimits::default();
            for directory in order.iter().map(|name| root.path().join(name)) {
                take_memory(&mut limits, &directory, true);
                take_hugetlb(&mut limits, &directory, size, true);
            }
            let named = |path: &Path| path.strip_prefix(root.path()).unwrap().to_str().unwrap().to_owned();
            let hugetlb = limits.hugetlb_of(size).map(|limit| named(limit.file.parent().unwrap()));
            assert_eq!(limits.memory.map(|(_, directory)| named(&directory)), hugetlb);
            hugetlb
        };
        let tight = Some("tight".to_owned());
        assert_eq!(found(&["tight", "equal"]), tight);
        assert_eq!(found(&["tight", "loose"]), tight);
        assert_eq!(found(&["loose", "tight", "none"]), tight);
        assert_eq!(found(&["none"]), None);
    }

    #[test]
    fn limits_are_those_of_the_hierarchies_that_the_process_is_in() {
        let (root, size) = (tempfile::tempdir().unwrap(), PageSize::new(2 << 20).unwrap());
        let at = |path: &str| root.path().join(path);
        write(&at("unified/leaf"), &[("memory.max", 900), ("memory.current", 100)]);
        write(&at("unified/leaf"), &[("hugetlb.2MB.max", 9000), ("hugetlb.2MB.current", 1000)]);
        write(&at("memory/leaf"), &[("memory.limit_in_bytes", 500), ("memory.usage_in_bytes", 100)]);
        let hugetlb = [("hugetlb.2MB.limit_in_bytes", 5000), ("hugetlb.2MB.usage_in_bytes", 1000)];
        write(&at("hugetlb/leaf"), &hugetlb);
        write(&at("cpu/leaf"), &[("memory.limit_in_bytes", 1), ("memory.usage_in_bytes", 0)]);
        write(&at("cpu/leaf"), &[("hugetlb.2MB.limit_in_bytes", 1), ("hugetlb.2MB.usage_in_bytes", 0)]);
        let version_1 = |name: &str| format!("31 20 0:27 / {} rw - cgroup cgroup rw,{name}\n", at(name).display());
        let mut mounts = format!("30 20 0:26 /docker/abc {} rw - cgroup2 cgroup2 rw\n", at("unified").display());
        mounts.extend(["memory", "hugetlb", "cpu"].map(version_1));
        let left = |membership: &str| {
            let limits = limits_of(membership, &mounts, &[size]);
            (limits.memory.as_ref().map(|(left, _)| *left), limits.hugetlb_of(size).map(|limit| limit.left))
        };
        assert_eq!(left("0::/docker/abc/leaf\n"), (Some(800), Some(8000)));
        assert_eq!(left("5:memory:/leaf\n"), (Some(400), None));
        assert_eq!(left("6:cpu,hugetlb:/leaf\n"), (None, Some(4000)));
        assert_eq!(left("7:cpu:/leaf\n"), (None, None));
        assert_eq!(left("0::/docker/abc/leaf\n5:memory:/leaf\n6:hugetlb:/leaf\n"), (Some(400), Some(4000)));
    }

    #[test]
    fn hugetlb_files_are_named_as_the_kernel_does() {
        assert_eq!(hugetlb_name(PageSize::new(2 << 20).unwrap()), "2MB");
        assert_eq!(hugetlb_name(PageSize::new(1 << 30).unwrap()), "1GB");
    }
}
