//! Makes pools smaller.

use crate::change::{check_node, pool_of, set_size, total};
use crate::request::{RequestParts, parts};
use crate::{PoolError, RequestError, Settings};
use address_space::PageSize;
use serde::Serialize;
use std::str::FromStr;

/// The number of pages to release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    /// This number of pages.
    Pages(u64),
    /// All that are free and promised to nobody.
    All,
}

/// `SIZE:COUNT[@NODE]`; COUNT may be `all`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReleaseRequest {
    /// Page size.
    pub size: PageSize,
    /// Number of pages.
    pub amount: Amount,
    /// The node; `None`: wherever pages are free.
    pub node: Option<u32>,
}

impl FromStr for ReleaseRequest {
    type Err = RequestError;

    fn from_str(text: &str) -> Result<Self, RequestError> {
        let RequestParts { size, count, node } = parts(text)?;
        let amount = match count {
            "all" => Amount::All,
            count => Amount::Pages(
                count.parse().map_err(|_| RequestError::new(text, "found neither a number of pages nor `all`"))?,
            ),
        };
        Ok(Self { size, amount, node })
    }
}

/// The released pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Released {
    /// Page size.
    pub size: PageSize,
    /// The requested node.
    pub node: Option<u32>,
    /// Pages that are the system's again.
    pub pages: u64,
    /// Requested pages that stay: they are in use, promised, or not there.
    pub kept: u64,
    /// Pages that are in the pool now, on the requested node if there is one.
    pub left: u64,
}

/// Gives free pages that are promised to nobody back to the system.
///
/// # Errors
/// [`PoolError`]: no such pool or node, or the kernel refuses.
pub fn release(settings: &impl Settings, request: &ReleaseRequest) -> Result<Released, PoolError> {
    let before = pool_of(settings, request.size)?;
    check_node(&before, request.node)?;
    // The kernel keeps promised pages, whichever node they may come from.
    let free = request.node.and_then(|node| before.on_node(node)).map_or(u64::MAX, |pool| pool.free);
    let free = before.unpromised().min(free);
    let asked = match request.amount {
        Amount::Pages(pages) => pages,
        Amount::All => free,
    };
    // Pages that are surplus leave by themselves.
    let size = match request.node.and_then(|node| before.on_node(node)) {
        Some(pool) => pool.persistent(),
        None => before.persistent(),
    };
    let fewer = asked.min(free).min(size);
    if fewer > 0 {
        set_size(settings, request.size, request.node, size - fewer)?;
    }
    let left = total(&pool_of(settings, request.size)?, request.node);
    let pages = total(&before, request.node).saturating_sub(left);
    Ok(Released { size: request.size, node: request.node, pages, kept: asked.saturating_sub(pages), left })
}
