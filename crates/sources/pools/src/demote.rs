//! Splits free pages of a pool into smaller ones of another (Linux 5.16).

use crate::change::{check_node, pool_of, set};
use crate::request::short_size;
use crate::{PoolError, PoolRequest, Settings};
use address_space::{PageSize, agreeing};
use machine_facts::pool_directory;
use serde::Serialize;

/// The demoted pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Demoted {
    /// The size of the pages that were split.
    pub from: PageSize,
    /// Number of pages that were split.
    pub pages: u64,
    /// The new size.
    pub to: PageSize,
    /// Number of additional pages of the new size.
    pub gained: u64,
}

/// Demotes free pages to pages of `to`, otherwise of the size that the kernel has set. That setting is restored.
///
/// # Errors
/// [`PoolError::NotDemoted`]: the kernel cannot split such pages, or too few are free; the kernel's refusals.
pub fn demote(settings: &impl Settings, request: &PoolRequest, to: Option<PageSize>) -> Result<Demoted, PoolError> {
    let before = pool_of(settings, request.size)?;
    check_node(&before, request.node)?;
    let size = request.size;
    let Some(usual) = before.demotes_to else {
        let why = "the kernel shows no demote_size for them; needed: Linux 5.16 or later, and a smaller size of pool";
        return Err(PoolError::NotDemoted(format!("pages of {size} cannot be demoted: {why}")));
    };
    let to = to.unwrap_or(usual);
    let smaller = pool_of(settings, to)?;
    let available = request.node.map_or_else(|| before.unpromised(), |node| before.unpromised_on(node));
    if available < request.pages {
        let more = PoolRequest { pages: request.pages - available, ..*request };
        return Err(PoolError::NotDemoted(format!(
            "found {available} free {} of {size}, needed {}; fix: `pagelift pool reserve --add {more}`",
            agreeing(available, "page"),
            request.pages
        )));
    }
    let directory = pool_directory(size, request.node);
    let choose = |size: PageSize| {
        let path = format!("{}/demote_size", pool_directory(request.size, None));
        settings.set(&path, &short_size(size)).map_err(|error| PoolError::Refused { path, error })
    };
    if to != usual {
        choose(to)?;
    }
    let demoted = set(settings, format!("{directory}/demote"), request.pages);
    if to != usual {
        choose(usual)?;
    }
    demoted?;
    let pages = before.total.saturating_sub(pool_of(settings, size)?.total);
    let gained = pool_of(settings, to)?.total.saturating_sub(smaller.total);
    Ok(Demoted { from: size, pages, to, gained })
}
