//! The kernel's features, found by trying them.

use super::{fine, found};
use crate::facts::{Attempt, Facts, Feature};
use crate::finding::{CheckOutcome, Fix, Severity};

/// A feature that is tried.
struct Row {
    feature: Feature,
    name: &'static str,
    severity: Severity,
    /// The first kernel that has the feature, and the right or configuration that it needs.
    needed: &'static str,
    /// The loss without the feature.
    lost: &'static str,
}

/// Releases from the manual pages; the effect of a missing feature from the code that uses it.
const FEATURES: [Row; 8] = [
    Row {
        feature: Feature::Populate,
        name: "MADV_POPULATE_WRITE",
        severity: Severity::Advice,
        needed: "Linux 5.14",
        lost: "a shortage of pool pages is found by counting, not by the kernel's answer",
    },
    Row {
        feature: Feature::MovePool,
        name: "mremap of pool pages",
        severity: Severity::Note,
        needed: "Linux 5.16",
        lost: "memory is lifted onto the pool only while all threads are stopped, by moving it aside",
    },
    Row {
        feature: Feature::PoolFile,
        name: "memfd_create with MFD_HUGETLB",
        severity: Severity::Note,
        needed: "Linux 4.14 with CONFIG_HUGETLBFS",
        lost: "programs that request pool pages in this way get none",
    },
    Row {
        feature: Feature::Collapse,
        name: "MADV_COLLAPSE",
        severity: Severity::Advice,
        needed: "Linux 6.1",
        lost: "memory in use gets huge pages only by khugepaged, later",
    },
    Row {
        feature: Feature::CollapseOther,
        name: "process_madvise with MADV_COLLAPSE",
        severity: Severity::Advice,
        needed: "Linux 6.1 and CAP_SYS_NICE",
        lost: "`pagelift attach --heap=thp` cannot collapse the heap of a program that runs",
    },
    Row {
        feature: Feature::PagemapScan,
        name: "PAGEMAP_SCAN",
        severity: Severity::Note,
        needed: "Linux 6.7",
        lost: "coverage is read from smaps, which counts whole mappings, and the layout of a file in the page cache is unknown",
    },
    Row {
        feature: Feature::AuxiliaryVector,
        name: "PR_SET_MM_MAP",
        severity: Severity::Advice,
        needed: "CONFIG_CHECKPOINT_RESTORE",
        lost: "the base of a program is not moved, so that less of its code is covered and the page cache seldom serves it",
    },
    Row {
        feature: Feature::Userfaultfd,
        name: "userfaultfd",
        severity: Severity::Note,
        needed: "CAP_SYS_PTRACE, or vm.unprivileged_userfaultfd = 1",
        lost: "only if writable memory is on the pool: a fork stops the other threads for longer",
    },
];

/// One outcome for each feature that is missing, or one for all.
pub fn features(facts: &Facts) -> Vec<CheckOutcome> {
    let outcomes: Vec<CheckOutcome> = FEATURES.iter().flat_map(|row| feature(facts, row)).collect();
    if outcomes.is_empty() && !facts.attempts.is_empty() {
        return fine("the kernel's features were tried, and all work");
    }
    outcomes
}

fn feature(facts: &Facts, row: &Row) -> Vec<CheckOutcome> {
    let Row { feature, name, severity, needed, lost } = row;
    match facts.attempt(*feature) {
        None | Some(Attempt::Works) => Vec::new(),
        Some(Attempt::NotMade(why)) => {
            vec![CheckOutcome::NotSeen { what: format!("whether {name} works: {why}"), root_sees: false }]
        }
        // A call that only root may make is no fault of the machine.
        Some(Attempt::Refused { .. })
            if !facts.is_root && matches!(feature, Feature::CollapseOther | Feature::Userfaultfd) =>
        {
            vec![CheckOutcome::for_root(format!("{name} is for root; without it {lost}"))]
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
