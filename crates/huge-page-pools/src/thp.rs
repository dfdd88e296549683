//! Transparent huge pages (`Documentation/admin-guide/mm/transhuge.rst`).

use address_space::PageSize;
use lift_plan::{ThpFacts, ThpMode};
use std::fs;
use std::path::Path;

/// Transparent huge pages as told below a directory; `None` on kernels without them.
pub fn thp_at(directory: &Path) -> Option<ThpFacts> {
    let size: u64 = fs::read_to_string(directory.join("hpage_pmd_size")).ok()?.trim().parse().ok()?;
    let size = PageSize::new(size).ok()?;
    let own = directory.join(format!("hugepages-{}kB", size.kib())).join("enabled");
    let general = fs::read_to_string(directory.join("enabled")).ok()?;
    let mode = ThpMode::read(&general, &fs::read_to_string(own).unwrap_or_default())?;
    Some(ThpFacts { size, mode })
}
