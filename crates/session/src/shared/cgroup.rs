//! Room below the limits of a process's memory cgroups.

use machine_facts::{Cgroups, Controller, Files, MemoryFiles};

/// Bytes left below the tightest limit of a process (`memory.max` and `memory.high`, or `memory.limit_in_bytes`), and the
/// directory that sets it; `None` without a limit.
pub(super) fn memory_left(files: &impl Files, pid: i32) -> Option<(u64, String)> {
    let mut tightest: Option<(u64, String)> = None;
    Cgroups::of(files, &format!("/proc/{pid}")).for_each_directory(|found| {
        if found.controller != Controller::Memory {
            return;
        }
        let (names, directory) = (MemoryFiles::of(found.version_2), found.to_string());
        let number = |name: &str| files.number(&format!("{directory}/{name}"));
        let Some((limit, usage)) = names.limit(number).zip(number(names.usage)) else { return };
        let stat = files.text(&format!("{directory}/memory.stat")).unwrap_or_default();
        let left = names.left(limit, usage, &stat);
        if tightest.as_ref().is_none_or(|(so_far, _)| left < *so_far) {
            tightest = Some((left, directory));
        }
    });
    tightest
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    struct Written(BTreeMap<String, String>);

    impl Files for Written {
        fn text(&self, path: &str) -> Option<String> {
            self.0.get(path).cloned()
        }

        fn names_in(&self, _: &str) -> Vec<String> {
            Vec::new()
        }
    }

    #[test]
    fn the_tightest_of_both_limits_of_all_cgroups_counts() {
        let mut files = Written(BTreeMap::new());
        let mut write = |path: &str, text: &str| files.0.insert(path.to_owned(), text.to_owned());
        write("/proc/7/cgroup", "0::/a");
        write("/proc/self/mountinfo", "30 20 0:26 / /c rw - cgroup2 cgroup2 rw");
        for (directory, max, high) in [("/c/a", "1000", "800"), ("/c", "900", "max")] {
            write(&format!("{directory}/memory.max"), max);
            write(&format!("{directory}/memory.high"), high);
            write(&format!("{directory}/memory.current"), "600");
            write(&format!("{directory}/memory.stat"), "anon 1\ninactive_file 100");
        }
        assert_eq!(memory_left(&files, 7), Some((300, "/c/a".to_owned())));
        files.0.insert("/c/a/memory.high".to_owned(), "max".to_owned());
        assert_eq!(memory_left(&files, 7), Some((400, "/c".to_owned())));
        assert_eq!(memory_left(&files, 8), None);
        // From the cgroup namespace of another container.
        files.0.insert("/proc/7/cgroup".to_owned(), "0::/../a".to_owned());
        let host = "30 20 0:26 / /own rw - cgroup2 cgroup2 rw\n31 20 0:26 /.. /c rw - cgroup2 cgroup2 rw";
        files.0.insert("/proc/self/mountinfo".to_owned(), host.to_owned());
        assert_eq!(memory_left(&files, 7), Some((400, "/c".to_owned())));
    }
}
