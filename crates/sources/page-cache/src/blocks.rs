//! Blocks of a file: the pieces that one huge page can hold.

use address_space::PageSize;
use std::ops::Range;

/// Numbers of the blocks that are completely in both `offsets` and a file of `length` bytes. Empty if there are none.
pub(crate) fn whole_blocks(offsets: &Range<u64>, length: u64, huge: PageSize) -> Range<u64> {
    let first = offsets.start.div_ceil(huge.bytes());
    let end = offsets.end.min(length) / huge.bytes();
    first..end.max(first)
}

/// The offsets of a run of blocks.
pub(crate) fn offsets_of(blocks: &Range<u64>, huge: PageSize) -> Range<u64> {
    blocks.start * huge.bytes()..blocks.end * huge.bytes()
}

/// The runs of consecutive numbers in a sorted list.
pub(crate) fn runs(numbers: &[u64]) -> Vec<Range<u64>> {
    let mut runs: Vec<Range<u64>> = Vec::new();
    for &number in numbers {
        match runs.last_mut() {
            Some(last) if last.end == number => last.end += 1,
            _ => runs.push(number..number + 1),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn blocks_are_those_that_fit_whole(start in 0u64..100, length in 0u64..100, file in 0u64..100) {
            let huge = PageSize::new(8).unwrap();
            let offsets = start..start + length;
            let fits = |block: &u64| {
                let bytes = offsets_of(&(*block..*block + 1), huge);
                bytes.start >= offsets.start && bytes.end <= offsets.end && bytes.end <= file
            };
            let expected: Vec<u64> = (0..30).filter(fits).collect();
            prop_assert_eq!(whole_blocks(&offsets, file, huge).collect::<Vec<_>>(), expected);
        }

        #[test]
        fn runs_hold_the_same_numbers(numbers in prop::collection::btree_set(0u64..40, 0..30)) {
            let numbers: Vec<u64> = numbers.into_iter().collect();
            let runs = runs(&numbers);
            prop_assert!(runs.windows(2).all(|pair| pair[0].end < pair[1].start));
            prop_assert_eq!(runs.into_iter().flatten().collect::<Vec<_>>(), numbers);
        }
    }

    #[test]
    fn no_offset_overflows() {
        let huge = PageSize::new(1 << 21).unwrap();
        assert!(whole_blocks(&(u64::MAX - 1..u64::MAX), u64::MAX, huge).is_empty());
        let reversed = Range { start: 5, end: 3 };
        assert!(whole_blocks(&reversed, 100, huge).is_empty());
    }
}
