//! The costs of a lift's operations on this machine, kept from the last `pagelift probe`.

use crate::kept::Kept;
use lift_plan::Costs;
use serde::Serialize;
use std::io;

const KEPT: Kept = Kept { name: "lift-costs", format: "lift-costs-2" };
/// Maximum of one cost in nanoseconds.
const MOST: u64 = 1_000_000_000;

/// The costs that are used for prices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct KnownCosts {
    /// The costs.
    #[serde(flatten)]
    pub costs: Costs,
    /// True if they were measured on this machine.
    pub measured: bool,
}

/// Returns the measured costs of this machine, or the usual ones.
pub fn known() -> KnownCosts {
    let measured = KEPT.known(understood);
    KnownCosts { costs: measured.unwrap_or(Costs::USUAL), measured: measured.is_some() }
}

/// Keeps measured costs.
///
/// # Errors
/// This user has no folder, or the kernel's.
pub fn keep(costs: &Costs) -> io::Result<()> {
    let Costs { fill, copy, call, pause } = *costs;
    KEPT.keep(&[fill, copy, call, pause])
}

fn understood(numbers: &[u64]) -> Option<Costs> {
    let &[fill, copy, call, pause] = numbers else { return None };
    let is_sound = numbers.iter().all(|cost| (1..=MOST).contains(cost));
    is_sound.then_some(Costs { fill, copy, call, pause })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_sound_costs_count() {
        let costs = Costs { fill: 100_000, copy: 50_000, call: 4_000, pause: 20_000 };
        assert_eq!(understood(&[100_000, 50_000, 4_000, 20_000]), Some(costs));
        for bad in [&[][..], &[1, 2, 3], &[1, 2, 3, 4, 5], &[0, 2, 3, 4], &[1, 2, 3, 1_000_000_001]] {
            assert_eq!(understood(bad), None, "{bad:?}");
        }
    }
}
