//! Why a process cannot be traced, and the fix.

use linux::text::text_of;
use nix::unistd::{Pid, geteuid};
use std::fmt::Display;

/// The tracing party.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tracer {
    /// The helper of a start, which the process itself permits to trace it.
    Helper,
    /// Any other process.
    Other,
}

/// The kernel's answers that explain a refusal.
struct Facts {
    /// PID and name of the process that traces it already, or of its tracing thread.
    tracer: Option<(String, String)>,
    /// `kernel.yama.ptrace_scope`; `None` without Yama.
    scope: Option<u32>,
    /// This program runs as root, and lacks CAP_SYS_PTRACE.
    is_root: bool,
}

/// Returns the number of the tracer of a thread, or of a process's first thread, from its `status` in /proc; `None`
/// without one.
pub fn tracer_in(status: &str) -> Option<&str> {
    let tracer = status.lines().find_map(|line| line.strip_prefix("TracerPid:"))?.trim();
    (tracer != "0").then_some(tracer)
}

/// Returns a sentence that says why a process or a thread cannot be traced, with what is needed and the fix. `error` is
/// ptrace's.
pub fn refusal(process: Pid, error: &dyn Display, who: Tracer) -> String {
    let status = text_of(format!("/proc/{process}/status")).unwrap_or_default();
    let named = |tracer: &str| {
        let name = text_of(format!("/proc/{tracer}/comm")).unwrap_or_default();
        (tracer.to_owned(), name.trim().to_owned())
    };
    let scope = text_of("/proc/sys/kernel/yama/ptrace_scope").ok();
    let scope = scope.and_then(|text| text.trim().parse().ok());
    let facts = Facts { tracer: tracer_in(&status).map(named), scope, is_root: geteuid().is_root() };
    sentence(&facts, error, who)
}

fn sentence(facts: &Facts, error: &dyn Display, who: Tracer) -> String {
    if let Some((tracer, name)) = &facts.tracer {
        return format!("process {tracer} ({name}) traces it already, and a process has one tracer at most");
    }
    let found = |scope: u32| format!("ptrace is refused ({error}); found kernel.yama.ptrace_scope = {scope}");
    match (facts.scope, who) {
        (Some(scope @ 3..), _) => {
            format!("{}, which stays until the next boot; fix: set 1 in /etc/sysctl.d and reboot", found(scope))
        }
        (Some(scope @ 2), Tracer::Helper) => {
            format!("{}, needed: 0 or 1, or root; fix: sysctl kernel.yama.ptrace_scope=1", found(scope))
        }
        (_, Tracer::Other) if facts.is_root => format!(
            "ptrace is refused ({error}) to this root; needed: CAP_SYS_PTRACE; fix: --cap-add=SYS_PTRACE in a container, or \
             run pagelift on the host"
        ),
        (Some(scope @ 1..), Tracer::Other) => {
            format!(
                "{}, needed: 0, or root; fix: run pagelift as root, or sysctl kernel.yama.ptrace_scope=0",
                found(scope)
            )
        }
        (_, Tracer::Helper) => format!(
            "ptrace is refused ({error}); needed: permission to trace; fix: in a container, --cap-add=SYS_PTRACE or a \
             seccomp profile that allows ptrace"
        ),
        (_, Tracer::Other) => format!(
            "ptrace is refused ({error}); needed: root, CAP_SYS_PTRACE or the same user; fix: run pagelift as root; in a \
             container, --cap-add=SYS_PTRACE"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn says(tracer: Option<(&str, &str)>, scope: Option<u32>, who: Tracer) -> String {
        let tracer = tracer.map(|(pid, name)| (pid.to_owned(), name.to_owned()));
        sentence(&Facts { tracer, scope, is_root: false }, &"EPERM", who)
    }

    #[test]
    fn a_tracer_is_named() {
        assert_eq!(tracer_in("Name:\ta\nTracerPid:\t0\n"), None);
        assert_eq!(tracer_in("Name:\ta\nTracerPid:\t17\n"), Some("17"));
        let said = says(Some(("17", "strace")), Some(3), Tracer::Helper);
        assert!(said.starts_with("process 17 (strace) traces it already"), "{said}");
    }

    #[test]
    fn root_is_not_sent_to_root() {
        for scope in [None, Some(0), Some(1), Some(2)] {
            let said = sentence(&Facts { tracer: None, scope, is_root: true }, &"EPERM", Tracer::Other);
            assert!(said.contains("--cap-add=SYS_PTRACE") && !said.contains("as root"), "{said}");
        }
    }

    #[test]
    fn each_scope_has_its_own_fix() {
        for who in [Tracer::Helper, Tracer::Other] {
            assert!(says(None, Some(3), who).ends_with("fix: set 1 in /etc/sysctl.d and reboot"));
            assert!(says(None, None, who).contains("SYS_PTRACE") && says(None, Some(0), who).contains("SYS_PTRACE"));
        }
        assert!(says(None, Some(2), Tracer::Helper).ends_with("fix: sysctl kernel.yama.ptrace_scope=1"));
        // A start is permitted by the process itself, which suffices at 1.
        assert!(says(None, Some(1), Tracer::Helper).contains("SYS_PTRACE"));
        for scope in [1, 2] {
            assert!(says(None, Some(scope), Tracer::Other).ends_with("or sysctl kernel.yama.ptrace_scope=0"));
        }
    }
}
