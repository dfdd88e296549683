//! Which tracepoints the running kernel has, and their formats.

use crate::format::Format;
use linux::tracefs::text_below;
use nix::unistd::geteuid;
use std::io;

/// Why a tracepoint cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum NoTracepoint {
    /// This kernel does not have it.
    #[error("this kernel has no tracepoint {0}")]
    Missing(String),
    /// The kernel's trace files are not shown to this user.
    #[error("the tracepoint {0} is not shown to this user ({1}); fix: {fix}", fix = shown_by(geteuid().is_root()))]
    NotShown(String, io::Error),
    /// Nothing on this architecture records it, whether it is there or not.
    #[error("{1} kernels never record the tracepoint {0}: no interrupt is sent")]
    NeverRecorded(String, &'static str),
    /// Its format is another one than expected.
    #[error("the tracepoint {0} has another format than expected")]
    NotUnderstood(String),
    /// The kernel refuses to open the event.
    #[error("the tracepoint {0} may not be watched ({1}); fix: {fix}", fix = fix(.1, geteuid().is_root()))]
    Refused(String, io::Error),
}

fn fix(error: &io::Error, is_root: bool) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EMFILE) => "ulimit -n with 14 descriptors for each CPU",
        _ if is_root => "--cap-add=PERFMON in a container, or run it on the host",
        _ => "run as root, or sysctl kernel.perf_event_paranoid=-1",
    }
}

fn shown_by(is_root: bool) -> &'static str {
    match is_root {
        true => "mount -t tracefs tracefs /sys/kernel/tracing, or run it on the host",
        false => "run as root",
    }
}

/// Reads the format of a tracepoint, `tlb/tlb_flush` for example.
pub(crate) fn format_of(name: &str) -> Result<Format, NoTracepoint> {
    let shown = name.replace('/', ":");
    let text = text_below(&format!("events/{name}/format")).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => NoTracepoint::Missing(shown.clone()),
        _ => NoTracepoint::NotShown(shown.clone(), error),
    })?;
    Format::parse(&text).map_err(|_| NoTracepoint::NotUnderstood(shown))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_few_descriptors_are_no_lack_of_rights() {
        let text =
            |error| NoTracepoint::Refused("tlb:tlb_flush".to_owned(), io::Error::from_raw_os_error(error)).to_string();
        assert!(text(libc::EMFILE).ends_with("fix: ulimit -n with 14 descriptors for each CPU"));
        assert!(text(libc::EACCES).contains("may not be watched"));
    }

    #[test]
    fn root_is_not_sent_to_root() {
        let refused = |is_root| fix(&io::Error::from_raw_os_error(libc::EACCES), is_root);
        assert!([refused(false), shown_by(false)].iter().all(|fix| fix.contains("run as root")));
        assert!(
            [refused(true), shown_by(true)].iter().all(|fix| !fix.contains("as root") && fix.contains("on the host"))
        );
    }
}
