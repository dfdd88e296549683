//! Why a pool is not changed at all.

use crate::request::short_size;
use address_space::PageSize;
use std::io;

/// Why nothing is done. What is done only in part is an outcome with its [`crate::Obstacle`]s.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    /// The kernel has no pool of this size.
    #[error("there is no pool of pages of {size}; found: {}", found_sizes(found))]
    NoPool {
        /// What was asked for.
        size: PageSize,
        /// The sizes that there are.
        found: Vec<PageSize>,
    },
    /// The machine has no such node, or shows no pool there.
    #[error("there is no node {node}; found: {}", found_nodes(found))]
    NoNode {
        /// What was asked for.
        node: u32,
        /// The nodes that there are.
        found: Vec<u32>,
    },
    /// The kernel refuses a setting.
    #[error("{path}: {error}{}", fix_of(error))]
    Refused {
        /// The file that was written.
        path: String,
        /// What the kernel says.
        error: io::Error,
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

/// What helps against the error of a write to sysfs.
pub(crate) fn fix_of(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied => "; needed: root (run it by sudo)",
        io::ErrorKind::ReadOnlyFilesystem => "; needed: /sys that can be written; in a container, do it on the host",
        io::ErrorKind::InvalidInput => "; the kernel does not support this for pages of this size while it runs",
        _ => "",
    }
}
