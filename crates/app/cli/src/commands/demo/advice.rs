//! The gain from root and a pool, as commands that can be pasted.

use address_space::{PageSize, format_bytes};
use measure::machine::PoolFacts;
use serde::Deserialize;

/// The fields of `pagelift run`'s report that the demo needs.
#[derive(Deserialize)]
pub(super) struct LiftSummary {
    ranges: Vec<LiftedRange>,
}

#[derive(Deserialize)]
struct LiftedRange {
    range: Addresses,
    protection: String,
    source: Option<String>,
    page_size: u64,
}

#[derive(Deserialize)]
struct Addresses {
    start: String,
    end: String,
}

impl LiftedRange {
    fn bytes(&self) -> u64 {
        let address = |text: &str| u64::from_str_radix(text.trim_start_matches("0x"), 16).unwrap_or(0);
        address(&self.range.end).saturating_sub(address(&self.range.start))
    }

    fn is_read_only(&self) -> bool {
        !self.protection.contains('w')
    }
}

/// One paragraph: further possible gains, and the commands for them.
pub(super) fn advice(report: &LiftSummary, pools: &[PoolFacts], root: bool) -> String {
    let read_only = || report.ranges.iter().filter(|range| range.is_read_only());
    let lasts = |range: &LiftedRange| matches!(range.source.as_deref(), Some("hugetlb" | "image"));
    let missing: Vec<_> = read_only().filter(|range| !lasts(range)).collect();
    let Some(first) = missing.first() else {
        return match read_only().next() {
            Some(_) => "\nThe code is on persistent huge pages: root has nothing to add.\n".to_owned(),
            None => String::new(),
        };
    };
    let bytes: u64 = missing.iter().map(|range| range.bytes()).sum();
    let Some(pool) = pools.iter().find(|pool| pool.page_bytes == first.page_size) else {
        return format!("\nThis kernel has no pool of such pages; {} of code could use one.\n", format_bytes(bytes));
    };
    let needed = bytes.div_ceil(pool.page_bytes.max(1));
    let Ok(size) = PageSize::new(pool.page_bytes) else { return String::new() };
    let found = found(&missing);
    let mut text = format!(
        "\nRoot and a pool could improve this: {} of code are {found}.\n\
         Pool pages are not taken back. Needed: {needed} of {size}; found free: {}.\n",
        format_bytes(bytes),
        pool.free
    );
    if pool.free < needed {
        let sudo = if root { "" } else { "sudo " };
        text += &format!("    {sudo}pagelift pool reserve {}:{needed}\n", size.word());
    }
    text + "    pagelift demo --pages hugetlb\n"
}

/// The pages that back these ranges, if the kernel can take them back.
fn found(missing: &[&LiftedRange]) -> &'static str {
    let all = |source: &str| missing.iter().all(|range| range.source.as_deref() == Some(source));
    match missing.iter().all(|range| range.source.is_some()) {
        _ if all("file") => "in huge folios\nof the page cache, which the kernel may take back when memory is short",
        _ if all("thp") => "on transparent huge\npages, which the kernel may split or take back when memory is short",
        true => "on pages\nwhich the kernel may split or take back when memory is short",
        false => "on ordinary pages",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(source: &str) -> LiftSummary {
        let text = format!(
            r#"{{"pid": 1, "ranges": [
                {{"range": {{"start": "0x200000", "end": "0x1600000"}}, "protection": "r-x", "source": {source},
                  "page_size": 2097152}},
                {{"range": {{"start": "0x2000000", "end": "0x4000000"}}, "protection": "rw-", "source": "thp",
                  "page_size": 2097152}}]}}"#
        );
        serde_json::from_str(&text).unwrap()
    }

    fn pool(total: u64, free: u64) -> Vec<PoolFacts> {
        vec![PoolFacts { page_bytes: 2 << 20, total, free }]
    }

    #[test]
    fn the_pool_is_asked_for_just_what_is_missing() {
        let text = advice(&report("\"thp\""), &pool(4, 3), false);
        assert!(text.contains("20.0 MiB of code") && text.contains("Needed: 10 of 2 MiB; found free: 3."), "{text}");
        assert!(text.contains("    sudo pagelift pool reserve 2M:10\n"), "{text}");
        assert!(
            advice(&report("null"), &pool(4, 3), true).contains("\n    pagelift pool reserve 2M:10\n"),
            "root needs no sudo"
        );
    }

    #[test]
    fn it_says_what_the_code_stands_on() {
        let said = |source| advice(&report(source), &pool(0, 0), true);
        assert!(said("\"thp\"").contains("transparent huge\npages"));
        assert!(said("\"file\"").contains("page cache") && !said("\"file\"").contains("transparent"));
        assert!(said("null").contains("ordinary"));
        assert!(said("\"image\"").contains("root has nothing to add"));
    }

    #[test]
    fn nothing_is_asked_for_that_is_there() {
        let text = advice(&report("\"thp\""), &pool(10, 10), true);
        assert!(!text.contains("reserve") && text.contains("--pages hugetlb"), "{text}");
        assert!(advice(&report("\"hugetlb\""), &pool(0, 0), true).contains("root has nothing to add"));
        assert!(advice(&report("\"thp\""), &[], true).contains("no pool"));
    }
}
