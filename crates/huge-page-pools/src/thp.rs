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

#[cfg(test)]
mod tests {
    use super::*;
    use lift_plan::ThpMode;
    use std::fs;

    #[test]
    fn a_size_has_its_own_mode_or_the_general_one() {
        let root = tempfile::tempdir().unwrap();
        let size = PageSize::new(2 << 20).unwrap();
        let mode = || thp_at(root.path(), size);
        assert_eq!(mode(), None);
        fs::write(root.path().join("enabled"), "[always] madvise never\n").unwrap();
        assert_eq!(mode(), Some(ThpFacts { size, mode: ThpMode::Always }));
        let own = root.path().join("hugepages-2048kB");
        fs::create_dir(&own).unwrap();
        fs::write(own.join("enabled"), "always inherit [madvise] never\n").unwrap();
        assert_eq!(mode(), Some(ThpFacts { size, mode: ThpMode::Madvise }));
    }
}
