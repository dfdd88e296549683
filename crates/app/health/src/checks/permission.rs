//! The rights of the process and its user.

use super::{fine, found};
use crate::facts::{Attempt, Facts, Feature};
use crate::finding::{CheckOutcome, Fix, Severity};
use address_space::format_bytes;
use foreign_text::quoted;

/// `EACCES` (errno(3)), by which SELinux refuses.
const EACCES: i32 = 13;
const SCOPE: &str = "kernel.yama.ptrace_scope";
/// Read after 99-sysctl.conf (sysctl.d(5)).
const LAST_SYSCTL: &str = "/etc/sysctl.d/zz-pagelift.conf";

/// ptrace(2): Yama, seccomp filters of containers, missing capabilities.
pub fn ptrace(facts: &Facts) -> Vec<CheckOutcome> {
    let scope = facts.permission.ptrace_scope.unwrap_or(0);
    match (scope, facts.attempt(Feature::Trace)) {
        (3.., _) => found(
            Severity::Problem,
            "no process may trace another",
            format!("{SCOPE} = {scope}"),
            "0 or 1",
            "`pagelift attach` is impossible; `pagelift run` lifts dynamically linked programs from inside (--via preload)",
            Some(Fix::write(format!("{SCOPE} = 1"), LAST_SYSCTL).with_note(
                "then reboot: Linux does not lower 3 before that. Files of sysctl.d are read in the order of their names, so that \
                 this one overrides the others; remove a line in /etc/sysctl.conf, which some systems read last",
            )),
        ),
        (_, Some(Attempt::Refused { .. })) if scope == 2 && !facts.is_root => found(
            Severity::Problem,
            "only root may trace",
            format!("{SCOPE} = 2"),
            "0 or 1, or root",
            "`pagelift run` lifts dynamically linked programs from inside only (--via preload)",
            Some(Fix::sysctl(SCOPE, 1)),
        ),
        (_, Some(Attempt::Refused { words, .. })) => found(
            Severity::Problem,
            "tracing is refused",
            format!("ptrace of an own child: {words}"),
            "permitted",
            "`pagelift attach` is impossible; `pagelift run` lifts dynamically linked programs from inside (--via preload)",
            Some(Fix::by_hand(
                "in a container: --cap-add SYS_PTRACE, or a seccomp profile that permits ptrace; SELinux: setsebool \
                 deny_ptrace off",
            )),
        ),
        (1.., Some(Attempt::Works)) if !facts.is_root && facts.running().is_some() => found(
            Severity::Note,
            "only root may attach to this process",
            format!("{SCOPE} = {scope}"),
            "0, or root",
            "the process is no child of this shell",
            Some(Fix::user(format!("sudo pagelift attach {}", facts.running().map_or(0, |running| running.pid)))),
        ),
        (_, Some(Attempt::Works)) => fine("an own child can be traced"),
        _ => vec![CheckOutcome::NotSeen { what: "whether a child can be traced".to_owned(), root_sees: false }],
    }
}

/// MemoryDenyWriteExecute, `PR_SET_MDWE`, SELinux' execmem.
pub fn executable_memory(facts: &Facts) -> Vec<CheckOutcome> {
    let Some(Attempt::Refused { errno, words }) = facts.attempt(Feature::ExecutableCopy) else {
        return match facts.works(Feature::ExecutableCopy) {
            true => fine("copies of code can be made executable"),
            false => Vec::new(),
        };
    };
    let by_selinux = errno == EACCES && facts.permission.selinux_enforces == Some(true);
    let (by, fix) = match by_selinux {
        true => ("SELinux, which enforces its policy", "the boolean selinuxuser_execmem, or a policy with execmem"),
        false => ("MemoryDenyWriteExecute of systemd, or PR_SET_MDWE", "MemoryDenyWriteExecute=no in the unit"),
    };
    found(
        Severity::Problem,
        "no copy of code can be made executable",
        format!("mprotect(PROT_EXEC) of written memory: {words}; by {by}"),
        "permitted, or code that shows a file",
        "code cannot be lifted by --pages hugetlb or thp; the page cache (--pages file) and images can",
        Some(Fix::by_hand(format!("pagelift image setup, pagelift image add FILE; or {fix}"))),
    )
}

/// A filter that the process has.
pub fn seccomp(facts: &Facts) -> Vec<CheckOutcome> {
    let (Some(mode), Some(running)) = (facts.permission.seccomp, facts.running()) else { return Vec::new() };
    if mode == 0 {
        return fine("no seccomp filter");
    }
    let fix = facts.permission.unit.as_ref().map(|unit| {
        Fix::user(format!("systemctl show -p SystemCallFilter,MemoryDenyWriteExecute -- {}", quoted(unit)))
            .with_note("shows what systemd set")
    });
    found(
        Severity::Note,
        "the process has a seccomp filter",
        format!("Seccomp: {mode} in /proc/{}/status", running.pid),
        "a filter that permits mmap, mremap and mprotect",
        "`pagelift attach` makes its calls under this filter; if the filter forbids one, it refuses before any change",
        fix,
    )
}

/// `vm.max_map_count`.
pub fn mappings(facts: &Facts) -> Vec<CheckOutcome> {
    let most = facts.permission.most_mappings;
    let Some(now) = facts.permission.mappings else { return Vec::new() };
    if now.saturating_mul(4) < most.saturating_mul(3) {
        return fine(format!("{now} of {most} mappings"));
    }
    found(
        Severity::Problem,
        "the process has nearly all the mappings that it may have",
        format!("{now} mappings, vm.max_map_count = {most}"),
        "fewer than three quarters",
        "lifting splits mappings; at the limit mmap, and with it malloc and thread starts, fail with ENOMEM",
        Some(Fix::sysctl("vm.max_map_count", most.saturating_mul(2))),
    )
}

/// `RLIMIT_MEMLOCK`, if the process has nearly used it up.
pub fn memlock(facts: &Facts) -> Vec<CheckOutcome> {
    let (Some(lockable), Some(running)) = (facts.permission.lockable, facts.running()) else { return Vec::new() };
    let locked = facts.permission.locked;
    if locked == 0 || locked.saturating_mul(4) < lockable.saturating_mul(3) {
        return fine(format!("{} of {} locked", format_bytes(locked), format_bytes(lockable)));
    }
    found(
        Severity::Advice,
        "the process has locked nearly all the memory that it may lock",
        format!("{} of {}", format_bytes(locked), format_bytes(lockable)),
        "room for more, or no limit",
        "mlock, io_uring and pool pages by SHM_HUGETLB fail beyond it",
        Some(
            Fix::root(format!("prlimit --pid {} --memlock=unlimited", running.pid))
                .with_note("LimitMEMLOCK=infinity in its unit, or /etc/security/limits.conf, keeps it"),
        ),
    )
}
