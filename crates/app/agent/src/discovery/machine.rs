//! Reads pressure, memory and limits of the machine and of a process's cgroups.

use crate::decision::{CgroupRoom, Conditions};
use machine_facts::{Cgroups, Controller, Files, MemoryFiles, meminfo_bytes};

const MEMINFO: &str = "/proc/meminfo";
/// The boot ID that PID 1 sees, then the one that this process sees. systemd-nspawn gives each container a separate boot ID, but
/// a unit whose sandbox mounts /proc again sees the host's.
const BOOT: [&str; 2] = ["/proc/1/root/proc/sys/kernel/random/boot_id", "/proc/sys/kernel/random/boot_id"];

/// Names of the machine and of its present run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// machine-id(5); if there is none, the boot.
    pub id: String,
    /// The boot.
    pub boot: String,
}

impl Machine {
    /// Reads both.
    pub fn read(files: &impl Files) -> Self {
        let line = |path| files.text(path).map(|text| text.trim().to_owned()).filter(|text| !text.is_empty());
        let boot = BOOT.into_iter().find_map(line).unwrap_or_default();
        Self { id: line("/etc/machine-id").unwrap_or_else(|| boot.clone()), boot }
    }
}

/// Reads the conditions for process `pid`.
pub fn conditions(files: &impl Files, pid: i32) -> Conditions {
    let cgroups = Cgroups::of(files, &format!("/proc/{pid}"));
    let memory = files.text(MEMINFO).unwrap_or_default();
    let pressure = |path: &str| files.text(path).and_then(|text| some_average(&text));
    let mut conditions = Conditions {
        cpu_pressure: pressure("/proc/pressure/cpu"),
        memory_pressure: pressure("/proc/pressure/memory"),
        available: meminfo_bytes(&memory, "MemAvailable").unwrap_or(0),
        // Pages of pools are never available.
        memory: meminfo_bytes(&memory, "MemTotal")
            .unwrap_or(0)
            .saturating_sub(meminfo_bytes(&memory, "Hugetlb").unwrap_or(0)),
        hidden_cgroup: cgroups.hidden().map(str::to_owned),
        ..Conditions::default()
    };
    let mut is_own = true;
    cgroups.for_each_directory(|found| {
        if found.controller != Controller::Memory {
            return;
        }
        let directory = found.to_string();
        // The process's own cgroup comes first in each hierarchy.
        if found.version_2 && std::mem::take(&mut is_own) {
            conditions.cgroup_cpu_pressure = pressure(&format!("{directory}/cpu.pressure"));
            conditions.cgroup_memory_pressure = pressure(&format!("{directory}/memory.pressure"));
        }
        let room = room_in(files, &directory, found.version_2);
        let share = |room: &CgroupRoom| room.left as f64 / room.limit.max(1) as f64;
        let is_nearer = |room: &CgroupRoom| conditions.cgroup.as_ref().is_none_or(|other| share(room) < share(other));
        if let Some(room) = room.filter(is_nearer) {
            conditions.cgroup = Some(room);
        }
    });
    conditions
}

fn room_in(files: &impl Files, directory: &str, version_2: bool) -> Option<CgroupRoom> {
    let names = MemoryFiles::of(version_2);
    let limit = names.limit(|name| files.number(&format!("{directory}/{name}")))?;
    let usage = files.number(&format!("{directory}/{}", names.usage))?;
    let stat = files.text(&format!("{directory}/memory.stat")).unwrap_or_default();
    Some(CgroupRoom { left: names.left(limit, usage, &stat), limit, directory: directory.to_owned() })
}

/// `avg10` of the line `some`, in percent.
fn some_average(text: &str) -> Option<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix("some "))?;
    let average = line.split(' ').find_map(|field| field.strip_prefix("avg10="))?;
    average.parse().ok().filter(|average: &f64| average.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    struct Written(BTreeMap<&'static str, &'static str>);

    impl Files for Written {
        fn text(&self, path: &str) -> Option<String> {
            self.0.get(path).map(|text| (*text).to_owned())
        }

        fn names_in(&self, _: &str) -> Vec<String> {
            Vec::new()
        }
    }

    #[test]
    fn pressure_memory_and_the_nearest_limit_are_read() {
        let files = Written(BTreeMap::from([
            ("/proc/7/cgroup", "0::/a/b"),
            ("/proc/self/mountinfo", "30 20 0:26 / /c rw - cgroup2 cgroup2 rw"),
            ("/proc/meminfo", "MemTotal:  1000 kB\nMemFree: 1 kB\nMemAvailable: 500 kB\n"),
            ("/proc/pressure/cpu", "some avg10=12.50 avg60=1.00 avg300=0.10 total=1\nfull avg10=99.00\n"),
            ("/proc/pressure/memory", "full avg10=1.0\n"),
            ("/c/a/b/cpu.pressure", "some avg10=90.00 avg60=0 avg300=0 total=0"),
            ("/c/a/b/memory.max", "1000"),
            ("/c/a/b/memory.current", "500"),
            ("/c/a/memory.max", "2000"),
            ("/c/a/memory.current", "1900"),
            ("/c/a/memory.stat", "inactive_file 50"),
        ]));
        let found = conditions(&files, 7);
        assert_eq!((found.cpu_pressure, found.memory_pressure), (Some(12.5), None));
        assert_eq!((found.cgroup_cpu_pressure, found.cgroup_memory_pressure), (Some(90.0), None));
        assert_eq!((found.available, found.memory), (500 << 10, 1000 << 10));
        assert_eq!(found.cgroup, Some(CgroupRoom { left: 150, limit: 2000, directory: "/c/a".to_owned() }));
    }

    #[test]
    fn limits_are_read_below_a_mount_of_the_host() {
        let own = "30 20 0:26 / /sys/fs/cgroup ro - cgroup2 cgroup rw\n";
        let both =
            "30 20 0:26 / /sys/fs/cgroup ro - cgroup2 cgroup rw\n31 20 0:26 /../.. /host ro - cgroup2 cgroup rw\n";
        let mut files = Written(BTreeMap::from([
            ("/proc/7/cgroup", "0::/../../kubepods/a"),
            ("/proc/self/mountinfo", both),
            ("/host/kubepods/a/cpu.pressure", "some avg10=90.00 avg60=0 avg300=0 total=0"),
            ("/host/kubepods/memory.max", "2000"),
            ("/host/kubepods/memory.current", "1900"),
        ]));
        let found = conditions(&files, 7);
        assert_eq!((found.cgroup_cpu_pressure, found.hidden_cgroup), (Some(90.0), None));
        assert_eq!(found.cgroup.map(|room| room.directory).as_deref(), Some("/host/kubepods"));
        files.0.insert("/proc/self/mountinfo", own);
        let found = conditions(&files, 7);
        assert_eq!((found.cgroup, found.hidden_cgroup.as_deref()), (None, Some("/../../kubepods/a")));
    }

    #[test]
    fn pressure_is_read_in_version_2_if_memory_is_limited_in_version_1() {
        let files = Written(BTreeMap::from([
            ("/proc/7/cgroup", "4:memory:/m\n0::/a"),
            (
                "/proc/self/mountinfo",
                "30 20 0:26 / /one rw - cgroup cgroup rw,memory\n31 20 0:27 / /two rw - cgroup2 cgroup2 rw",
            ),
            ("/two/a/cpu.pressure", "some avg10=90.00 avg60=0 avg300=0 total=0"),
        ]));
        assert_eq!(conditions(&files, 7).cgroup_cpu_pressure, Some(90.0));
    }

    #[test]
    fn a_machine_without_an_id_is_known_by_its_boot() {
        let files = Written(BTreeMap::from([("/proc/sys/kernel/random/boot_id", "b\n"), ("/etc/machine-id", "\n")]));
        assert_eq!(Machine::read(&files), Machine { id: "b".to_owned(), boot: "b".to_owned() });
    }

    #[test]
    fn a_unit_that_sees_the_boot_of_the_host_takes_that_of_its_container() {
        let [first, own] = BOOT;
        let files = Written(BTreeMap::from([(first, "container\n"), (own, "host\n")]));
        assert_eq!(Machine::read(&files).boot, "container");
    }
}
