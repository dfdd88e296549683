//! All TLBs of a core.

use crate::tlb_model::array::Array;
use crate::tlb_model::{ArrayShape, Geometry, Joined, Second, Sizes};

/// The first level that an access uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Instruction fetch.
    Instruction,
    /// Load or store.
    Data,
}

/// A page as page tables map it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Translation {
    /// Address over size.
    pub page: u64,
    /// Log2 of the size in bytes.
    pub shift: u8,
}

/// The level at which an access finds its translation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// In the first level.
    First,
    /// In the second level.
    Second,
    /// Nowhere: the page tables are walked.
    Walk,
}

#[derive(Clone, Debug)]
struct FirstLevel {
    arrays: Vec<Array>,
    sizes: Sizes,
    last: Option<Translation>,
}

/// The TLBs of one core, with their contents.
#[derive(Clone, Debug)]
pub struct Tlbs {
    instruction: FirstLevel,
    data: FirstLevel,
    /// The second level for instructions, and for data too if it is shared.
    second: Vec<Array>,
    second_of_data: Option<Vec<Array>>,
    joined: Option<Joined>,
    now: u64,
}

impl Tlbs {
    /// Empty TLBs.
    ///
    /// # Panics
    /// If an array's numbers do not fit each other ([`ArrayShape::is_sound`]).
    pub fn new(geometry: &Geometry) -> Self {
        assert!(geometry.arrays().all(ArrayShape::is_sound), "{geometry:?}");
        let (second, second_of_data) = match &geometry.second {
            Second::Shared(arrays) => (arrays_of(arrays), None),
            Second::Split { instruction, data } => (arrays_of(instruction), Some(arrays_of(data))),
        };
        let (instruction, data) = (FirstLevel::new(&geometry.instruction), FirstLevel::new(&geometry.data));
        Self { instruction, data, second, second_of_data, joined: geometry.joined, now: 0 }
    }

    /// An access. Where it misses, its translation is in all levels afterwards.
    pub fn access(&mut self, side: Side, translation: Translation) -> Lookup {
        let translation = match self.joined {
            Some(Joined { shift, log2 }) if shift == translation.shift => {
                Translation { page: translation.page >> log2, shift }
            }
            _ => translation,
        };
        let (first, second) = match (side, &mut self.second_of_data) {
            (Side::Instruction, _) => (&mut self.instruction, &mut self.second),
            (Side::Data, Some(second)) => (&mut self.data, second),
            (Side::Data, None) => (&mut self.data, &mut self.second),
        };
        if first.last == Some(translation) {
            return Lookup::First;
        }
        self.now += 1;
        let now = self.now;
        first.last = Some(translation);
        // The caller passes any address in a page, and one translation for all addresses in it.
        let Translation { page, shift } = first.split(translation);
        if find(&mut first.arrays, page, shift, now) {
            return Lookup::First;
        }
        let found = find(second, page, shift, now);
        if !found {
            insert(second, page, shift, now);
        }
        insert(&mut first.arrays, page, shift, now);
        if found { Lookup::Second } else { Lookup::Walk }
    }
}

impl FirstLevel {
    fn new(shapes: &[ArrayShape]) -> Self {
        let sizes = shapes.iter().fold(Sizes::of(&[]), |sizes, shape| sizes.or(shape.sizes));
        Self { arrays: arrays_of(shapes), sizes, last: None }
    }

    /// A page with a size that no array holds is entered in pieces of the next smaller size in some array. The touched
    /// piece is unknown here: one entry represents the page, the most favourable case.
    fn split(&self, translation: Translation) -> Translation {
        match self.sizes.largest_within(translation.shift) {
            Some(shift) if shift < translation.shift => {
                Translation { page: translation.page << (translation.shift - shift), shift }
            }
            _ => translation,
        }
    }
}

fn arrays_of(shapes: &[ArrayShape]) -> Vec<Array> {
    shapes.iter().copied().map(Array::new).collect()
}

fn find(arrays: &mut [Array], page: u64, shift: u8, now: u64) -> bool {
    arrays.iter_mut().any(|array| array.holds_size(shift) && array.find(page, shift, now))
}

/// Inserts a page into the suitable array whose victim has been unused for the longest time, as if their sets were one.
fn insert(arrays: &mut [Array], page: u64, shift: u8, now: u64) {
    let able = arrays.iter_mut().filter(|array| array.holds_size(shift));
    if let Some(array) = able.min_by_key(|array| array.age_of_victim(page)) {
        array.insert(page, shift, now);
    }
}
