//! The steps of a lift. Executors know only these.

use crate::{Attempt, Method, Part, Placement, RangeLift, Source};
use address_space::{AddressRange, PageSize, Protection, RangeSet};
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

/// One step. Ranges are addresses in the process; a step on the staging copy uses the same range in the copy.
///
/// Before [`Step::Swap`] nothing the program can see has changed, so that a failure only means that the staging copy is
/// dropped. [`Step::Swap`] and [`Step::ShowImage`] are one system call each. [`Step::Refault`] and
/// [`Step::Touch`] change nothing that the program can see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Map memory for a copy of the range elsewhere, readable and writable.
    MapStaging {
        /// The range to be copied.
        range: AddressRange,
        /// Source of the pages.
        source: Source,
        /// Their size.
        size: PageSize,
    },
    /// Set the memory policy of the staging copy, before it has any present page.
    PlaceStaging(AddressRange, Placement),
    /// Show a shared image in place of the range, by one system call, with its final protection and with its pages in the
    /// page tables already.
    ShowImage {
        /// The range that the image is to show.
        range: AddressRange,
        /// The image's path.
        path: String,
        /// Offset in it.
        offset: u64,
        /// Final protection.
        protection: Protection,
    },
    /// Withdraw and renew the page table entries of a file's unchanged pages.
    Refault(AddressRange, PageSize),
    /// Map the file of a range once more, elsewhere and untouched, with its final protection.
    MapFile {
        /// The range that shows the file now.
        range: AddressRange,
        /// Path by which the process opens it.
        path: String,
        /// Offset in it.
        offset: u64,
        /// Protection.
        protection: Protection,
    },
    /// Put the pages of a file that are in memory into the page tables.
    Touch(AddressRange),
    /// Make the staging copy's pages present, so that no fault can fail later.
    PopulateStaging(AddressRange, PageSize),
    /// Collapse staging pages that populating left on ordinary ones.
    CollapseStaging(AddressRange, PageSize),
    /// Read back which pages of the staging copy are huge; the steps that follow act only on these.
    KeepHuge(AddressRange, PageSize),
    /// Copy into staging.
    CopyToStaging(RangeSet),
    /// Give the staging copy its final protection, if it does not have that yet, and put it in place, one call for each run that
    /// is kept.
    Swap(AddressRange, Option<Protection>),
    /// Move one mapping aside (before Linux 5.16).
    MoveAside(AddressRange),
    /// Map huge pages in the range's own place.
    MapInPlace(AddressRange, PageSize),
    /// Give them a memory policy, before any is present.
    PlaceInPlace(AddressRange, Placement),
    /// Make them present.
    PopulateInPlace(AddressRange, PageSize),
    /// Copy back from the place to which the mappings were moved.
    CopyBack(RangeSet),
    /// Final protection.
    SealInPlace(AddressRange, Protection),
    /// Drop the memory that was moved aside; from then on the range counts as lifted.
    DropAside(AddressRange),
    /// Advise the kernel to use huge pages for memory that will be touched.
    AdviseInPlace(AddressRange),
    /// Turn touched memory into huge pages in place.
    CollapseInPlace(AddressRange),
}

impl Step {
    /// Returns the ranges of the process that the step acts on.
    pub fn ranges(&self) -> Vec<AddressRange> {
        match self {
            Self::MapStaging { range, .. }
            | Self::ShowImage { range, .. }
            | Self::Refault(range, _)
            | Self::MapFile { range, .. }
            | Self::Touch(range)
            | Self::PlaceStaging(range, _)
            | Self::PlaceInPlace(range, _)
            | Self::PopulateStaging(range, _)
            | Self::CollapseStaging(range, _)
            | Self::KeepHuge(range, _)
            | Self::Swap(range, _)
            | Self::MoveAside(range)
            | Self::MapInPlace(range, _)
            | Self::PopulateInPlace(range, _)
            | Self::SealInPlace(range, _)
            | Self::DropAside(range)
            | Self::AdviseInPlace(range)
            | Self::CollapseInPlace(range) => vec![*range],
            Self::CopyToStaging(set) | Self::CopyBack(set) => set.iter().collect(),
        }
    }
}

/// Returns the steps that lift one part of a range.
pub fn steps_of(lift: &RangeLift, attempt: &Attempt, part: &Part) -> Vec<Step> {
    let range = part.range;
    match &part.method {
        Method::Swap { copy } => {
            let mut steps = vec![Step::MapStaging { range, source: attempt.source, size: attempt.page_size }];
            steps.extend(attempt.placement.clone().map(|placement| Step::PlaceStaging(range, placement)));
            steps.push(Step::PopulateStaging(range, attempt.page_size));
            if attempt.source == Source::Thp {
                steps.push(Step::CollapseStaging(range, attempt.page_size));
                steps.push(Step::KeepHuge(range, attempt.page_size));
            }
            steps.push(Step::CopyToStaging(copy.clone()));
            if attempt.source == Source::Thp {
                // A huge page that was still all zeros before the copy may have been split by the kernel when memory
                // was short.
                steps.push(Step::CollapseStaging(range, attempt.page_size));
                steps.push(Step::KeepHuge(range, attempt.page_size));
            }
            steps.push(Step::Swap(range, Some(lift.protection)));
            steps
        }
        Method::MoveAside { copy, mappings } => {
            let mut steps: Vec<_> = mappings.iter().map(|&mapping| Step::MoveAside(mapping)).collect();
            steps.push(Step::MapInPlace(range, attempt.page_size));
            steps.extend(attempt.placement.clone().map(|placement| Step::PlaceInPlace(range, placement)));
            steps.push(Step::PopulateInPlace(range, attempt.page_size));
            steps.push(Step::CopyBack(copy.clone()));
            steps.push(Step::SealInPlace(range, lift.protection));
            steps.push(Step::DropAside(range));
            steps
        }
        Method::MapImage { path, offset } => {
            let (path, protection) = (path.clone(), lift.protection);
            vec![Step::ShowImage { range, path, offset: *offset, protection }]
        }
        Method::Refault => vec![Step::Refault(range, attempt.page_size)],
        Method::MapAgain { path, offset } => {
            let (path, protection) = (path.clone(), lift.protection);
            vec![
                Step::MapFile { range, path, offset: *offset, protection },
                Step::Swap(range, None),
                Step::Touch(range),
            ]
        }
        Method::InPlace { collapse } => {
            let mut steps = vec![Step::AdviseInPlace(range)];
            steps.extend(collapse.iter().map(Step::CollapseInPlace));
            steps
        }
    }
}
