//! Mapped data files: databases in a file, indexes, weights of models.

use super::found;
use crate::facts::{DataFileFacts, Facts};
use crate::finding::{CheckOutcome, Fix, Severity};
use address_space::format_bytes;
use foreign_text::quoted;

/// Huge pages' worth of memory on base pages that is worth a word.
const MANY_PAGES: u64 = 32;

/// Files that a lift could map by huge pages now, or once they are in huge folios of the page cache.
pub fn data_files(facts: &Facts) -> Vec<CheckOutcome> {
    let (Some(program), Some(running), Some(huge)) = (&facts.program, facts.running(), facts.huge_page) else {
        return Vec::new();
    };
    let DataFileFacts { resident, huge: on_huge, liftable, in_small_folios, largest } = &running.data_files;
    let least = (MANY_PAGES * huge.bytes()).max(*resident / 4);
    let fix = if *liftable >= least {
        let note = "drops page tables, so that the next access finds the huge page; --dry-run shows the parts";
        Fix::root(format!("pagelift attach --lift files {}", running.pid)).with_note(note)
    } else if *in_small_folios >= least {
        let note = "before the program maps it: then the kernel maps it by huge pages, for all programs";
        Fix::root(format!("pagelift cache prepare {}", quoted(largest))).with_note(note)
    } else {
        return Vec::new();
    };
    found(
        Severity::Advice,
        format!("mapped data files of {} are on base pages", program.name),
        format!("{} resident, {} on huge pages", format_bytes(*resident), format_bytes(*on_huge)),
        "huge pages of the page cache, which need huge folios and agreeing addresses",
        "each base page takes a separate TLB entry, and 8 bytes of page tables in each process",
        Some(fix),
    )
}
