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
    // Since Linux 6.8 each size has a mode of its own, which may refer to the general one.
    let mode = match fs::read_to_string(own).ok().and_then(|text| chosen(&text)).as_deref() {
        Some("inherit") | None => chosen(&general)?,
        Some(mode) => mode.to_owned(),
    };
    let mode = match mode.as_str() {
        "always" => ThpMode::Always,
        "madvise" => ThpMode::Madvise,
        _ => ThpMode::Never,
    };
    Some(ThpFacts { size, mode })
}

/// The word in brackets of `always [madvise] never`.
fn chosen(text: &str) -> Option<String> {
    let (_, rest) = text.split_once('[')?;
    Some(rest.split_once(']')?.0.to_owned())
}

#[cfg(test)]
mod tests {
    use super::chosen;

    #[test]
    fn the_chosen_word_stands_in_brackets() {
        assert_eq!(chosen("always [madvise] never\n").as_deref(), Some("madvise"));
        assert_eq!(chosen("always madvise"), None);
    }
}
