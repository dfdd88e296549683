//! Conditions under which no process, or not this one, is lifted.

use super::facts::{Conditions, Program, Standing};
use super::refusal::{Reason, Refusal};
use crate::rules::{Settings, Share, Size, WeekTime};

/// Programs that a machine depends on, by the names of their files.
pub const BUILT_IN: [&str; 24] = [
    "systemd",
    "systemd-journald",
    "systemd-logind",
    "systemd-udevd",
    "systemd-networkd",
    "systemd-resolved",
    "dbus-daemon",
    "dbus-broker",
    "dbus-broker-launch",
    "udevd",
    "init",
    "kubelet",
    "containerd",
    "containerd-shim",
    "containerd-shim-runc-v2",
    "dockerd",
    "crio",
    "conmon",
    "runc",
    "crun",
    "podman",
    "sshd",
    "pagelift",
    "pagelift-measure",
];
/// Prefixes of the names of further such programs.
pub const BUILT_IN_FAMILIES: [&str; 6] = ["systemd-", "sshd-", "containerd-shim", "kube-", "k3s", "rke2"];
/// Policies of sched(7) for real time: SCHED_FIFO, SCHED_RR, SCHED_DEADLINE.
const REAL_TIME: [(u32, &str); 3] = [(1, "SCHED_FIFO"), (2, "SCHED_RR"), (6, "SCHED_DEADLINE")];
/// A cgroup with less than this share of its limit left is not burdened.
const LEAST_ROOM: f64 = 0.1;

/// True for a scheduling policy of real time.
pub fn is_real_time(policy: u32) -> bool {
    REAL_TIME.iter().any(|(number, _)| *number == policy)
}

/// Why this process is not lifted, whatever its rule says.
pub fn of_process(pid: i32, program: &Program, standing: &Standing) -> Option<Refusal> {
    let refusal = |reason, text: String| Some(Refusal::new(reason, text));
    if pid == 1 {
        return refusal(Reason::Init, "PID 1, on which the machine or the container depends".to_owned());
    }
    if standing.is_kernel_thread {
        return refusal(Reason::KernelThread, "a thread of the kernel".to_owned());
    }
    if standing.is_own_line {
        return refusal(Reason::OwnLine, "the agent itself, or a process above it".to_owned());
    }
    let name = program.file_name();
    if BUILT_IN.contains(&name) || BUILT_IN_FAMILIES.iter().any(|start| name.starts_with(start)) {
        return refusal(Reason::BuiltIn, format!("{name} is a program that the machine depends on"));
    }
    if let Some(tracer) = standing.traced_by {
        return refusal(Reason::Traced, format!("traced by process {tracer}; needed: no tracer"));
    }
    if let Some((_, policy)) = REAL_TIME.iter().find(|(number, _)| *number == standing.scheduling) {
        return refusal(
            Reason::RealTime,
            format!("found {policy}; needed: ordinary scheduling, since a lift pauses it"),
        );
    }
    if standing.is_closed {
        return refusal(
            Reason::Closed,
            "its memory is closed to its own user: PR_SET_DUMPABLE, or a change of its user without an exec".to_owned(),
        );
    }
    None
}

/// Why nothing is lifted now, in this cgroup or on the whole machine.
pub fn of_machine(now: &Conditions, settings: &Settings) -> Option<Refusal> {
    let pressures = [
        (Reason::CpuPressure, "CPU pressure of the machine", now.cpu_pressure, settings.max_cpu_pressure),
        (Reason::CpuPressure, "CPU pressure of its cgroup", now.cgroup_cpu_pressure, settings.max_cpu_pressure),
        (Reason::MemoryPressure, "memory pressure of the machine", now.memory_pressure, settings.max_memory_pressure),
        (
            Reason::MemoryPressure,
            "memory pressure of its cgroup",
            now.cgroup_memory_pressure,
            settings.max_memory_pressure,
        ),
    ];
    for (reason, what, found, most) in pressures {
        if let Some(found) = found.filter(|found| *found > most.ratio() * 100.0) {
            let found = Share::percent(found);
            return Some(Refusal::new(reason, format!("{what} is {found} (some avg10); needed: at most {most}")));
        }
    }
    let least = settings.min_free_memory;
    if (now.available as f64) < now.memory as f64 * least.ratio() {
        let found = format!("{} of {} of memory are available", Size(now.available), Size(now.memory));
        return Some(Refusal::new(Reason::LowMemory, format!("{found}; needed: at least {least}")));
    }
    if let Some(path) = &now.hidden_cgroup {
        let text = format!(
            "its cgroup {path} is outside of the mounted hierarchies, so that its limits are unknown; fix: mount the host's \
             /sys/fs/cgroup for the agent, or run it in the host's cgroup namespace"
        );
        return Some(Refusal::new(Reason::CgroupHidden, text));
    }
    let room = now.cgroup.as_ref().filter(|room| (room.left as f64) < room.limit as f64 * LEAST_ROOM)?;
    let found = format!("{} are left below the limit of {} of {}", Size(room.left), Size(room.limit), room.directory);
    Some(Refusal::new(Reason::CgroupLimit, format!("{found}; needed: at least {}", Share::percent(LEAST_ROOM * 100.0))))
}

/// The quiet hours that include this moment.
pub fn of_hours(settings: &Settings, now: WeekTime) -> Option<Refusal> {
    let hours = settings.quiet.iter().find(|hours| hours.include(now))?;
    Some(Refusal::new(Reason::QuietHours, format!("quiet hours {hours}")))
}

#[cfg(test)]
mod tests {
    use super::super::facts::CgroupRoom;
    use super::*;

    fn program(exe: &str) -> Program {
        Program { exe: exe.to_owned(), ..Program::default() }
    }

    #[test]
    fn excluded_processes() {
        let is = |pid, exe: &str, standing: &Standing| {
            of_process(pid, &program(exe), standing).map(|refusal| refusal.reason)
        };
        let usual = Standing::default();
        assert_eq!(is(7, "/usr/sbin/mariadbd", &usual), None);
        assert_eq!(is(1, "/usr/sbin/mariadbd", &usual), Some(Reason::Init));
        assert_eq!(is(7, "/usr/bin/kubelet", &usual), Some(Reason::BuiltIn));
        assert_eq!(is(7, "/usr/bin/kubelet (deleted)", &usual), Some(Reason::BuiltIn));
        for name in ["systemd-oomd", "sshd-session", "containerd-shim-kata-v2", "k3s-server"] {
            assert_eq!(is(7, &format!("/usr/lib/{name}"), &usual), Some(Reason::BuiltIn));
        }
        for (standing, reason) in [
            (Standing { is_kernel_thread: true, ..Standing::default() }, Reason::KernelThread),
            (Standing { is_own_line: true, ..Standing::default() }, Reason::OwnLine),
            (Standing { traced_by: Some(3), ..Standing::default() }, Reason::Traced),
            (Standing { scheduling: 1, ..Standing::default() }, Reason::RealTime),
            (Standing { scheduling: 6, ..Standing::default() }, Reason::RealTime),
            (Standing { is_closed: true, ..Standing::default() }, Reason::Closed),
        ] {
            assert_eq!(is(7, "/usr/sbin/mariadbd", &standing), Some(reason));
        }
        assert_eq!(is(7, "/bin/a", &Standing { scheduling: 3, ..Standing::default() }), None, "SCHED_BATCH");
    }

    #[test]
    fn a_machine_under_pressure() {
        let quiet = Conditions { available: 50, memory: 100, cpu_pressure: Some(25.0), ..Conditions::default() };
        let settings = Settings::default();
        assert_eq!(of_machine(&quiet, &settings), None);
        let room = |left| Some(CgroupRoom { left, limit: 100, directory: "/c".to_owned() });
        for (conditions, expected) in [
            (
                Conditions { cpu_pressure: Some(25.1), ..quiet.clone() },
                "CPU pressure of the machine is 25.1 % (some avg10); needed: at most 25 %",
            ),
            (Conditions { cgroup_cpu_pressure: Some(90.0), ..quiet.clone() }, "CPU pressure of its cgroup is 90 %"),
            (Conditions { memory_pressure: Some(6.0), ..quiet.clone() }, "memory pressure of the machine is 6 %"),
            (Conditions { cgroup_memory_pressure: Some(6.0), ..quiet.clone() }, "memory pressure of its cgroup is 6 %"),
            (
                Conditions { available: 9, ..quiet.clone() },
                "9 B of 100 B of memory are available; needed: at least 10 %",
            ),
            (
                Conditions { hidden_cgroup: Some("/../x".to_owned()), ..quiet.clone() },
                "its cgroup /../x is outside of the mounted hierarchies",
            ),
            (Conditions { cgroup: room(9), ..quiet.clone() }, "9 B are left below the limit of 100 B of /c"),
        ] {
            let refusal = of_machine(&conditions, &settings).unwrap();
            assert!(refusal.text.starts_with(expected), "{}", refusal.text);
        }
        assert_eq!(of_machine(&Conditions { cgroup: room(10), ..quiet }, &settings), None);
    }
}
