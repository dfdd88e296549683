//! The amount of memory that freed large blocks keep follows the program's use.
//!
//! The library itself, which would replace this program's allocator, is not linked.

#[path = "../src/kept.rs"]
mod kept;

use kept::Allowance;

const MIB: usize = 1 << 20;
/// Bytes that any program may keep.
const USUAL: usize = 32 * MIB;
const SECOND: u64 = 1000;
/// A peak lasts at least this long.
const PERIOD: u64 = 10 * SECOND;

/// Memory was given back and is needed again at once.
fn in_vain(allowance: &mut Allowance, bytes: usize, now: u64) {
    allowance.gave_back(bytes, now);
    allowance.needs(bytes, now);
}

#[test]
fn a_program_keeps_no_more_than_it_has_held() {
    let mut allowance = Allowance::new();
    allowance.holds(200 * MIB, 1);
    assert_eq!((allowance.most(80 * MIB, 2), allowance.longest()), (USUAL, SECOND));
    in_vain(&mut allowance, 150 * MIB, 3);
    assert_eq!(allowance.longest(), PERIOD);
    assert_eq!(allowance.most(80 * MIB, 3), USUAL + 90 * MIB);
    assert_eq!(allowance.most(200 * MIB, 3), USUAL);
    assert_eq!(allowance.most(0, 3), USUAL + 150 * MIB);
}

#[test]
fn only_memory_that_was_given_back_lately_was_given_back_in_vain() {
    let mut allowance = Allowance::new();
    allowance.holds(200 * MIB, 1);
    allowance.needs(50 * MIB, 1);
    allowance.gave_back(50 * MIB, 1);
    allowance.needs(50 * MIB, 1 + SECOND);
    assert_eq!(allowance.most(0, 1 + SECOND), USUAL);
    allowance.gave_back(50 * MIB, 1 + SECOND);
    allowance.needs(30 * MIB, 2 * SECOND);
    assert_eq!(allowance.most(0, 2 * SECOND), USUAL + 30 * MIB);
    allowance.needs(30 * MIB, 2 * SECOND);
    assert_eq!(allowance.most(0, 2 * SECOND), USUAL + 50 * MIB);
}

#[test]
fn a_peak_is_forgotten_after_a_while() {
    let mut allowance = Allowance::new();
    allowance.holds(200 * MIB, 1);
    let kept = [0, 1, 2, 3].map(|periods| {
        let now = periods * PERIOD + 1;
        in_vain(&mut allowance, 400 * MIB, now);
        allowance.most(100 * MIB, now) - USUAL
    });
    assert_eq!(kept, [75 * MIB, 75 * MIB, 0, 0]);
}
