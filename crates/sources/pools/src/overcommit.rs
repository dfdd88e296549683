//! Surplus pages: allocated when a mapping needs them, given back when it ends.

use crate::change::{pool_of, set};
use crate::{PoolError, PoolRequest, Settings};
use address_space::PageSize;
use machine_facts::pool_directory;
use serde::Serialize;

/// The overcommit of one pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Overcommitted {
    /// Page size.
    pub size: PageSize,
    /// The limit before.
    pub before: u64,
    /// The limit now.
    pub now: u64,
    /// Surplus pages that exist now.
    pub surplus: u64,
    /// Pages of the pool that are free and promised to nobody, which are used first.
    pub available: u64,
}

/// Sets the maximum number of surplus pages. Linux has one for the whole machine.
///
/// # Errors
/// [`PoolError`]: no such pool, or the kernel refuses, as it does for pages that are larger than its largest free
/// block.
pub fn overcommit(settings: &impl Settings, request: &PoolRequest) -> Result<Overcommitted, PoolError> {
    let before = pool_of(settings, request.size)?;
    if let Some(node) = request.node {
        return Err(PoolError::NoNode { node, found: Vec::new() });
    }
    set(settings, format!("{}/nr_overcommit_hugepages", pool_directory(request.size, None)), request.pages)?;
    let now = pool_of(settings, request.size)?;
    Ok(Overcommitted {
        size: request.size,
        before: before.overcommit,
        now: now.overcommit,
        surplus: now.surplus,
        available: now.unpromised(),
    })
}
