//! Errors of inspecting a process.

use address_space::MapsError;
use std::io;
use std::path::PathBuf;

/// Why a process cannot be inspected.
#[derive(Debug, thiserror::Error)]
pub enum ObservationError {
    /// There is no process with this PID, or it has ended since.
    #[error(
        "no process has the number {pid} (any more); needed: the number of a process that runs; fix: `ps -e` lists them"
    )]
    NoSuchProcess {
        /// The number asked for.
        pid: i32,
    },
    /// The kernel does not permit this user to inspect the process.
    #[error(
        "not permitted to inspect process {pid}; needed: its own user (not if it is setuid), or root outside of a container"
    )]
    NotPermitted {
        /// The process.
        pid: i32,
    },
    /// `/proc` shows the processes of another PID namespace.
    #[error(
        "/proc shows another PID namespace than this program's, in which {pid} is another process or none; needed: the \
         /proc of this namespace; fix: `unshare --mount-proc`, or `mount -t proc proc /proc` in a new mount namespace"
    )]
    OtherNumbers {
        /// The number asked for.
        pid: i32,
    },
    /// No procfs at `/proc`.
    #[error("/proc is not mounted, needed to read the mappings of a process; fix: `mount -t proc proc /proc`")]
    ProcNotMounted,
    /// The kernel's text has another form than the manual page gives.
    #[error(transparent)]
    Maps(#[from] MapsError),
    /// A file cannot be read for another reason.
    #[error("{path} cannot be read")]
    Io {
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
}

impl ObservationError {
    /// Returns the error with what the kernel says, where that is another error.
    pub fn in_full(&self) -> String {
        match self {
            Self::Io { source, .. } => format!("{self}: {source}"),
            error => error.to_string(),
        }
    }
}
