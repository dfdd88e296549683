//! Seals lifted memory that is never written.

use crate::executor::Executor;
use crate::outcome::{LiftOutcome, Sealing};
use address_space::AddressRange;
use lift_plan::{Reason, Source};

/// Seals the copies of read-only memory of files. Memory of a file, a shared image too, can be discarded without loss:
/// the next access reads the file again. A copy cannot, and sealed it is not discarded.
///
/// Sealed memory stays unchanged until the process executes another program or ends: it cannot be restored.
pub fn seal(outcome: &mut LiftOutcome, executor: &mut impl Executor) {
    let mut sealing = Sealing::default();
    let is_copy = |source| matches!(source, Some(Source::Hugetlb | Source::Thp));
    for range in outcome.ranges.iter().filter(|range| is_copy(range.source) && !range.protection.write) {
        for copy in range.lifted.iter() {
            match executor.seal(copy) {
                Ok(()) => sealing.sealed += copy.len(),
                Err(error) => refuse(&mut sealing, copy, error.into()),
            }
        }
    }
    outcome.sealing = Some(sealing);
}

fn refuse(sealing: &mut Sealing, range: AddressRange, reason: Reason) {
    sealing.not_sealed += range.len();
    sealing.reason.get_or_insert(reason);
}
