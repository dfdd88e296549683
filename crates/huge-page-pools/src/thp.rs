//! Transparent huge pages (`Documentation/admin-guide/mm/transhuge.rst`).

use address_space::PageSize;
use kernel_calls::text::text_of;
use lift_plan::{ThpFacts, ThpMode};
use std::path::Path;

/// Transparent huge pages of this size as told below a directory.
pub fn thp_at(directory: &Path, size: PageSize) -> Option<ThpFacts> {
    let own = directory.join(format!("hugepages-{}kB", size.kib())).join("enabled");
    let general = text_of(directory.join("enabled")).ok()?;
    let mode = ThpMode::read(&general, &text_of(own).unwrap_or_default())?;
    Some(ThpFacts { size, mode })
}
