//! The errors.

use std::io;
use std::path::PathBuf;

/// The plugin's file, which is next to pagelift in a build and in libexec once installed.
pub(crate) const PLUGIN: &str = "libpagelift_trace.so";

/// Why there is no estimate.
#[derive(Debug, thiserror::Error)]
pub enum EstimateError {
    /// QEMU's user mode is not installed.
    #[error(
        "no {name} in PATH; needed: QEMU's user mode, which runs the program and reports what it touches; \
         fix: apt-get install qemu-user"
    )]
    NoQemu {
        /// The command.
        name: &'static str,
    },
    /// The plugin is not there.
    #[error(
        "found no {name} in {} or its ../libexec/pagelift; fix: `make install`, or in a source tree \
         `cargo build --release -p tlb-trace`",
        folder.display()
    )]
    NoPlugin {
        /// Its file name.
        name: &'static str,
        /// Pagelift's folder.
        folder: PathBuf,
    },
    /// QEMU ended before it started the program.
    #[error(
        "{qemu} ended before the trace began ({status}); found: its message above; needed: a {qemu} with plugins, such as \
         Debian's package qemu-user, not qemu-user-static, and an ELF file for this machine"
    )]
    DidNotBegin {
        /// The command.
        qemu: String,
        /// Exit status.
        status: String,
    },
    /// The program ended within the skipped part.
    #[error(
        "the program ended ({status}) after {found} traced instructions, of which the first {warm_up} only fill the TLBs; \
         fix: a smaller --skip, --after or --warm-up"
    )]
    TooShort {
        /// Instructions traced.
        found: u64,
        /// Number of instructions that are not counted.
        warm_up: u64,
        /// Exit status.
        status: String,
    },
    /// The plugin and this program are of different releases.
    #[error("the trace is not of this release's form; fix: install pagelift and {} of one release", PLUGIN)]
    Form,
    /// The plan could not be read.
    #[error("the plan of the dry run cannot be read: {0}")]
    Plan(String),
    /// The CPU's TLBs are not known.
    #[error("the TLBs of this CPU are not known: {0}; fix: name one by --cpu")]
    Cpu(String),
    /// The kernel refuses something.
    #[error("{what}: {error}")]
    Io {
        /// The attempted action.
        what: String,
        /// Why it failed.
        error: io::Error,
    },
}

impl EstimateError {
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |error| Self::Io { what, error }
    }
}
