//! Why a process cannot be looked at.

use address_space::MapsError;
use std::io;
use std::path::PathBuf;

/// Why nothing can be said of a process.
#[derive(Debug, thiserror::Error)]
pub enum ObservationError {
    /// There is no process of that number, or it has ended meanwhile.
    #[error("no process has the number {pid} (any more); `ps -e` lists those that run")]
    NoSuchProcess {
        /// The number asked for.
        pid: i32,
    },
    /// The kernel does not let this user look at the process.
    #[error("process {pid} may be looked at only by its own user (and not if it is setuid) or by root; use sudo")]
    NotPermitted {
        /// The process.
        pid: i32,
    },
    /// No procfs at `/proc`.
    #[error("/proc is not mounted, and nothing else tells what a process has mapped; run `mount -t proc proc /proc`")]
    ProcNotMounted,
    /// The kernel's text has another form than the manual page gives.
    #[error(transparent)]
    Maps(#[from] MapsError),
    /// A file cannot be read for another reason.
    #[error("{path} cannot be read")]
    Io {
        /// The file.
        path: PathBuf,
        /// What the kernel says.
        source: io::Error,
    },
}
