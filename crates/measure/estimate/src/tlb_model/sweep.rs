//! The cost of a cycle through pages in the model: the pattern of pointer chases, whose times show a TLB's reach.

use crate::tlb_model::{Lookup, Side, Tlbs, Translation};
use serde::Serialize;

/// Rounds before it is counted: the first fills the TLBs, the second leaves them as every later one does.
const WARM_UP: usize = 2;

/// Shares of all accesses, 0 to 1; together 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Shares {
    /// Found in the first level.
    pub first: f64,
    /// Found in the second level.
    pub second: f64,
    /// Walked to.
    pub walks: f64,
}

/// Visits pages of `1 << shift` bytes, identified by their numbers, in this order repeatedly, and returns the levels at
/// which one round of the steady state finds them. Zeros without any pages.
pub fn sweep(tlbs: &mut Tlbs, side: Side, shift: u8, pages: impl Iterator<Item = u64> + Clone) -> Shares {
    let mut counts = [0u64; 3];
    for round in 0..=WARM_UP {
        for page in pages.clone() {
            let outcome = tlbs.access(side, Translation { page, shift });
            counts[outcome as usize] += u64::from(round == WARM_UP);
        }
    }
    let share = |outcome: Lookup| counts[outcome as usize] as f64 / counts.iter().sum::<u64>().max(1) as f64;
    Shares { first: share(Lookup::First), second: share(Lookup::Second), walks: share(Lookup::Walk) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tlb_model::{ArrayShape, Geometry, Second, Sizes};

    const SMALL: u8 = 12;

    fn geometry() -> Geometry {
        let sizes = Sizes::of(&[SMALL]);
        Geometry {
            name: "test".into(),
            source: "test".into(),
            instruction: vec![ArrayShape::full(sizes, 16)],
            data: vec![ArrayShape::full(sizes, 16)],
            second: Second::Shared(vec![ArrayShape::new(sizes, 128, 4)]),
            joined: None,
        }
    }

    fn tlbs() -> Tlbs {
        Tlbs::new(&geometry())
    }

    fn joining(shift: u8) -> Tlbs {
        Tlbs::new(&geometry().with_joined(shift, 2))
    }

    fn of(tlbs: &mut Tlbs, pages: u64) -> Shares {
        sweep(tlbs, Side::Data, SMALL, 0..pages)
    }

    #[test]
    fn each_level_serves_as_many_pages_as_it_has_entries() {
        assert_eq!(of(&mut tlbs(), 16), Shares { first: 1.0, ..Shares::default() });
        assert_eq!(of(&mut tlbs(), 17), Shares { second: 1.0, ..Shares::default() });
        assert_eq!(of(&mut tlbs(), 128), Shares { second: 1.0, ..Shares::default() });
        // 32 sets of four: one page more takes turns with the four others of its set.
        let shares = of(&mut tlbs(), 129);
        assert!((shares.walks - 5.0 / 129.0).abs() < 1e-9 && shares.first == 0.0, "{shares:?}");
        assert_eq!(of(&mut tlbs(), 160), Shares { walks: 1.0, ..Shares::default() });
        assert_eq!(of(&mut tlbs(), 0), Shares::default());
    }

    #[test]
    fn joined_pages_share_an_entry() {
        assert_eq!(of(&mut joining(SMALL), 64), Shares { first: 1.0, ..Shares::default() });
        let random = |seed: u64| (0..512u64).map(move |at| at.wrapping_mul(seed) % 512);
        let shares = sweep(&mut joining(SMALL), Side::Data, SMALL, random(73));
        assert!(shares.walks == 0.0 && shares.second > 0.0, "{shares:?}");
        let shares = sweep(&mut tlbs(), Side::Data, SMALL, random(73));
        assert_eq!(shares.walks, 1.0);
        // Pages of another size are not joined.
        assert_eq!(sweep(&mut joining(SMALL + 1), Side::Data, SMALL, random(73)).walks, 1.0);
    }
}
