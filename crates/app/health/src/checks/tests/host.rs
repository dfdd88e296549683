//! Verdicts on the host that rest on a measurement.

use super::*;
use crate::finding::Severity;

#[test]
fn the_load_during_the_measurement_is_named() {
    let words = ["cost page walks (measured while other programs used 1.8 CPUs)", "on the host"];
    finds("host-backing", Severity::Advice, words, |f| {
        let measured = f.host.measured.as_mut().unwrap();
        (measured.splintered, measured.others) = (Some(true), Some(1.8));
    });
}

#[test]
fn passes_that_disagree_give_no_verdict() {
    let mut unseen = healthy();
    let measured = unseen.host.measured.as_mut().unwrap();
    (measured.splintered, measured.needed) = (None, None);
    let missing = examine(&unseen).not_seen;
    let missing = missing.iter().find(|missing| missing.check == "host-backing").unwrap();
    assert!(missing.what.contains("the passes disagree; fix: again while little else runs"), "{}", missing.what);
}
