//! Kinds of segments.

use address_space::Mapping;
use serde::Serialize;

/// Origin of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum SegmentKind {
    /// `MAP_SHARED | MAP_ANONYMOUS`, inherited by children.
    Anonymous,
    /// memfd_create(2).
    Memfd,
    /// shmget(2).
    SystemV,
    /// A file on a mounted tmpfs, in `/dev/shm` for example.
    File,
    /// Private anonymous memory of one process.
    Private,
    /// Private anonymous memory of one process that is executable: code that the program has generated.
    Jit,
}

impl SegmentKind {
    /// True for memory of one process, whose offsets are its addresses.
    pub const fn is_private(self) -> bool {
        matches!(self, Self::Private | Self::Jit)
    }

    /// The kind of a shared mapping of tmpfs; `internal` is true for the kernel's own tmpfs, which is mounted nowhere.
    pub fn of(mapping: &Mapping, internal: bool) -> Self {
        match mapping.path() {
            Some(path) if internal && path.starts_with("/memfd:") => Self::Memfd,
            Some(path) if internal && path.starts_with("/SYSV") => Self::SystemV,
            _ if internal => Self::Anonymous,
            _ => Self::File,
        }
    }
}
