//! The machine below this kernel.

use super::{fine, found};
use crate::facts::Facts;
use crate::finding::{CheckOutcome, Fix, Severity};

/// Checks that the host backs huge pages by huge pages, according to the measurement.
pub fn backing(facts: &Facts) -> Vec<CheckOutcome> {
    let measured = facts.host.measured;
    let how = beside(measured.and_then(|measured| measured.others));
    match measured.map(|measured| measured.splintered) {
        Some(Some(true)) => found(
            Severity::Advice,
            "the host backs huge pages by small ones",
            format!("few huge pages, which any TLB holds, cost page walks ({how})"),
            "memory of the guest on huge pages of the host",
            "walks get shorter, but the TLB reaches hardly farther: most of the gain is lost",
            Some(Fix::by_hand(
                "on the host: hugepages for the guest (libvirt <hugepages/>, QEMU memory-backend-memfd,hugetlb=on), or \
                 transparent_hugepage=always; in a cloud: bare metal or another instance type",
            )),
        ),
        Some(Some(false)) => fine(format!("the host backs huge pages by huge pages ({how})")),
        // Nothing is below this kernel.
        Some(None) if facts.host.virtual_machine == Some(false) => Vec::new(),
        Some(None) => {
            let more = |bytes: u64| {
                format!(
                    ": not at this footprint, at which base pages cost no page walks yet; fix: pagelift probe --memory {}M",
                    bytes.div_ceil(1 << 20)
                )
            };
            // Without a footprint that would show it, the passes disagree, or there were no huge pages to measure.
            let again = || ": no huge pages could be measured, or the passes disagree; fix: again while little else runs, with free huge pages (THP or pool)";
            let more = measured.and_then(|measured| measured.needed).map_or_else(|| again().to_owned(), more);
            vec![CheckOutcome::NotSeen { what: format!("how the host backs huge pages{more}"), root_sees: false }]
        }
        // For a program the verdict contains it.
        None if facts.host.virtual_machine == Some(true) && facts.program.is_none() => vec![CheckOutcome::NotSeen {
            what: "how the host of this virtual machine backs huge pages: --probe measures it".to_owned(),
            root_sees: false,
        }],
        None => Vec::new(),
    }
}

/// Least load by other programs, in CPUs, that changes the times.
const LITTLE: f64 = 0.2;

/// That the host was measured, and the other load meanwhile.
fn beside(others: Option<f64>) -> String {
    match others.filter(|others| *others >= LITTLE) {
        Some(others) => format!("measured while other programs used {others:.1} CPUs"),
        None => "measured".to_owned(),
    }
}

/// KVM's cure for the erratum itlb_multihit, which splits executable huge pages of guests
/// (`Documentation/admin-guide/hw-vuln/multihit.rst`).
pub fn executable_pages(facts: &Facts) -> Vec<CheckOutcome> {
    let Some(state) = facts.host.itlb_multihit.as_deref() else { return Vec::new() };
    let splits_here = state.contains("Split huge pages");
    let in_guest = facts.host.virtual_machine == Some(true);
    if state.contains("Not affected") || !(splits_here || in_guest) {
        return fine(format!("itlb_multihit: {state}"));
    }
    let parameter = facts.host.nx_huge_pages.as_deref().unwrap_or("not shown");
    found(
        Severity::Note,
        match in_guest {
            true => "the host may split executable huge pages",
            false => "this host splits executable huge pages of its guests",
        },
        format!("itlb_multihit: {state}; kvm.nx_huge_pages: {parameter}"),
        "a CPU that is not affected",
        "KVM maps code of guests by 4 KiB pages on such CPUs; programs of the host itself are not concerned",
        Some(Fix::by_hand(
            "newer CPUs are not affected; kvm.nx_huge_pages=off on the host removes the protection: only if all guests \
             are trusted",
        )),
    )
}
