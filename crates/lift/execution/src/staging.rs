//! The state of one part while its steps are executed, and how to undo it.

use crate::executor::persist;
use crate::executor::{Backing, CallError, EFAULT, EIO, ENOMEM, ENOSYS, Executor, FileMapping};
use crate::move_aside::MovedAside;
use crate::outcome::Uncovered;
use crate::swapping::{Refused, show, swap};
use address_space::{Address, AddressRange, AddressSpace, Mapping, PageSize, Protection, RangeSet};
use alloc::vec::Vec;
use lift_plan::{Reason, Source, Step};

/// The state of one part while it is lifted.
pub(crate) struct PartState<'a> {
    /// The part.
    range: AddressRange,
    /// The process's mappings before the lift.
    before: &'a AddressSpace,
    /// The name under which maps shows transparent huge pages of a copy.
    name: &'a str,
    /// The address of the copy of the part's first byte.
    copy_at: Option<Address>,
    /// Ranges (of the process) whose copies are still in staging.
    staged: RangeSet,
    /// Ranges that the remaining steps act on.
    kept: RangeSet,
    /// Ranges that are on their new pages.
    pub swapped: RangeSet,
    /// Ranges whose contents could not be restored in their place.
    pub displaced: Vec<Uncovered>,
    /// The memory that was moved aside (before Linux 5.16).
    moved_aside: Option<MovedAside>,
}

impl<'a> PartState<'a> {
    pub fn new(range: AddressRange, before: &'a AddressSpace, name: &'a str) -> Self {
        let kept = RangeSet::from_iter([range]);
        Self {
            range,
            before,
            name,
            copy_at: None,
            staged: RangeSet::new(),
            kept,
            swapped: RangeSet::new(),
            displaced: Vec::new(),
            moved_aside: None,
        }
    }

    /// Executes one step.
    pub fn step(&mut self, executor: &mut impl Executor, step: &Step) -> Result<(), Reason> {
        match step {
            Step::MapStaging { range, source, size } => self.map_staging(executor, *range, *source, *size)?,
            Step::ShowImage { range, path, offset, protection } => {
                let image = FileMapping { path, offset: *offset, protection: *protection };
                self.show_image(executor, *range, image)?;
            }
            Step::Refault(range, size) => self.refault(executor, *range, *size)?,
            Step::MapFile { range, path, offset, protection } => {
                let file = FileMapping { path, offset: *offset, protection: *protection };
                self.map_file_again(executor, *range, file)?;
            }
            Step::Touch(range) => {
                // Pages that are not touched now get their page table entries when the program accesses them.
                let _ = executor.touch(*range);
            }
            Step::PlaceStaging(range, placement) => {
                self.copy_of(*range).map_or(Ok(()), |copy| executor.place(copy, placement))?;
            }
            Step::PlaceInPlace(range, placement) => executor.place(*range, placement)?,
            Step::PopulateStaging(range, size) => self.populate_staging(executor, *range, *size)?,
            Step::CollapseStaging(range, size) => self.collapse_staging(executor, *range, *size),
            Step::KeepHuge(range, size) => self.keep_huge(executor, *range, *size)?,
            Step::CopyToStaging(copy) => self.copy_to_staging(executor, copy)?,
            Step::Swap(_, protection) => self.swap(executor, *protection)?,
            Step::MoveAside(range) => self.move_aside(executor, *range)?,
            Step::MapInPlace(_, size) => {
                self.moved_aside.as_mut().map_or(Ok(()), |moved| moved.map_in_place(executor, *size))?;
            }
            Step::PopulateInPlace(range, size) => executor.populate(*range, *size)?,
            Step::CopyBack(copy) => {
                self.moved_aside.as_ref().map_or(Ok(()), |moved| moved.copy_back(executor, copy))?
            }
            Step::SealInPlace(range, protection) => executor.protect(*range, *protection)?,
            Step::DropAside(range) => {
                self.moved_aside.take().into_iter().for_each(|moved| moved.drop(executor));
                self.swapped.insert(*range);
            }
            Step::AdviseInPlace(range) => {
                executor.advise_huge(*range)?;
                self.swapped.insert(*range);
            }
            Step::CollapseInPlace(range) => executor.collapse(*range)?,
        }
        Ok(())
    }

    /// Undoes unfinished work. A staging copy that could not be unmapped is found when the mappings are compared.
    pub fn clean_up(&mut self, executor: &mut impl Executor) {
        for range in core::mem::take(&mut self.staged).iter() {
            if let Some(copy) = self.copy_of(range) {
                let _ = persist(|| executor.unmap(copy));
            }
        }
        if let Some(moved) = self.moved_aside.take() {
            moved.give_back(executor, self.before);
        }
    }

    fn copy_of(&self, range: AddressRange) -> Option<AddressRange> {
        let at = self.copy_at?;
        Some(AddressRange::sized(at + (range.start() - self.range.start()), range.len()))
    }

    fn map_staging(
        &mut self,
        executor: &mut impl Executor,
        range: AddressRange,
        source: Source,
        size: PageSize,
    ) -> Result<(), CallError> {
        let at = match source {
            Source::Hugetlb => {
                let reserve = self.before.overlapping(range).iter().any(|mapping| mapping.protection.write);
                executor.map(range.len(), Backing::Hugetlb { size, reserve })?
            }
            _ => executor.map_advised(range.len(), size, self.name)?,
        };
        self.copy_at = Some(at);
        self.staged.insert(range);
        Ok(())
    }

    /// Maps the image in place or, if the executor cannot, elsewhere and moves it.
    fn show_image<E: Executor>(
        &mut self,
        executor: &mut E,
        range: AddressRange,
        image: FileMapping<'_>,
    ) -> Result<(), CallError> {
        match show(executor, self.before, image, range) {
            Ok(()) => {
                self.swapped.insert(range);
                Ok(())
            }
            Err(Refused { error: CallError { errno: ENOSYS, .. }, .. }) => {
                self.copy_at = Some(executor.map_file(image, range.len())?);
                self.staged.insert(range);
                self.swap(executor, None)
            }
            Err(refused) => Err(self.note_displaced(range, refused)),
        }
    }

    /// Notes the parts of a range that a refused replacement has left without their contents, and keeps their copy.
    fn note_displaced(&mut self, range: AddressRange, refused: Refused) -> CallError {
        for part in refused.displaced.iter() {
            self.staged.remove(range);
            let kept = refused.kept.map(|at| at + (part.start() - range.start()));
            self.displaced.push(Uncovered { range: part, reason: Reason::Displaced { kept } });
        }
        refused.error
    }

    /// Renews the page table entries, unless all are huge already.
    fn refault(&mut self, executor: &mut impl Executor, range: AddressRange, size: PageSize) -> Result<(), Reason> {
        let mut huge = executor.query_huge(range, size)?;
        if !huge.covers(range) {
            executor.refault(range)?;
            huge = executor.query_huge(range, size)?;
        }
        huge.within(range).for_each(|part| self.swapped.insert(part));
        if self.swapped.is_empty() { Err(Reason::SmallFolios(None)) } else { Ok(()) }
    }

    /// Maps the file again, elsewhere. It must be the file that the range shows: the path may lead to another by now.
    fn map_file_again<E: Executor>(
        &mut self,
        executor: &mut E,
        range: AddressRange,
        file: FileMapping<'_>,
    ) -> Result<(), Reason> {
        self.copy_at = Some(executor.map_own_file(file, range.len())?);
        self.staged.insert(range);
        let copy = self.copy_of(range).unwrap_or(range);
        let (before, now) = (self.before.find(range.start()), executor.space()?);
        let (before, now) = before.zip(now.find(copy.start())).ok_or(Reason::NoCachedFile)?;
        let place = |mapping: &Mapping, at: AddressRange| {
            let offset = mapping.offset.wrapping_add(at.start() - mapping.range.start());
            (mapping.device, mapping.inode, offset, mapping.protection, mapping.shared)
        };
        let is_same = place(before, range) == place(now, copy) && now.range.covers(copy);
        if !is_same {
            return Err(Reason::FileReplaced);
        }
        Ok(executor.expect_unchanged(range)?)
    }

    fn populate_staging(
        &mut self,
        executor: &mut impl Executor,
        range: AddressRange,
        size: PageSize,
    ) -> Result<(), CallError> {
        // Without a reservation the kernel notices here that its pool is empty.
        let is_shortage = |error: &CallError| [EFAULT, EIO].contains(&error.errno);
        let named = |error: CallError| if is_shortage(&error) { CallError { errno: ENOMEM, ..error } } else { error };
        self.copy_of(range).map_or(Ok(()), |copy| executor.populate(copy, size)).map_err(named)
    }

    /// Errors are ignored: the next step reads back which pages are huge. Kernels without `MADV_COLLAPSE` keep the
    /// pages that the faults gave.
    fn collapse_staging(&mut self, executor: &mut impl Executor, range: AddressRange, size: PageSize) {
        for kept in self.kept.within(range).collect::<Vec<_>>() {
            let Some(copy) = self.copy_of(kept) else { return };
            let huge = executor.query_huge(copy, size).unwrap_or_default();
            // Page by page, so that one unavailable huge page does not affect the others.
            for page in copy.pages(size).filter(|page| !huge.covers(*page)) {
                let _ = executor.collapse(page);
            }
        }
    }

    fn keep_huge(&mut self, executor: &mut impl Executor, range: AddressRange, size: PageSize) -> Result<(), Reason> {
        let Some(copy) = self.copy_of(range) else { return Ok(()) };
        let huge = executor.query_huge(copy, size)?;
        let in_process = |part: AddressRange| {
            let whole = part.whole_pages(size);
            AddressRange::sized(range.start() + (whole.start() - copy.start()), whole.len())
        };
        // Ranges that were dropped earlier have not been copied, and must not be kept again.
        self.kept = huge
            .within(copy)
            .map(in_process)
            .flat_map(|part| self.kept.within(part).map(|kept| kept.whole_pages(size)).collect::<Vec<_>>())
            .collect();
        if self.kept.is_empty() { Err(Reason::NotHuge { bytes: range.len() }) } else { Ok(()) }
    }

    fn copy_to_staging(&mut self, executor: &mut impl Executor, copy: &RangeSet) -> Result<(), CallError> {
        for kept in self.kept.iter().collect::<Vec<_>>() {
            for range in copy.within(kept) {
                if let Some(to) = self.copy_of(range) {
                    executor.copy(range, to.start())?;
                }
            }
        }
        Ok(())
    }

    /// Puts the copy in place with its final protection, if it does not have that yet.
    fn swap<E: Executor>(&mut self, executor: &mut E, protection: Option<Protection>) -> Result<(), CallError> {
        let mut protection = protection.filter(|protection| *protection != Protection::READ_WRITE);
        // Every range is protected before the first is moved. If a refused move has no effect, each is protected with its move.
        if !executor.restores_destination()
            && let Some(protection) = protection.take()
        {
            for copy in self.kept.iter().filter_map(|range| self.copy_of(range)).collect::<Vec<_>>() {
                executor.protect(copy, protection)?;
            }
        }
        for range in self.kept.iter().collect::<Vec<_>>() {
            let Some(copy) = self.copy_of(range) else { continue };
            swap(executor, self.before, copy, range, protection)
                .map_err(|refused| self.note_displaced(range, refused))?;
            self.swapped.insert(range);
            self.staged.remove(range);
        }
        Ok(())
    }

    fn move_aside(&mut self, executor: &mut impl Executor, range: AddressRange) -> Result<(), CallError> {
        // Pool pages are mapped in its place, and filled before they are protected.
        if executor.guards_branches(range)? {
            return Err(CallError { call: "moving aside code that guards its branches (PROT_BTI)", errno: ENOSYS });
        }
        let moved = match self.moved_aside.take() {
            Some(moved) => moved,
            None => MovedAside::reserve(executor, self.range)?,
        };
        self.moved_aside.insert(moved).take(executor, range)
    }
}
