//! The table of large blocks: it holds what was set, and each call examines few places.
//!
//! The library itself, which would replace this program's allocator, is not linked.

#[path = "../src/by_address.rs"]
mod by_address;

/// Stands in for the kernel: zeroed memory, which is never returned.
mod sys {
    use std::cell::Cell;

    thread_local! {
        /// Mappings are refused.
        pub static IS_SHORT: Cell<bool> = const { Cell::new(false) };
    }

    pub fn map_anywhere(bytes: usize, _reserve_only: bool, _more_flags: i32) -> Option<usize> {
        let words = || Box::leak(vec![0u64; bytes.div_ceil(8)].into_boxed_slice()).as_mut_ptr() as usize;
        (!IS_SHORT.get()).then(words)
    }

    /// # Safety
    /// Nothing is unmapped.
    pub unsafe fn unmap(_start: usize, _bytes: usize) -> bool {
        true
    }
}

use by_address::ByAddress;
use std::collections::BTreeMap;

const MIB: usize = 1 << 20;
/// Address of the first block.
const FIRST: usize = 0x7f00_0000_0000;
/// Number of blocks that a program held when its calls took quadratic time.
const BLOCKS: usize = 40_000;

/// Numbers that look random (SplitMix64).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        for (shift, factor) in [(30, 0xbf58_476d_1ce4_e5b9), (27, 0x94d0_49bb_1331_11eb)] {
            mixed = (mixed ^ mixed >> shift).wrapping_mul(factor);
        }
        (mixed ^ mixed >> 31) as usize % bound
    }
}

fn add(table: &mut ByAddress<usize>, address: usize, record: usize) -> Option<usize> {
    assert!(table.make_room());
    table.set(address, record)
}

#[test]
fn it_holds_what_a_map_holds() {
    let mut numbers = Numbers(1);
    for addresses in [1, 3, 40, 200, 5000] {
        let (mut table, mut model) = (ByAddress::new(), BTreeMap::new());
        assert_eq!((table.get(FIRST), table.remove(FIRST)), (None, None));
        for step in 0..30_000 {
            let address = FIRST + numbers.below(addresses) * 2 * MIB;
            // Grows and shrinks in turn.
            let is_growing = step / 3000 % 2 == 0;
            if numbers.below(4) < if is_growing { 3 } else { 1 } {
                assert_eq!(add(&mut table, address, step), model.insert(address, step));
            } else {
                assert_eq!(table.remove(address), model.remove(&address));
            }
            let other = FIRST + numbers.below(addresses) * 2 * MIB;
            assert_eq!(table.get(other), model.get(&other).copied());
            assert_eq!(table.count(), model.len());
        }
        let mut records: Vec<usize> = table.iter_mut().map(|record| *record).collect();
        records.sort_unstable();
        let mut expected: Vec<usize> = model.values().copied().collect();
        expected.sort_unstable();
        assert_eq!(records, expected);
        assert!(model.iter().all(|(&address, &record)| table.get(address) == Some(record)));
    }
}

#[test]
fn a_call_takes_few_steps_however_many_blocks_there_are() {
    for stride in [64 << 10, MIB, 2 * MIB, 4 * MIB, 6 * MIB, 32 * MIB, 1 << 30] {
        for is_downwards in [false, true] {
            let address = |n: usize| if is_downwards { FIRST - n * stride } else { FIRST + n * stride };
            let mut table = ByAddress::new();
            (0..BLOCKS).for_each(|n| assert_eq!(add(&mut table, address(n), n), None));
            let steps_to_add = table.steps.replace(0);
            (0..BLOCKS).for_each(|n| assert_eq!(table.get(address(n)), Some(n)));
            let steps_to_find = table.steps.replace(0);
            (0..BLOCKS).for_each(|n| assert_eq!(table.get(address(n) + stride / 2), None));
            let steps_to_miss = table.steps.replace(0);
            // Every other block goes and comes, as in a program that runs for long.
            for n in (0..BLOCKS).step_by(2) {
                assert_eq!(table.remove(address(n)), Some(n));
                assert_eq!(add(&mut table, address(n), n), None);
            }
            let steps_to_exchange = table.steps.replace(0);
            (0..BLOCKS).for_each(|n| assert_eq!(table.remove(address(n)), Some(n)));
            let steps_to_remove = table.steps.replace(0);
            let all = [steps_to_add, steps_to_find, steps_to_miss, steps_to_exchange, steps_to_remove];
            assert!(all.iter().all(|&steps| steps <= 8 * BLOCKS), "{stride:#x} {is_downwards}: {all:?}");
        }
    }
}

#[test]
fn without_memory_it_stays_as_it_is() {
    let mut table = ByAddress::new();
    let mut added = 0;
    assert!(table.make_room());
    sys::IS_SHORT.set(true);
    while table.make_room() {
        added += 1;
        assert_eq!(table.set(FIRST + added * MIB, added), None);
    }
    assert!(added > 0 && table.count() == added);
    assert!((1..=added).all(|n| table.get(FIRST + n * MIB) == Some(n)));
    // A record that is replaced, or comes in place of another, needs no room.
    assert_eq!(table.remove(FIRST + MIB), Some(1));
    assert_eq!(table.set(FIRST, 7), None);
    assert_eq!(table.set(FIRST, 8), Some(7));
    sys::IS_SHORT.set(false);
    assert!(table.make_room());
    assert_eq!((table.get(FIRST), table.count()), (Some(8), added));
}
