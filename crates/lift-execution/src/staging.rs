//! The state of one part while its steps are executed, and how to undo it.

use crate::executor::{Backing, CallError, Executor};
use address_space::{Address, AddressRange, PageSize, Protection, RangeSet};
use lift_plan::{Reason, Source, Step};

/// How often a call that must succeed to restore memory is tried again. Such calls fail only for want of kernel memory.
const TRIES: usize = 16;

/// One part on its way to huge pages.
pub(crate) struct PartState {
    /// The part.
    range: AddressRange,
    /// Where the copy of the part's first byte lies.
    copy_at: Option<Address>,
    /// Ranges (of the process) whose copies still lie in staging.
    staged: RangeSet,
    /// Ranges that the remaining steps act on.
    kept: RangeSet,
    /// Ranges that lie on their new pages.
    pub swapped: RangeSet,
    /// Mappings that were moved aside, and where to.
    aside: Vec<(AddressRange, Address)>,
    /// New memory lies in place of what was moved aside.
    in_place: bool,
}

impl PartState {
    pub fn new(range: AddressRange) -> Self {
        Self {
            range,
            copy_at: None,
            staged: RangeSet::new(),
            kept: RangeSet::from_iter([range]),
            swapped: RangeSet::new(),
            aside: Vec::new(),
            in_place: false,
        }
    }

    /// Executes one step.
    pub fn step(&mut self, executor: &mut impl Executor, step: &Step) -> Result<(), Reason> {
        match step {
            Step::MapStaging { range, source, size } => self.map_staging(executor, *range, *source, *size)?,
            Step::PopulateStaging(range, size) => self.populate_staging(executor, *range, *size)?,
            Step::CollapseStaging(range, size) => self.collapse_staging(executor, *range, *size),
            Step::KeepHuge(range, size) => self.keep_huge(executor, *range, *size)?,
            Step::CopyToStaging(copy) => self.copy_to_staging(executor, copy)?,
            Step::SealStaging(_, protection) => self.seal_staging(executor, *protection)?,
            Step::Swap(_) => self.swap(executor)?,
            Step::MoveAside(range) => self.move_aside(executor, *range)?,
            Step::MapInPlace(range, size) => self.map_in_place(executor, *range, *size)?,
            Step::PopulateInPlace(range, size) => executor.populate(*range, *size)?,
            Step::CopyBack(copy) => self.copy_back(executor, copy)?,
            Step::SealInPlace(range, protection) => executor.protect(*range, *protection)?,
            Step::DropAside(range) => self.drop_aside(executor, *range),
            Step::AdviseInPlace(range) => {
                executor.advise_huge(*range)?;
                self.swapped.insert(*range);
            }
            Step::CollapseInPlace(range) => executor.collapse(*range)?,
        }
        Ok(())
    }

    /// Takes back what is not finished. Returns what could not be taken back, which costs memory but no contents.
    pub fn clean_up(&mut self, executor: &mut impl Executor) -> Vec<CallError> {
        let mut errors = Vec::new();
        let staged: Vec<_> = self.staged.iter().collect();
        for range in staged {
            if let Some(copy) = self.copy_of(range) {
                errors.extend(persist(|| executor.unmap(copy)).err());
            }
        }
        self.staged = RangeSet::new();
        if self.aside.is_empty() {
            return errors;
        }
        if self.in_place {
            errors.extend(persist(|| executor.unmap(self.range)).err());
            self.in_place = false;
        }
        for (range, aside) in std::mem::take(&mut self.aside) {
            let from = AddressRange::sized(aside, range.len());
            errors.extend(persist(|| executor.move_to(from, range.start())).err());
        }
        errors
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
        let Some(copy) = self.copy_of(range) else { return };
        let huge = executor.huge(copy, size).unwrap_or_default();
        // Page by page, so that one huge page that cannot be had does not keep the others from it.
        for page in copy.pages(size).filter(|page| !huge.covers(*page)) {
            let _ = executor.collapse(page);
        }
    }

    fn keep_huge(&mut self, executor: &mut impl Executor, range: AddressRange, size: PageSize) -> Result<(), Reason> {
        let Some(copy) = self.copy_of(range) else { return Ok(()) };
        let huge = executor.huge(copy, size)?;
        self.kept = huge
            .within(copy)
            .map(|part| part.whole_pages(size))
            .map(|part| AddressRange::sized(range.start() + (part.start() - copy.start()), part.len()))
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
            match executor.move_to(copy, range.start()) {
                Ok(()) => {}
                Err(error) if self.is_intact(executor, range) => return Err(error),
                // The kernel removed the old memory and then could not move the new: the copy is complete, so that
                // moving it once more is all that is needed.
                Err(_) => persist(|| executor.move_to(copy, range.start()))?,
            }
            self.swapped.insert(range);
            self.staged.remove(range);
        }
        Ok(())
    }

    fn is_intact(&self, executor: &mut impl Executor, range: AddressRange) -> bool {
        executor.space().is_ok_and(|space| space.is_fully_mapped(range))
    }

    fn move_aside(&mut self, executor: &mut impl Executor, range: AddressRange) -> Result<(), CallError> {
        let place = executor.map(range.len(), Backing::Ordinary)?;
        let reserved = AddressRange::sized(place, range.len());
        if let Err(error) = executor.move_to(range, place) {
            let _ = persist(|| executor.unmap(reserved));
            return Err(error);
        }
        self.aside.push((range, place));
        Ok(())
    }

    fn map_in_place(
        &mut self,
        executor: &mut impl Executor,
        range: AddressRange,
        size: PageSize,
    ) -> Result<(), CallError> {
        executor.map_at(range, Backing::Hugetlb(size))?;
        self.in_place = true;
        Ok(())
    }

    fn copy_back(&mut self, executor: &mut impl Executor, copy: &RangeSet) -> Result<(), CallError> {
        for (range, aside) in self.aside.clone() {
            for part in copy.within(range) {
                let from = AddressRange::sized(aside + (part.start() - range.start()), part.len());
                executor.copy(from, part.start())?;
            }
        }
        Ok(())
    }

    fn drop_aside(&mut self, executor: &mut impl Executor, range: AddressRange) {
        for (range, aside) in std::mem::take(&mut self.aside) {
            // A failure costs address space only; the range is lifted all the same.
            let _ = persist(|| executor.unmap(AddressRange::sized(aside, range.len())));
        }
        self.in_place = false;
        self.swapped.insert(range);
    }
}

/// Tries a call that restores memory until it succeeds, within reason.
fn persist(mut call: impl FnMut() -> Result<(), CallError>) -> Result<(), CallError> {
    let mut result = call();
    for _ in 1..TRIES {
        if result.is_ok() {
            break;
        }
        result = call();
    }
    result
}
