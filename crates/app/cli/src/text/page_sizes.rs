//! Page sizes of counted page walks.

use translation::walk_counters::What;

/// The share of each page size, as one line.
pub(super) fn sizes(sizes: &[(What, f64)]) -> String {
    let shown: Vec<String> =
        sizes.iter().map(|(what, share)| format!("{} {:.0} %", what.page_words(), 100.0 * share)).collect();
    if shown.is_empty() { "–".to_owned() } else { shown.join(", ") }
}
