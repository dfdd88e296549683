//! Why a pool is not changed at all.

use crate::request::short_size;
use address_space::PageSize;
use foreign_text::quoted_path;
use nix::unistd::geteuid;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// Reasons to do nothing. A partial result is an outcome with its [`crate::Obstacle`]s.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    /// The kernel has no pool of this size.
    #[error("there is no pool of pages of {size}; found: {}", found_sizes(found))]
    NoPool {
        /// The requested size.
        size: PageSize,
        /// The sizes that there are.
        found: Vec<PageSize>,
    },
    /// The machine has no such node, or shows no pool there.
    #[error("there is no node {node}; found: {}", found_nodes(found))]
    NoNode {
        /// The requested node.
        node: u32,
        /// The nodes that there are.
        found: Vec<u32>,
    },
    /// The kernel refuses a setting.
    #[error("{path}: {error}{}", fix_of(error))]
    Refused {
        /// The file that was written.
        path: String,
        /// The kernel's error.
        error: io::Error,
    },
    /// The lock that changes of pools take cannot be had.
    #[error("found {}: {error}; {}", path.display(), lock_fix(error))]
    Lock {
        /// The lock's file.
        path: PathBuf,
        /// The kernel's error.
        error: io::Error,
    },
    /// The added pages cannot be recorded.
    #[error("found {}: {error}; {}", path.display(), lock_fix(error))]
    ReservationRecord {
        /// The record's file.
        path: PathBuf,
        /// The kernel's error.
        error: io::Error,
    },
    /// Another process changes pools and does not end.
    #[error(
        "found {} locked by another process for {} s now, needed it to end; fix: find it with `fuser -v {}`, and end it",
        path.display(), waited.as_secs(), path.display()
    )]
    Locked {
        /// The lock's file.
        path: PathBuf,
        /// Time waited.
        waited: Duration,
    },
    /// The lock that changes of pools take is not this user's.
    #[error("found {} owned by user {user}, needed it owned by root; fix: rm {}", path.display(), quoted_path(path))]
    LockOfAnotherUser {
        /// The lock's file.
        path: PathBuf,
        /// Number of its owner.
        user: u32,
    },
    /// The pages cannot be demoted.
    #[error("{0}")]
    NotDemoted(String),
}

fn found_sizes(sizes: &[PageSize]) -> String {
    if sizes.is_empty() {
        return "none; needed: a kernel with CONFIG_HUGETLBFS".to_owned();
    }
    sizes.iter().map(|size| short_size(*size)).collect::<Vec<_>>().join(", ")
}

fn found_nodes(nodes: &[u32]) -> String {
    if nodes.is_empty() {
        return "none; needed: a request without @NODE".to_owned();
    }
    nodes.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")
}

/// The needs of the lock and the records, and the fix.
fn lock_fix(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied if geteuid().is_root() => {
            "needed: root outside of a container, since only root changes pools"
        }
        io::ErrorKind::PermissionDenied => "needed: root, since only root changes pools; fix: run it by sudo",
        io::ErrorKind::ReadOnlyFilesystem => {
            "needed: a /run that can be written; fix: mount -o remount,rw /run, or in a container a tmpfs there (--tmpfs /run)"
        }
        io::ErrorKind::NotFound => "needed: the folder /run; fix: mkdir /run && mount -t tmpfs tmpfs /run",
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "needed: space in /run; fix: remove files (df /run)"
        }
        _ => "needed: to create this file, and to lock or rename it",
    }
}

/// The fix for an error of a write to sysfs.
pub(crate) fn fix_of(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied if geteuid().is_root() => "; needed: root outside of a container",
        io::ErrorKind::PermissionDenied => "; needed: root (run it by sudo)",
        io::ErrorKind::ReadOnlyFilesystem => "; needed: /sys that can be written; in a container, do it on the host",
        io::ErrorKind::InvalidInput => "; the kernel does not support this for pages of this size while it runs",
        _ => "",
    }
}
