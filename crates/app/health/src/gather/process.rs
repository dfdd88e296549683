//! A process's settings and limits, from its files in /proc that every user may read.

use crate::facts::PermissionFacts;
use machine_facts::{Files, MOST_NODES, numbers_in};
use process_view::printable;

/// The kernel's default of `vm.max_map_count`.
const USUAL_MOST_MAPPINGS: u64 = 65530;

/// A field of `/proc/PID/status`.
pub fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

/// A field that counts kB, in bytes.
pub fn field_bytes(status: &str, name: &str) -> Option<u64> {
    field(status, name)?.strip_suffix(" kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// The parent; `None` for the first process, and if it is in another PID namespace.
pub fn parent(files: &impl Files, pid: i32) -> Option<i32> {
    let status = files.text(&format!("/proc/{pid}/status"))?;
    field(&status, "PPid")?.parse().ok().filter(|parent| *parent > 0)
}

/// The name the kernel knows a process by, fit to be printed.
pub fn name(files: &impl Files, pid: i32) -> String {
    let name = files.text(&format!("/proc/{pid}/comm")).unwrap_or_else(|| "?".to_owned());
    printable(name.trim_end_matches('\n'))
}

/// The rights of process `pid`.
pub fn permission(files: &impl Files, pid: i32, status: &str, mappings: Option<u64>) -> PermissionFacts {
    let limits = files.text(&format!("/proc/{pid}/limits")).unwrap_or_default();
    let cgroup = files.text(&format!("/proc/{pid}/cgroup")).unwrap_or_default();
    PermissionFacts {
        ptrace_scope: files.number("/proc/sys/kernel/yama/ptrace_scope"),
        selinux_enforces: files.number("/sys/fs/selinux/enforce").map(|enforces| enforces == 1),
        seccomp: field(status, "Seccomp").and_then(|mode| mode.parse().ok()),
        allowed_nodes: field(status, "Mems_allowed_list").map(|list| numbers_in(list, MOST_NODES)),
        lockable: lockable(&limits),
        locked: field_bytes(status, "VmLck").unwrap_or(0),
        most_mappings: files.number("/proc/sys/vm/max_map_count").unwrap_or(USUAL_MOST_MAPPINGS),
        mappings,
        // Without systemd (sd_booted(3)) nothing can be asked about a unit.
        unit: unit(&cgroup).filter(|_| files.names_in("/run/systemd").iter().any(|name| name == "system")),
    }
}

/// The soft limit of `Max locked memory`, unless it is `unlimited` (`/proc/PID/limits`).
fn lockable(limits: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// The innermost service that a cgroup's path names.
fn unit(cgroup: &str) -> Option<String> {
    let path = cgroup
        .lines()
        .find_map(|line| line.strip_prefix("0::").or_else(|| line.split_once("name=systemd:").map(|(_, p)| p)))?;
    let is_service = |part: &&str| part.ends_with(".service") && !part.starts_with("user@");
    path.rsplit('/').find(is_service).map(printable)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_units_and_fields_are_read() {
        let limits = "Limit  Soft Limit  Hard Limit  Units\nMax locked memory         8388608   8388608   bytes\n";
        assert_eq!(lockable(limits), Some(8 << 20));
        assert_eq!(lockable("Max locked memory  unlimited unlimited bytes"), None);
        assert_eq!(unit("0::/system.slice/mariadb.service\n").as_deref(), Some("mariadb.service"));
        assert_eq!(unit("3:cpu:/a.service\n1:name=systemd:/b.service/c\n").as_deref(), Some("b.service"));
        assert_eq!(unit("0::/user.slice/user@0.service/x.scope"), None);
        let status = "Name:\tx\nVmLck:\t     4 kB\nSeccomp:\t2\nSeccomp_filters:\t1\n";
        assert_eq!((field(status, "Seccomp"), field_bytes(status, "VmLck")), (Some("2"), Some(4096)));
    }
}
