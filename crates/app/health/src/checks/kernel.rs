//! What the kernel can do, by trying it.

use super::{fine, found};
use crate::facts::{Attempt, Facts, Feature};
use crate::finding::{Fix, Outcome, Severity};

/// A feature, what it is called, how much it matters, the first kernel that has it, and what is lost without.
type Row = (Feature, &'static str, Severity, &'static str, &'static str);

/// Releases from the manual pages; what is lost from the code that uses each.
const FEATURES: [Row; 8] = [
    (
        Feature::Populate,
        "MADV_POPULATE_WRITE",
        Severity::Advice,
        "Linux 5.14",
        "a shortage of pool pages is found by counting, not by the kernel's answer",
    ),
    (
        Feature::MovePool,
        "mremap of pool pages",
        Severity::Note,
        "Linux 5.16",
        "memory is lifted onto the pool only while the whole program stands still, by moving it aside",
    ),
    (
        Feature::PoolFile,
        "memfd_create with MFD_HUGETLB",
        Severity::Note,
        "Linux 4.14 with CONFIG_HUGETLBFS",
        "programs that ask for pool pages in this way get none",
    ),
    (
        Feature::Collapse,
        "MADV_COLLAPSE",
        Severity::Advice,
        "Linux 6.1",
        "memory that is in use gets huge pages only when khugepaged comes by",
    ),
    (
        Feature::CollapseOther,
        "process_madvise with MADV_COLLAPSE",
        Severity::Advice,
        "Linux 6.1 and CAP_SYS_NICE",
        "`pagelift attach --heap=thp` cannot collapse the heap of a program that runs",
    ),
    (
        Feature::PagemapScan,
        "PAGEMAP_SCAN",
        Severity::Note,
        "Linux 6.7",
        "coverage is read from smaps, which counts whole mappings, and how a file lies in the page cache is not seen",
    ),
    (
        Feature::AuxiliaryVector,
        "PR_SET_MM_MAP",
        Severity::Advice,
        "CONFIG_CHECKPOINT_RESTORE",
        "the base of a program is not moved, so that less of its code is covered and the page cache seldom serves it",
    ),
    (
        Feature::Userfaultfd,
        "userfaultfd",
        Severity::Note,
        "CAP_SYS_PTRACE, or vm.unprivileged_userfaultfd = 1",
        "only where writable memory is on the pool: a fork stops the other threads for longer",
    ),
];

/// One outcome for each feature that is missing, or one for all.
pub fn features(facts: &Facts) -> Vec<Outcome> {
    let outcomes: Vec<Outcome> = FEATURES.iter().flat_map(|row| feature(facts, row)).collect();
    if outcomes.is_empty() && !facts.attempts.is_empty() {
        return fine("the kernel's features were tried, and all work");
    }
    outcomes
}

fn feature(facts: &Facts, (feature, name, severity, needed, lost): &Row) -> Vec<Outcome> {
    match facts.attempt(*feature) {
        None | Some(Attempt::Works) => Vec::new(),
        Some(Attempt::NotMade(why)) => {
            vec![Outcome::NotSeen { what: format!("whether {name} works: {why}"), root_sees: false }]
        }
        // What root may do and others not is no fault of the machine.
        Some(Attempt::Refused { .. })
            if !facts.is_root && matches!(feature, Feature::CollapseOther | Feature::Userfaultfd) =>
        {
            vec![Outcome::for_root(format!("{name} is for root; without it {lost}"))]
        }
        Some(Attempt::Refused { words, .. }) => found(
            *severity,
            format!("{name} does not work"),
            format!("tried: {words}, on Linux {}.{}", facts.release.0, facts.release.1),
            *needed,
            *lost,
            Some(Fix::by_hand(format!("needs {needed}"))),
        ),
    }
}
