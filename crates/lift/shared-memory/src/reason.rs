//! Reasons why memory is not lifted in place: the value found, the value needed, and the fix.

use crate::SegmentKind;
use address_space::{PageSize, format_bytes};
use foreign_text::quoted_path_text;
use serde::{Serialize, Serializer};
use std::fmt;

/// The setting that places and permits huge pages of shared memory.
pub const SHMEM_ENABLED: &str = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";

/// The setting that permits huge pages of one size for shared memory (Linux 6.11).
fn size_setting(size: PageSize) -> String {
    format!("/sys/kernel/mm/transparent_hugepage/{}/shmem_enabled", size.directory())
}

/// Why a block, a segment or the rest of a lift is left alone.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// The kernel cannot collapse memory in place.
    OldKernel {
        /// Its release.
        found: String,
    },
    /// The kernel has no transparent huge pages.
    NoHugePages,
    /// `shmem_enabled` is `deny`.
    Denied,
    /// Shared memory gets no huge pages of this size.
    SizeOff {
        /// Huge page size.
        size: PageSize,
        /// The value of its `shmem_enabled`.
        word: String,
    },
    /// Addresses and offsets disagree modulo the huge page.
    OutOfStep {
        /// By this number of bytes.
        bytes: u64,
        /// Huge page size.
        size: PageSize,
        /// Kind of the segment: files are aligned by an option of their mount, all others by `shmem_enabled`.
        kind: SegmentKind,
        /// `shmem_enabled` is `never`, with which the kernel places all but files anywhere.
        never: bool,
    },
    /// No whole huge page of the segment is mapped.
    NoWholeBlock {
        /// Huge page size.
        size: PageSize,
    },
    /// Too many holes, which the lift would fill.
    Holes {
        /// Bytes that would be filled.
        would_add: u64,
    },
    /// Data that is swapped out, which the lift would read back.
    SwappedOut {
        /// Bytes that are swapped out.
        swapped: u64,
    },
    /// The kernel fills holes without regard to userfaultfd.
    FillsUnasked {
        /// Its release.
        found: String,
    },
    /// A userfaultfd watches it, or the holes of shared memory.
    Watched,
    /// Pages that another process has, too, since a fork: the lift would copy them.
    Forked {
        /// Size of such a page in bytes.
        common: u64,
    },
    /// `MADV_GUARD_INSTALL`.
    Guarded,
    /// `MADV_MERGEABLE`: the kernel merges equal pages (KSM).
    Mergeable,
    /// mlock(2).
    Locked,
    /// Generated code in pieces that are too small.
    Scattered {
        /// Number of pieces.
        pieces: usize,
        /// Bytes of the longest.
        longest: u64,
    },
    /// The program's `PR_SET_THP_DISABLE` cannot be suspended, or not be set again.
    NotSuspended {
        /// Why.
        why: String,
    },
    /// Pages of the hugetlb pool.
    Pool,
    /// memfd_secret(2).
    Secret,
    /// `MADV_NOHUGEPAGE`.
    AdvisedAgainst,
    /// `PR_SET_THP_DISABLE`.
    OffInProcess,
    /// The tmpfs has no room for the filled holes.
    Quota {
        /// Bytes that it can still take.
        left: u64,
        /// Bytes that stay free for programs.
        kept: u64,
    },
    /// `--max-memory`.
    MostMemory {
        /// Its value.
        most: u64,
    },
    /// The contents cannot be read.
    Unreadable {
        /// Why.
        why: String,
    },
    /// The segment is too large or too scattered to be read whole in time.
    TooScattered,
    /// More mappings than are kept, which differ from each other.
    TooManyMappings {
        /// Number of mappings that are kept.
        most: usize,
    },
    /// Pages were in use each time: under I/O, in lists of a CPU, faulted in at the moment, or pinned.
    Busy {
        /// Most tries of a block.
        tries: u32,
        /// Time after which it was not tried again, in seconds; `None` if rounds of tries made no progress.
        seconds: Option<u64>,
    },
    /// No free memory in pieces of a huge page.
    Fragmented,
    /// The memory cgroup refuses to be charged, or a userfaultfd watches the holes.
    NotCharged,
    /// The memory cgroup of the process has too little left.
    CgroupLimit {
        /// Its directory.
        directory: String,
        /// Bytes left.
        left: u64,
        /// Bytes that stay free for programs.
        kept: u64,
    },
    /// The machine has too little memory left.
    MachineLow {
        /// Bytes available.
        available: u64,
        /// Bytes that stay free.
        floor: u64,
    },
    /// The budget of time is spent.
    TimeIsUp {
        /// In seconds.
        seconds: u64,
    },
    /// Single blocks took too long.
    Slow {
        /// The worst one, in milliseconds.
        milliseconds: u64,
    },
    /// The block was truncated, emptied or unmapped meanwhile.
    Changed,
    /// All processes that map it have ended, unmapped it, or do not answer.
    Gone,
    /// This user may not.
    NotPermitted,
    /// Another refusal of the kernel.
    Refused {
        /// The error number in words.
        error: String,
    },
}

impl Reason {
    /// True if nothing more is tried in any segment.
    pub const fn ends_all(&self) -> bool {
        matches!(self, Self::MachineLow { .. } | Self::TimeIsUp { .. } | Self::Slow { .. } | Self::NotPermitted)
    }

    /// The command or change that fixes it, if there is one.
    pub fn fix(&self) -> Option<String> {
        Some(match self {
            Self::OldKernel { .. } => "Linux 6.1 or newer".to_owned(),
            Self::NoHugePages => "a kernel with CONFIG_TRANSPARENT_HUGEPAGE".to_owned(),
            Self::Denied => format!("echo advise > {SHMEM_ENABLED}, then again"),
            Self::SizeOff { size, .. } => format!("echo inherit > {}, then again", size_setting(*size)),
            Self::OutOfStep { kind: SegmentKind::File, .. } => {
                "mount -o remount,huge=advise MOUNT (or within_size), then restart the program".to_owned()
            }
            Self::OutOfStep { never: true, .. } => format!("echo advise > {SHMEM_ENABLED}, then restart the program"),
            Self::OutOfStep { never: false, .. } => {
                "restart the program: with shmem_enabled as it is now the kernel aligns large shared mappings, unless \
                 the program chooses their addresses itself"
                    .to_owned()
            }
            Self::Holes { .. } => "--fill, or again once the program has filled it".to_owned(),
            Self::SwappedOut { .. } => "--fill, which reads it back, or again once the program has used it".to_owned(),
            Self::FillsUnasked { .. } => "Linux 6.4 or newer, or again once the program has filled it".to_owned(),
            Self::Forked { .. } => "again once the other process has ended".to_owned(),
            Self::OffInProcess => "start the program without PR_SET_THP_DISABLE (systemd: MemoryTHP=)".to_owned(),
            Self::Quota { .. } => "a larger tmpfs: mount -o remount,size=SIZE".to_owned(),
            Self::MostMemory { .. } => "a larger --max-memory".to_owned(),
            Self::Busy { seconds: None, .. } => {
                "run it again while the program does less, or with --watch; what is done stays".to_owned()
            }
            Self::Busy { seconds: Some(_), .. } | Self::TimeIsUp { .. } => {
                "run it again; what is done stays".to_owned()
            }
            Self::TooScattered => "lift it several times, or with --watch: what is huge is skipped".to_owned(),
            Self::Fragmented | Self::Slow { .. } => {
                "echo 1 > /proc/sys/vm/compact_memory, or free memory, then again".to_owned()
            }
            Self::NotCharged => "a higher limit of its memory cgroup".to_owned(),
            Self::CgroupLimit { directory, .. } => {
                format!("a higher memory limit in {}", quoted_path_text(directory))
            }
            Self::MachineLow { .. } => "free memory".to_owned(),
            Self::NotPermitted => {
                "run it with CAP_SYS_NICE and CAP_SYS_PTRACE, which root has outside of containers".to_owned()
            }
            Self::NoWholeBlock { .. }
            | Self::Watched
            | Self::Guarded
            | Self::Mergeable
            | Self::Locked
            | Self::Scattered { .. }
            | Self::NotSuspended { .. }
            | Self::TooManyMappings { .. }
            | Self::Pool
            | Self::Secret
            | Self::AdvisedAgainst
            | Self::Unreadable { .. }
            | Self::Changed
            | Self::Gone
            | Self::Refused { .. } => return None,
        })
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OldKernel { found } => write!(f, "the kernel is {found}, and collapses memory in place from 6.1 on"),
            Self::NoHugePages => f.write_str("the kernel has no transparent huge pages"),
            Self::Denied => f.write_str("shmem_enabled is `deny`"),
            Self::SizeOff { size, word } => write!(f, "{} is `{word}`", size_setting(*size)),
            Self::OutOfStep { bytes, size, kind, never } => {
                write!(f, "address and offset disagree by {} KiB, needed: a multiple of {size}", bytes / 1024)?;
                f.write_str(match kind {
                    SegmentKind::File => ": the kernel aligns files of a tmpfs only if it is mounted with huge=",
                    _ if *never => ": the kernel places it anywhere while shmem_enabled is `never`",
                    _ => "",
                })
            }
            Self::NoWholeBlock { size } => write!(f, "no whole block of {size} is mapped"),
            Self::Holes { would_add } => {
                write!(f, "blocks less than 7/8 full; the lift would add {}", format_bytes(*would_add))
            }
            Self::SwappedOut { swapped } => {
                write!(f, "blocks with swapped data; the lift would read {} back", format_bytes(*swapped))
            }
            Self::FillsUnasked { found } => write!(
                f,
                "blocks with holes or swapped data: the kernel is {found}, and checks from 6.4 on whether userfaultfd \
                 watches what it fills"
            ),
            Self::Watched => f.write_str("userfaultfd watches it"),
            Self::Forked { common } => write!(
                f,
                "blocks that share pages with another process since a fork; the lift would copy {}",
                format_bytes(*common)
            ),
            Self::Guarded => f.write_str("guard pages (MADV_GUARD_INSTALL)"),
            Self::Mergeable => f.write_str("the program has the kernel merge equal pages there (MADV_MERGEABLE)"),
            Self::Locked => f.write_str("locked in memory (mlock): accesses would wait for the lift"),
            Self::Scattered { pieces, longest } => write!(
                f,
                "generated code in {pieces} pieces of at most {}, none of which holds a whole huge page",
                format_bytes(*longest)
            ),
            Self::NotSuspended { why } => write!(f, "PR_SET_THP_DISABLE: {why}"),
            Self::Pool => f.write_str("on huge pages of the pool already"),
            Self::Secret => f.write_str("secret memory (memfd_secret), which the kernel never moves"),
            Self::AdvisedAgainst => f.write_str("the program has refused huge pages there (MADV_NOHUGEPAGE)"),
            Self::OffInProcess => f.write_str("the program has switched huge pages off for itself"),
            Self::Quota { left, kept } => {
                let (left, kept) = (format_bytes(*left), format_bytes(*kept));
                write!(f, "its tmpfs has {left} left, of which {kept} stay free")
            }
            Self::MostMemory { most } => write!(f, "--max-memory={} is reached", format_bytes(*most)),
            Self::Unreadable { why } => write!(f, "its contents cannot be counted: {why}"),
            Self::TooScattered => {
                f.write_str("only a part of its contents was counted: it is too large or too scattered for the time")
            }
            Self::TooManyMappings { most } => write!(f, "only {most} of its mappings were used"),
            Self::Busy { tries, seconds } => {
                write!(f, "pages were in use at each try; at most {tries} tries, ")?;
                match seconds {
                    Some(seconds) => write!(f, "for which {seconds} s are allowed"),
                    None => f.write_str("the last of which lifted next to nothing"),
                }
            }
            Self::Fragmented => f.write_str("no free memory in pieces of a huge page"),
            Self::NotCharged => f.write_str("its memory cgroup is full, or userfaultfd watches its holes"),
            Self::CgroupLimit { directory, left, kept } => {
                let (left, kept) = (format_bytes(*left), format_bytes(*kept));
                write!(f, "its memory cgroup {directory} has {left} left, of which {kept} stay free")
            }
            Self::MachineLow { available, floor } => write!(
                f,
                "the machine has {} available, and {} stay free",
                format_bytes(*available),
                format_bytes(*floor)
            ),
            Self::TimeIsUp { seconds } => write!(f, "stopped after {seconds} s"),
            Self::Slow { milliseconds } => {
                write!(f, "single blocks took up to {milliseconds} ms: memory is fragmented or the machine overloaded")
            }
            Self::Changed => f.write_str("emptied, truncated or unmapped meanwhile"),
            Self::Gone => f.write_str("its processes have ended, unmapped it or do not answer"),
            Self::NotPermitted => f.write_str("not permitted; needed: CAP_SYS_NICE and the right to trace"),
            Self::Refused { error } => write!(f, "the kernel refuses: {error}"),
        }
    }
}

impl Serialize for Reason {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}
