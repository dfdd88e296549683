//! Transparent huge pages (`Documentation/admin-guide/mm/transhuge.rst`).

use address_space::PageSize;
use kernel_calls::text::text_of;
use lift_plan::{ThpFacts, ThpMode};
use std::path::Path;

/// Their size alone.
pub(crate) fn thp_size_at(directory: &Path) -> Option<PageSize> {
    PageSize::new(text_of(directory.join("hpage_pmd_size")).ok()?.trim().parse().ok()?).ok()
}

/// Transparent huge pages as told below a directory; `None` on kernels without them.
pub fn thp_at(directory: &Path) -> Option<ThpFacts> {
    let size = thp_size_at(directory)?;
    let own = directory.join(format!("hugepages-{}kB", size.kib())).join("enabled");
    let general = text_of(directory.join("enabled")).ok()?;
    let mode = ThpMode::read(&general, &text_of(own).unwrap_or_default())?;
    Some(ThpFacts { size, mode })
}
