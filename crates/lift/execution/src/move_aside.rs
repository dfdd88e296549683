//! Moves a part aside, mapping by mapping, for kernels whose `mremap` refuses pool memory (before Linux 5.16).

use crate::executor::{Backing, CallError, Executor, persist};
use crate::restoring::{CopyDestination, lay_over, put_copy};
use address_space::{Address, AddressRange, AddressSpace, PageSize, RangeSet};
use alloc::vec::Vec;

/// A part that is being moved aside, or has been.
pub(crate) struct MovedAside {
    /// The part.
    range: AddressRange,
    /// The address to which the part's first byte moves.
    at: Address,
    /// The mappings that have been moved.
    moved: Vec<AddressRange>,
    /// True once new memory is mapped in the part's place.
    in_place: bool,
}

impl MovedAside {
    /// Reserves a place for the whole part before any piece moves. Otherwise a later mapping could be placed in the gap
    /// that an earlier move has left, which is needed for the new memory.
    pub fn reserve(executor: &mut impl Executor, range: AddressRange) -> Result<Self, CallError> {
        let at = executor.map(range.len(), Backing::Ordinary)?;
        Ok(Self { range, at, moved: Vec::new(), in_place: false })
    }

    fn of(&self, range: AddressRange) -> AddressRange {
        AddressRange::sized(self.at + (range.start() - self.range.start()), range.len())
    }

    /// Moves one mapping aside.
    pub fn take(&mut self, executor: &mut impl Executor, range: AddressRange) -> Result<(), CallError> {
        executor.move_to(range, self.of(range).start())?;
        self.moved.push(range);
        Ok(())
    }

    /// Maps pool memory in the part's own place.
    pub fn map_in_place(&mut self, executor: &mut impl Executor, size: PageSize) -> Result<(), CallError> {
        executor.map_at(self.range, Backing::Hugetlb { size, reserve: true })?;
        self.in_place = true;
        Ok(())
    }

    /// Copies back the moved contents.
    pub fn copy_back(&self, executor: &mut impl Executor, copy: &RangeSet) -> Result<(), CallError> {
        for mapping in &self.moved {
            for range in copy.within(*mapping) {
                executor.copy(self.of(range), range.start())?;
            }
        }
        Ok(())
    }

    /// Drops the moved memory: the part is lifted. A failure costs address space only.
    pub fn drop(self, executor: &mut impl Executor) {
        let _ = persist(|| executor.unmap(self.of(self.range)));
    }

    /// Moves every mapping back to its own place.
    pub fn give_back(self, executor: &mut impl Executor, before: &AddressSpace) {
        let mut place = CopyDestination::Gap;
        if self.in_place && persist(|| executor.unmap(self.range)).is_err() && lay_over(executor, self.range).is_ok() {
            place = CopyDestination::Laid;
        }
        let mut restored = true;
        for mapping in &self.moved {
            let from = self.of(*mapping);
            restored &= persist(|| executor.move_to(from, mapping.start()))
                .or_else(|_| put_copy(executor, before, *mapping, from.start(), place))
                .is_ok();
        }
        // A part that could not be moved back stays mapped at its place: its contents exist nowhere else.
        if restored {
            let _ = persist(|| executor.unmap(self.of(self.range)));
        }
    }
}
