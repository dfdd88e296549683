//! Why a file is not replaced. It is untouched then.

use address_space::{counted, format_bytes};
use std::io;

/// Why a file was not replaced: the value found, the value needed, and the fix.
#[derive(Debug, thiserror::Error)]
pub enum ReplaceError {
    /// The path leads to something else than a regular file.
    #[error("found a non-regular file, needed a regular file")]
    NotRegular,
    /// The copy is to be written to the file itself.
    #[error("found the file itself as the output, needed another file; fix: omit the option to replace the file")]
    SameFile,
    /// It has other names, which would keep the old file.
    #[error(
        "found {0} hard links to the file, needed one: the others would keep the old file; fix: replace it manually"
    )]
    HardLinks(u64),
    /// Neither root nor the owner asks.
    #[error("found user {found}, needed root or user {owner}, who owns the file; fix: run it as root")]
    NotPermitted {
        /// The user who asks.
        found: u32,
        /// The owner of the file.
        owner: u32,
    },
    /// The file cannot be changed at all.
    #[error("found the attribute {0} on the file, needed none; fix: `chattr -{1}`")]
    Unchangeable(&'static str, char),
    /// The kernel checks its inode by a keyed sum that a copy cannot have.
    #[error(
        "found the extended attribute security.evm, which holds for one inode only; needed a file without; fix: none"
    )]
    Evm,
    /// It is protected by fs-verity, which a copy loses.
    #[error("found a file that is protected by fs-verity, which a copy would not be; needed a file without; fix: none")]
    Verity,
    /// A process writes to it.
    #[error(
        "found a process that has the file open for writing or maps it shared, needed none; fix: find it with `fuser -v` and end it"
    )]
    BeingWritten,
    /// Some processes that this user cannot inspect, or that do not answer, may write to it.
    #[error(
        "found {} that cannot be inspected, needed none: on overlayfs only its mappings show that a process writes to a file; \
         fix: run it as root, or on another file system",
        counted(*.0, "process")
    )]
    Unseen(u64),
    /// It cannot be made sure that nobody writes to it.
    #[error(
        "found no lease on the file ({0}), needed one to be sure that no process writes to it; fix: a file system with \
         leases"
    )]
    NoLease(io::Error),
    /// A copy would fill its holes.
    #[error(
        "found a sparse file, more than an eighth of which is holes, needed one of data: a copy would fill them; fix: \
         `cp --sparse=never` makes a file without holes"
    )]
    Sparse,
    /// The file system has too little room for the copy.
    #[error("found {} free on the file system, needed {} for the copy; fix: free some", format_bytes(*.free), format_bytes(*.needed))]
    NoRoom {
        /// Bytes free.
        free: u64,
        /// Bytes needed.
        needed: u64,
    },
    /// The file system cannot make a file without a name.
    #[error("found a file system without O_TMPFILE, needed one with it, so that a killed run leaves no file")]
    NoNamelessFiles,
    /// A part of the metadata could not be given to the copy.
    #[error("found that the copy cannot have the same {what} ({error}), needed all; fix: run it as root")]
    Metadata {
        /// Which part.
        what: String,
        /// The kernel's answer.
        error: io::Error,
    },
    /// The copy, read back, differs.
    #[error("found that the copy differs in its {0} after it was written, needed the same; the copy was dropped")]
    Differs(String),
    /// The file was changed or replaced while it was copied.
    #[error("found that the file was changed or replaced during the copy, needed an unchanged file; fix: run it again")]
    Changed,
    /// The kernel refused something; its answer is the source.
    #[error("{what}")]
    Io {
        /// The operation that failed.
        what: &'static str,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
}

impl ReplaceError {
    pub(crate) fn io(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { what, source }
    }

    pub(crate) fn call<E: Into<io::Error>>(what: &'static str) -> impl FnOnce(E) -> Self {
        move |source| Self::Io { what, source: source.into() }
    }
}
