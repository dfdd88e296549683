//! Scripts: which calls fail, how, and with which error.

use super::errno::*;
use address_space::AddressRange;
use lift_execution::ENOSYS;
use std::collections::BTreeMap;

/// The calls of an executor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)]
pub enum Call {
    Map,
    MapAt,
    Unmap,
    AdviseHuge,
    Place,
    Populate,
    Collapse,
    Protect,
    MoveTo,
    Copy,
    MapFile,
    MapFileAt,
    MapOwnFile,
    ExpectUnchanged,
    Refault,
    Touch,
    Name,
    LeaveOutOfDumps,
    Seal,
    GuardBranches,
    Huge,
    Space,
}

impl Call {
    /// Every call.
    pub const ALL: [Self; 22] = [
        Self::Map,
        Self::MapAt,
        Self::Unmap,
        Self::AdviseHuge,
        Self::Place,
        Self::Populate,
        Self::Collapse,
        Self::Protect,
        Self::MoveTo,
        Self::Copy,
        Self::MapFile,
        Self::MapFileAt,
        Self::MapOwnFile,
        Self::ExpectUnchanged,
        Self::Refault,
        Self::Touch,
        Self::Name,
        Self::LeaveOutOfDumps,
        Self::Seal,
        Self::GuardBranches,
        Self::Huge,
        Self::Space,
    ];

    /// The errors that the call can return: errors of open(2), mmap(2), munmap(2), madvise(2), mbind(2), mprotect(2),
    /// mremap(2), process_vm_readv(2), prctl(2) and read(2) for `/proc` files that a process can get with valid
    /// arguments, including errors from security modules and from a process that has ended.
    pub fn errors(self) -> &'static [i32] {
        match self {
            Self::Map => &[ENOMEM, EAGAIN, EINVAL, EPERM, EACCES, ESRCH],
            Self::MapAt => &[ENOMEM, EAGAIN, EINVAL, EPERM, EACCES, EEXIST, ESRCH],
            Self::Unmap => &[EINVAL, ENOMEM, EPERM, EINTR, ESRCH],
            Self::AdviseHuge => &[EINVAL, ENOMEM, EAGAIN, EPERM, ESRCH],
            Self::Place => &[EFAULT, EINVAL, ENOMEM, EPERM, EIO, ENOSYS, ESRCH],
            Self::Populate => &[EFAULT, ENOMEM, EINVAL, EAGAIN, EINTR, EHWPOISON, ESRCH],
            Self::Collapse => &[EAGAIN, EBUSY, EINVAL, ENOMEM, EINTR, ESRCH],
            Self::Protect | Self::GuardBranches => &[EACCES, EINVAL, ENOMEM, EPERM, ESRCH],
            Self::MoveTo => &[EAGAIN, EFAULT, EINVAL, ENOMEM, EPERM, ESRCH],
            Self::Copy => &[EFAULT, EINVAL, ENOMEM, EPERM, EIO, ESRCH],
            Self::Refault => &[EBUSY, EINVAL, ENOMEM, EAGAIN, EPERM, EINTR, ESRCH],
            Self::Touch => &[EFAULT, EINVAL, ENOMEM, EAGAIN, EINTR, EHWPOISON, ESRCH],
            Self::MapFile | Self::MapFileAt | Self::MapOwnFile => {
                &[ENOENT, EACCES, ENOMEM, EAGAIN, EINVAL, EPERM, EMFILE, ESRCH]
            }
            Self::Name => &[EINVAL, ENOMEM, EFAULT, ESRCH],
            Self::LeaveOutOfDumps => &[EINVAL, ENOMEM, EAGAIN, EPERM, ESRCH],
            Self::Seal => &[EINVAL, ENOMEM, EPERM, ENOSYS, ESRCH],
            Self::ExpectUnchanged => &[EBUSY, EACCES, ENOENT, EIO, ENOMEM, ESRCH],
            Self::Huge => &[EACCES, ENOENT, EIO, ENOMEM, EINVAL, ESRCH],
            Self::Space => &[EACCES, ENOENT, EIO, ENOMEM, ESRCH],
        }
    }

    /// The ways in which the call can fail.
    pub fn modes(self) -> &'static [Mode] {
        match self {
            Self::MoveTo | Self::MapFileAt => &[Mode::Clean, Mode::DestinationGone],
            Self::AdviseHuge | Self::Populate | Self::Collapse | Self::Copy | Self::Refault | Self::Touch => {
                &[Mode::Clean, Mode::Halfway]
            }
            _ => &[Mode::Clean],
        }
    }
}

/// The effects of a failed call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Nothing has changed.
    Clean,
    /// The call advises, populates, collapses or copies half of the range.
    Halfway,
    /// The mappings at the destination have been removed.
    DestinationGone,
    /// As [`Mode::DestinationGone`]; then another thread maps memory in the gap ([`Script::taking`]).
    DestinationTaken,
}

/// The failure of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The error's number.
    pub errno: i32,
    /// The effects of the failure.
    pub mode: Mode,
}

/// How another thread maps memory in a gap ([`Mode::DestinationTaken`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Taking {
    /// Number of calls between the failure and the mapping.
    pub after: usize,
    /// The part of the gap that the thread maps, as far as it is free.
    pub part: TakenPart,
}

/// A part of a gap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TakenPart {
    /// The whole gap.
    #[default]
    Whole,
    /// The first base page.
    FirstPage,
    /// The last base page.
    LastPage,
}

/// A gap in which another thread is about to map memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct AwaitedGap {
    pub range: AddressRange,
    /// Number of calls before the thread maps memory.
    pub due: usize,
}

/// Which calls fail.
#[derive(Clone, Debug, Default)]
pub struct Script {
    single: BTreeMap<usize, Failure>,
    lasting: Vec<(usize, Option<Call>, Failure)>,
    pub(super) taking: Taking,
}

impl Script {
    /// No call fails but those that the model itself refuses.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes the call with this number fail, counted from 0 over all calls.
    #[must_use]
    pub fn failing_at(mut self, number: usize, failure: Failure) -> Self {
        self.single.insert(number, failure);
        self
    }

    /// Makes every call of one kind, or every call, fail from this number on.
    #[must_use]
    pub fn failing_from(mut self, number: usize, call: Option<Call>, failure: Failure) -> Self {
        self.lasting.push((number, call, failure));
        self
    }

    /// Sets when and where another thread maps memory in each gap of a [`Mode::DestinationTaken`].
    #[must_use]
    pub fn taking(self, taking: Taking) -> Self {
        Self { taking, ..self }
    }

    pub(super) fn failure(&self, number: usize, call: Call) -> Option<Failure> {
        let lasting = || self.lasting.iter().find(|(from, kind, _)| number >= *from && kind.is_none_or(|k| k == call));
        self.single.get(&number).copied().or_else(|| lasting().map(|(_, _, failure)| *failure))
    }
}
