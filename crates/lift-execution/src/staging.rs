//! The state of one part while its steps are executed, and how to undo it.

use crate::aside::Aside;
use crate::executor::{Backing, CallError, ENOSYS, Executor};
use crate::restoring::{Place, persist, put_copy};
use address_space::{Address, AddressRange, AddressSpace, PageSize, Protection, RangeSet};
use alloc::vec::Vec;
use lift_plan::{Reason, Source, Step};

/// One part on its way to huge pages.
pub(crate) struct PartState<'a> {
    /// The part.
    range: AddressRange,
    /// The process's mappings before the lift.
    before: &'a AddressSpace,
    /// Where the copy of the part's first byte lies.
    copy_at: Option<Address>,
    /// Ranges (of the process) whose copies still lie in staging.
    staged: RangeSet,
    /// Ranges that the remaining steps act on.
    kept: RangeSet,
    /// Ranges that lie on their new pages.
    pub swapped: RangeSet,
    /// What was moved aside (before Linux 5.16).
    aside: Option<Aside>,
}

/// A shared image that is to be shown in a range.
struct Shown<'a> {
    range: AddressRange,
    path: &'a str,
    offset: u64,
    protection: Protection,
}

impl Shown<'_> {
    fn map_in_place(&self, executor: &mut impl Executor) -> Result<(), CallError> {
        executor.map_file_at(self.path, self.offset, self.range, self.protection)
    }

    fn map_elsewhere(&self, executor: &mut impl Executor) -> Result<Address, CallError> {
        executor.map_file(self.path, self.offset, self.range.len(), self.protection)
    }
}

impl<'a> PartState<'a> {
    pub fn new(range: AddressRange, before: &'a AddressSpace) -> Self {
        let kept = RangeSet::from_iter([range]);
        Self { range, before, copy_at: None, staged: RangeSet::new(), kept, swapped: RangeSet::new(), aside: None }
    }

    /// Executes one step.
    pub fn step(&mut self, executor: &mut impl Executor, step: &Step) -> Result<(), Reason> {
        match step {
            Step::MapStaging { range, source, size } => self.map_staging(executor, *range, *source, *size)?,
            Step::ShowImage { range, path, offset, protection } => {
                let image = Shown { range: *range, path, offset: *offset, protection: *protection };
                self.show_image(executor, &image)?;
            }
            Step::PopulateStaging(range, size) => self.populate_staging(executor, *range, *size)?,
            Step::CollapseStaging(range, size) => self.collapse_staging(executor, *range, *size),
            Step::KeepHuge(range, size) => self.keep_huge(executor, *range, *size)?,
            Step::CopyToStaging(copy) => self.copy_to_staging(executor, copy)?,
            Step::SealStaging(_, protection) => self.seal_staging(executor, *protection)?,
            Step::Swap(_) => self.swap(executor)?,
            Step::MoveAside(range) => self.move_aside(executor, *range)?,
            Step::MapInPlace(_, size) => {
                self.aside.as_mut().map_or(Ok(()), |aside| aside.map_in_place(executor, *size))?;
            }
            Step::PopulateInPlace(range, size) => executor.populate(*range, *size)?,
            Step::CopyBack(copy) => self.aside.as_ref().map_or(Ok(()), |aside| aside.copy_back(executor, copy))?,
            Step::SealInPlace(range, protection) => executor.protect(*range, *protection)?,
            Step::DropAside(range) => {
                self.aside.take().into_iter().for_each(|aside| aside.drop(executor));
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

    /// Takes back what is not finished. What of ours could not be unmapped shows when the mappings are compared.
    pub fn clean_up(&mut self, executor: &mut impl Executor) {
        for range in core::mem::take(&mut self.staged).iter() {
            if let Some(copy) = self.copy_of(range) {
                let _ = persist(|| executor.unmap(copy));
            }
        }
        if let Some(aside) = self.aside.take() {
            aside.give_back(executor, self.before);
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
        if source == Source::Hugetlb {
            self.copy_at = Some(executor.map(range.len(), Backing::Hugetlb(size))?);
            self.staged.insert(range);
            return Ok(());
        }
        // Ordinary memory may come at any base page; map one huge page more and cut off both ends.
        let got = AddressRange::sized(
            executor.map(range.len() + size.bytes(), Backing::Ordinary)?,
            range.len() + size.bytes(),
        );
        let start = got.start().align_up(size).unwrap_or(got.start());
        let wanted = AddressRange::sized(start, range.len());
        self.copy_at = Some(start);
        self.staged.insert(range);
        for slack in got.without(wanted).into_iter().filter(|slack| !slack.is_empty()) {
            if let Err(error) = executor.unmap(slack) {
                // Untouched slack costs address space only; but it would stay for ever, so give up and take all back.
                let _ = persist(|| executor.unmap(got));
                self.staged = RangeSet::new();
                return Err(error);
            }
        }
        executor.advise_huge(wanted)
    }

    /// In place at once, or where the executor cannot, elsewhere and then moved.
    fn show_image(&mut self, executor: &mut impl Executor, image: &Shown<'_>) -> Result<(), CallError> {
        let range = image.range;
        match image.map_in_place(executor) {
            Ok(()) => {}
            Err(CallError { errno: ENOSYS, .. }) => {
                self.copy_at = Some(image.map_elsewhere(executor)?);
                self.staged.insert(range);
                return self.swap(executor);
            }
            Err(error) if executor.space().is_ok_and(|space| space.is_fully_mapped(range)) => return Err(error),
            Err(error) => self.show_again(executor, image, error)?,
        }
        self.swapped.insert(range);
        Ok(())
    }

    /// The kernel has removed what was there and then failed. The image shows the same.
    fn show_again(&self, executor: &mut impl Executor, image: &Shown<'_>, error: CallError) -> Result<(), CallError> {
        if persist(|| image.map_in_place(executor)).is_ok() {
            return Ok(());
        }
        // What is mapped anywhere would come to lie in the gap.
        persist(|| executor.map_at(image.range, Backing::Ordinary))?;
        let copy = AddressRange::sized(persist(|| image.map_elsewhere(executor))?, image.range.len());
        if persist(|| executor.move_to(copy, image.range.start())).is_ok() {
            return Ok(());
        }
        put_copy(executor, self.before, image.range, copy.start(), Place::Laid)?;
        let _ = persist(|| executor.unmap(copy));
        Err(error)
    }

    fn populate_staging(
        &mut self,
        executor: &mut impl Executor,
        range: AddressRange,
        size: PageSize,
    ) -> Result<(), CallError> {
        self.copy_of(range).map_or(Ok(()), |copy| executor.populate(copy, size))
    }

    /// Whether it worked is read back by the next step. Kernels without `MADV_COLLAPSE` keep what the faults gave.
    fn collapse_staging(&mut self, executor: &mut impl Executor, range: AddressRange, size: PageSize) {
        for kept in self.kept.within(range).collect::<Vec<_>>() {
            let Some(copy) = self.copy_of(kept) else { return };
            let huge = executor.huge(copy, size).unwrap_or_default();
            // Page by page, so that one huge page that cannot be had does not keep the others from it.
            for page in copy.pages(size).filter(|page| !huge.covers(*page)) {
                let _ = executor.collapse(page);
            }
        }
    }

    fn keep_huge(&mut self, executor: &mut impl Executor, range: AddressRange, size: PageSize) -> Result<(), Reason> {
        let Some(copy) = self.copy_of(range) else { return Ok(()) };
        let huge = executor.huge(copy, size)?;
        let in_process = |part: AddressRange| {
            let whole = part.whole_pages(size);
            AddressRange::sized(range.start() + (whole.start() - copy.start()), whole.len())
        };
        // What was dropped before has not been copied, and is never taken up again.
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

    fn seal_staging(&mut self, executor: &mut impl Executor, protection: Protection) -> Result<(), CallError> {
        if protection == Protection::READ_WRITE {
            return Ok(());
        }
        for copy in self.kept.iter().filter_map(|range| self.copy_of(range)).collect::<Vec<_>>() {
            executor.protect(copy, protection)?;
        }
        Ok(())
    }

    fn swap(&mut self, executor: &mut impl Executor) -> Result<(), CallError> {
        for range in self.kept.iter().collect::<Vec<_>>() {
            let Some(copy) = self.copy_of(range) else { continue };
            if let Err(error) = executor.move_to(copy, range.start()) {
                self.swap_again(executor, range, copy, error)?;
            }
            self.swapped.insert(range);
            self.staged.remove(range);
        }
        Ok(())
    }

    /// A swap that failed has changed nothing, or the kernel has removed the old memory and then could not move the new.
    /// The copy is complete, so that moving it once more is all that is needed; if even that is refused, its contents
    /// are put back on ordinary pages.
    fn swap_again(
        &self,
        executor: &mut impl Executor,
        range: AddressRange,
        copy: AddressRange,
        error: CallError,
    ) -> Result<(), CallError> {
        if executor.space().is_ok_and(|space| space.is_fully_mapped(range)) {
            return Err(error);
        }
        if persist(|| executor.move_to(copy, range.start())).is_ok() {
            return Ok(());
        }
        put_copy(executor, self.before, range, copy.start(), Place::Unknown)?;
        Err(error)
    }

    fn move_aside(&mut self, executor: &mut impl Executor, range: AddressRange) -> Result<(), CallError> {
        let aside = match self.aside.take() {
            Some(aside) => aside,
            None => Aside::reserve(executor, self.range)?,
        };
        self.aside.insert(aside).take(executor, range)
    }
}
