//! Huge pages that stay with their file although they could be lifted.

use crate::groups::Run;
use crate::{Kind, ProcessFacts, Reason};
use address_space::{AddressRange, LoadedObject, PageSize, RangeSet};
use alloc::vec::Vec;

/// Whole huge pages of a run that stay with their file, and why.
pub(crate) struct Kept {
    pub pages: AddressRange,
    pub reason: Reason,
}

/// Returns the huge pages of a run that stay with their file. Where they overlap, the first reason counts.
pub(crate) fn kept_pages(process: &ProcessFacts, object: &LoadedObject, run: &Run, size: PageSize) -> Vec<Kept> {
    let huge_pages = |of: &RangeSet, reason: Reason| {
        let pages: RangeSet = of.within(run.range).map(|part| part.widened(size)).collect();
        pages.iter().map(|pages| Kept { pages, reason: reason.clone() }).collect::<Vec<_>>()
    };
    let mut kept = huge_pages(&process.probed, Reason::Probed);
    // The kernel changes semaphores in writable mappings only (`valid_ref_ctr_vma` of kernel/events/uprobes.c).
    if run.protection.write {
        kept.extend(huge_pages(&process.semaphores, Reason::Semaphores));
    }
    kept.extend(page_of_header(object, run, size).map(|pages| Kept { pages, reason: Reason::FileHeader }));
    kept
}

/// The huge page of a run that holds the object's ELF header and otherwise read-only data: symbols and relocations, which a
/// program hardly reads once it is loaded.
fn page_of_header(object: &LoadedObject, run: &Run, size: PageSize) -> Option<AddressRange> {
    let header = object.image.file_header()? + object.bias;
    let page = AddressRange::sized(header.align_down(size), size.bytes());
    let is_data = || run.cut_to(page).pieces.iter().all(|piece| piece.kind == Kind::Rodata);
    (run.range.covers(page) && is_data()).then_some(page)
}
