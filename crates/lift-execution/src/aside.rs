//! The old way, for kernels that cannot move pool memory: the part is moved aside, mapping by mapping.

use crate::executor::{Backing, CallError, Executor};
use crate::restoring::{Place, lay_over, persist, put_copy};
use address_space::{Address, AddressRange, AddressSpace, PageSize, RangeSet};
use alloc::vec::Vec;

/// Memory on its way aside, or there.
pub(crate) struct Aside {
    /// The part.
    range: AddressRange,
    /// Where the part's first byte lies aside, or would lie.
    at: Address,
    /// The mappings that have been moved.
    moved: Vec<AddressRange>,
    /// New memory lies in the part's place.
    in_place: bool,
}

impl Aside {
    /// Finds a place for the whole part before any of it moves: a later mapping could land in the gap that an earlier
    /// move has left, where the new memory is to go.
    pub fn reserve(executor: &mut impl Executor, range: AddressRange) -> Result<Self, CallError> {
        let at = executor.map(range.len(), Backing::Ordinary)?;
        Ok(Self { range, at, moved: Vec::new(), in_place: false })
    }

    fn of(&self, range: AddressRange) -> AddressRange {
        AddressRange::sized(self.at + (range.start() - self.range.start()), range.len())
    }

    /// Moves one mapping out of the way.
    pub fn take(&mut self, executor: &mut impl Executor, range: AddressRange) -> Result<(), CallError> {
        executor.move_to(range, self.of(range).start())?;
        self.moved.push(range);
        Ok(())
    }

    /// Maps pool memory in the place that was left.
    pub fn map_in_place(&mut self, executor: &mut impl Executor, size: PageSize) -> Result<(), CallError> {
        executor.map_at(self.range, Backing::Hugetlb(size))?;
        self.in_place = true;
        Ok(())
    }

    /// Copies back what was moved.
    pub fn copy_back(&self, executor: &mut impl Executor, copy: &RangeSet) -> Result<(), CallError> {
        for mapping in &self.moved {
            for range in copy.within(*mapping) {
                executor.copy(self.of(range), range.start())?;
            }
        }
        Ok(())
    }

    /// Drops what was moved: the part is lifted. A failure costs address space only.
    pub fn drop(self, executor: &mut impl Executor) {
        let _ = persist(|| executor.unmap(self.of(self.range)));
    }

    /// Moves everything back where it was.
    pub fn give_back(self, executor: &mut impl Executor, before: &AddressSpace) {
        let mut place = Place::Gap;
        if self.in_place && persist(|| executor.unmap(self.range)).is_err() && lay_over(executor, self.range).is_ok() {
            place = Place::Laid;
        }
        let mut restored = true;
        for mapping in &self.moved {
            let from = self.of(*mapping);
            restored &= persist(|| executor.move_to(from, mapping.start()))
                .or_else(|_| put_copy(executor, before, *mapping, from.start(), place))
                .is_ok();
        }
        // What could not be put back is at least not thrown away.
        if restored {
            let _ = persist(|| executor.unmap(self.of(self.range)));
        }
    }
}
