//! Arrays of entries.

use crate::tlb_model::{ArrayShape, Index, Replacement};

/// Marks an entry that holds nothing.
const EMPTY: u64 = u64::MAX;

/// One array with its contents.
#[derive(Clone, Debug)]
pub struct Array {
    shape: ArrayShape,
    sets: u64,
    /// Log2 of the sets, for [`Index::FoldedXor`].
    set_bits: u32,
    /// Set by set; with LRU the latest used of a set first.
    entries: Vec<Entry>,
    /// The bits of each set's tree, root in bit 1, children of bit n in bits 2n and 2n + 1.
    trees: Vec<u64>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    tag: u64,
    used: u64,
}

impl Array {
    pub fn new(shape: ArrayShape) -> Self {
        let sets = shape.sets();
        let trees = if shape.replacement == Replacement::TreePlru { sets } else { 0 };
        Self {
            shape,
            sets: sets as u64,
            set_bits: sets.trailing_zeros(),
            entries: vec![Entry { tag: EMPTY, used: 0 }; shape.entries],
            trees: vec![0; trees],
        }
    }

    pub fn holds_size(&self, shift: u8) -> bool {
        self.shape.sizes.has(shift)
    }

    fn set_of(&self, page: u64) -> usize {
        let number = match self.shape.index {
            Index::Linear => page % self.sets,
            Index::FoldedXor => (page ^ page >> self.set_bits) & (self.sets - 1),
        };
        number as usize
    }

    /// Page number and size in one word: numbers have 52 bits at most.
    fn tag(page: u64, shift: u8) -> u64 {
        page << 6 | u64::from(shift)
    }

    /// Looks for a page. Where it is found, it counts as used at `now`.
    pub fn find(&mut self, page: u64, shift: u8, now: u64) -> bool {
        let (set, tag, ways) = (self.set_of(page), Self::tag(page, shift), self.shape.ways);
        let entries = &mut self.entries[set * ways..(set + 1) * ways];
        let Some(at) = entries.iter().position(|entry| entry.tag == tag) else { return false };
        entries[at].used = now;
        match self.shape.replacement {
            Replacement::Lru => entries[..=at].rotate_right(1),
            Replacement::TreePlru => self.trees[set] = pointed_away(self.trees[set], at, ways),
        }
        true
    }

    /// Time of the last use of the entry that this page would replace; `None`: there is room.
    pub fn age_of_victim(&self, page: u64) -> Option<u64> {
        let (set, ways) = (self.set_of(page), self.shape.ways);
        let entries = &self.entries[set * ways..(set + 1) * ways];
        let victim = entries[self.victim(set)];
        (victim.tag != EMPTY).then_some(victim.used)
    }

    /// The way of a set that is filled next: an empty one if there is one.
    fn victim(&self, set: usize) -> usize {
        let ways = self.shape.ways;
        match self.shape.replacement {
            Replacement::Lru => ways - 1,
            Replacement::TreePlru => {
                let entries = &self.entries[set * ways..(set + 1) * ways];
                let empty = entries.iter().position(|entry| entry.tag == EMPTY);
                empty.unwrap_or_else(|| pointed_to(self.trees[set], ways))
            }
        }
    }

    /// Puts a page in that is not there.
    pub fn insert(&mut self, page: u64, shift: u8, now: u64) {
        let (set, ways) = (self.set_of(page), self.shape.ways);
        let at = self.victim(set);
        let entries = &mut self.entries[set * ways..(set + 1) * ways];
        entries[at] = Entry { tag: Self::tag(page, shift), used: now };
        match self.shape.replacement {
            Replacement::Lru => entries[..=at].rotate_right(1),
            Replacement::TreePlru => self.trees[set] = pointed_away(self.trees[set], at, ways),
        }
    }
}

/// The tree after a use of the entry `at`: each bit on the way to it points to the other side.
fn pointed_away(mut tree: u64, at: usize, ways: usize) -> u64 {
    let (mut node, mut half) = (1, ways / 2);
    while half > 0 {
        let right = at & half != 0;
        if right {
            tree &= !(1 << node);
        } else {
            tree |= 1 << node;
        }
        node = 2 * node + usize::from(right);
        half /= 2;
    }
    tree
}

/// The entry that the bits point to.
fn pointed_to(tree: u64, ways: usize) -> usize {
    let (mut node, mut at, mut half) = (1, 0, ways / 2);
    while half > 0 {
        let right = tree >> node & 1 == 1;
        at += if right { half } else { 0 };
        node = 2 * node + usize::from(right);
        half /= 2;
    }
    at
}
