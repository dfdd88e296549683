//! Obstacles of a reservation.

use crate::error::fix_of;
use address_space::{PageSize, format_bytes};
use machine_facts::{FreeBlocks, PageBlocks};
use serde::Serialize;
use std::fmt;
use std::io;

/// Why fewer pages were reserved than requested.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Obstacle {
    /// Less memory would be left than the floor.
    Floor {
        /// The node of the memory; `None` for the machine.
        node: Option<u32>,
        /// Available memory, in bytes.
        available: u64,
        /// Bytes that must stay free.
        floor: u64,
        /// Requested bytes.
        wanted: u64,
    },
    /// The memory of a node is in pieces.
    Fragmented {
        /// The node.
        node: u32,
        /// The size of the pages.
        size: PageSize,
        /// Free bytes, in pieces of any size.
        free: u64,
        /// Pages in one piece; `None` if the pages are larger than the kernel's largest piece.
        at_once: Option<u64>,
        /// The use of the blocks of memory, if it can be read.
        blocks: Option<PageBlocks>,
    },
    /// The kernel refuses the size of the pool.
    Refused {
        /// The file that was written.
        path: String,
        /// The kernel's error, and the fix.
        why: String,
    },
    /// The user has ended it.
    Interrupted,
}

impl Obstacle {
    /// The obstacle of a setting that the kernel refuses.
    pub(crate) fn refused(path: String, error: &io::Error) -> Self {
        Self::Refused { path, why: format!("{error}{}", fix_of(error)) }
    }

    /// The fragmentation of a node's memory for pages of one size.
    pub(crate) fn fragmented(free: &FreeBlocks, blocks: &[PageBlocks], size: PageSize, base_page: PageSize) -> Self {
        Self::Fragmented {
            node: free.node,
            size,
            free: free.bytes(base_page),
            at_once: free.pages_of(size, base_page),
            blocks: blocks.iter().find(|blocks| blocks.node == free.node).copied(),
        }
    }
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Floor { node, available, floor, wanted } => write!(
                f,
                "memory{}: found {} available, needed {} and {} to keep free; fix: fewer pages, or a smaller \
                 --keep-free",
                node.map_or_else(String::new, |node| format!(" of node {node}")),
                format_bytes(*available),
                format_bytes(*wanted),
                format_bytes(*floor)
            ),
            Self::Fragmented { node, size, free, at_once, blocks } => {
                write!(f, "node {node}: {} free, ", format_bytes(*free))?;
                match at_once {
                    Some(pages) => write!(f, "including {pages} x {size} in one piece")?,
                    None => write!(f, "and a page of {size} needs that much movable memory in one piece")?,
                }
                if let Some(PageBlocks { unmovable, reclaimable, all, .. }) = blocks {
                    write!(
                        f,
                        "; of {all} blocks of memory {unmovable} hold the kernel's own, which nothing moves, and \
                         {reclaimable} caches that --drop-caches may free"
                    )?;
                }
                Ok(())
            }
            Self::Refused { path, why } => write!(f, "{path}: {why}"),
            Self::Interrupted => f.write_str("interrupted"),
        }
    }
}
