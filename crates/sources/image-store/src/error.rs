//! Errors of using, making or removing stores and images. A program is not harmed by these errors: it gets its huge
//! pages from another source.

use address_space::{ElfError, PageSize, format_bytes};
use foreign_text::quoted_path;
use machine_facts::Nodes;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// Why there is no image. Each text names the value found, the value needed, and the command that fixes it.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// There is no such directory.
    #[error("no image store at {}; fix: `pagelift image setup --store {}`", .0.display(), quoted_path(.0))]
    NoStore(PathBuf),
    /// The directory cannot hold images.
    #[error("{} cannot be used as an image store: found {found}, needed {needed}; fix: `{fix}`", path.display())]
    Unfit {
        /// The directory.
        path: PathBuf,
        /// The value found.
        found: String,
        /// The value needed.
        needed: &'static str,
        /// The command that fixes it.
        fix: String,
    },
    /// A file of the machine's configuration stays as it is.
    #[error("{} was not changed: found {found}, needed {needed}; fix: `{fix}`", path.display())]
    NotReplaced {
        /// The file.
        path: PathBuf,
        /// The value found.
        found: String,
        /// The value needed.
        needed: &'static str,
        /// The command that fixes it.
        fix: String,
    },
    /// Only the store's owner makes and removes images.
    #[error("only root may change the image store; fix: run `{fix}` as root")]
    NotPermitted {
        /// The command that a privileged user would run.
        fix: String,
    },
    /// Another process makes or removes the image and does not end.
    #[error(
        "found {} locked by another process for {} s now, needed it to end; fix: find it with `fuser -v {}`, and end it",
        path.display(), waited.as_secs(), quoted_path(path)
    )]
    Locked {
        /// The lock's file.
        path: PathBuf,
        /// Time waited.
        waited: Duration,
    },
    /// The lock is not the store's owner's.
    #[error("found {} owned by user {user}, needed it owned by root; fix: rm {}", path.display(), quoted_path(path))]
    LockOfAnotherUser {
        /// The lock's file.
        path: PathBuf,
        /// Number of its owner.
        user: u32,
    },
    /// The path leads to a directory, device or pipe instead of a file.
    #[error("not a regular file")]
    NotARegularFile,
    /// The file is not an ELF file that can be mapped.
    #[error(transparent)]
    Elf(#[from] ElfError),
    /// The program headers reach past the end of the file.
    #[error("the file is cut off: found {found} bytes, needed {needed} for its segments")]
    CutOff {
        /// Length of the file, in bytes.
        found: u64,
        /// Length that its segments need, in bytes.
        needed: u64,
    },
    /// Relocations are written into its read-only segments, so that no two processes hold the same.
    #[error("it has text relocations: each process writes its own addresses into the code")]
    TextRelocations,
    /// No whole huge page could be mapped from an image.
    #[error("nothing read-only in it fills a huge page at this base")]
    NothingToMap,
    /// The file changed while it was copied, or so shortly before that a change could be missed.
    #[error("the file is being changed; an image is made of files that stay the same")]
    SourceChanging,
    /// The file system has no time of change, so a new file could be mistaken for the source of an old image.
    #[error("its file system keeps no time of change (ctime), needed to recognise a changed file")]
    NoTimeOfChange,
    /// The file's contents can change without a change of its times.
    #[error(
        "its file system (type {0:#x}) does not give a changed file another time of change; needed: ext4, xfs, btrfs, \
         f2fs, squashfs or erofs; fix: copy the file to one of these"
    )]
    ChangesUnseen(u64),
    /// Nothing distinguishes the file system from one that is mounted in its place later.
    #[error(
        "the kernel does not tell its file system from another one that is mounted there later; needed: btrfs, Linux 6.10, \
         a disk on Linux 5.15, or the file system of / or /usr; fix: copy the file there"
    )]
    MediumUnknown,
    /// A process can write to the file.
    #[error(
        "a process has the file open for writing, or mapped so that it can be written; needed: no such process; fix: find \
         it with `fuser -v {}` and end it", quoted_path(.0)
    )]
    OpenForWriting(PathBuf),
    /// The kernel grants no lease on the file.
    #[error(
        "cannot make sure that no process writes to the file: a read lease gives {0}; needed: its owner or CAP_LEASE, and a \
         file system with leases"
    )]
    NoLease(#[source] io::Error),
    /// Images of such a file are made only on request.
    #[error(
        "no image is made of it automatically, since {why}; needed: a file that only root can write or exchange; fix, \
         as root: pagelift image add {}",
        quoted_path(path)
    )]
    NotAskedFor {
        /// The reason.
        why: String,
        /// Path of the file.
        path: PathBuf,
    },
    /// Images of a young file are made only on request.
    #[error(
        "no image is made of it without being asked for: found that it was written less than a day ago, needed a file that \
         stays; fix, as root: pagelift image add {}, or --pages image", quoted_path(.0)
    )]
    Young(PathBuf),
    /// Images of a file outside of [`SYSTEM_FOLDERS`](crate::SYSTEM_FOLDERS) are made only on request.
    #[error(
        "no image is made of it without being asked for: found a file outside of the folders of installed programs, needed \
         one below /usr or /opt for example; fix, as root: pagelift image add {}, or --pages image", quoted_path(.0)
    )]
    Outside(PathBuf),
    /// The store has images only on request.
    #[error(
        "the store makes images only on request (pagelift image setup --automatic no); fix, as root: pagelift image add {}",
        quoted_path(.0)
    )]
    OnlyOnRequest(PathBuf),
    /// Automatic images already use their whole share of the store.
    #[error(
        "automatic images may take {}, and take {}; needed {} more; fix, as root: `pagelift image add FILE`, or \
         `pagelift image setup --size SIZE`", size(.allowed), size(.found), size(.needed)
    )]
    OverShare {
        /// Bytes needed.
        needed: u64,
        /// Bytes that the existing ones occupy.
        found: u64,
        /// Bytes that they may take.
        allowed: u64,
    },
    /// The image would need more than the caller allows.
    #[error("the image needs {}, allowed are {}", size(.needed), size(.allowed))]
    TooLarge {
        /// Bytes needed.
        needed: u64,
        /// Bytes allowed.
        allowed: u64,
    },
    /// The store has no room.
    #[error(
        "the image store is full: needed {}, found {} free; fix: remove images with `pagelift image gc` or enlarge it \
         with `pagelift image setup --size SIZE`", size(.needed), size(.free)
    )]
    Full {
        /// Bytes needed.
        needed: u64,
        /// Bytes free.
        free: u64,
    },
    /// Too many images of one file, each for another base.
    #[error("the store holds {0} images of this file already, each for another base; needed: one that fits")]
    TooManyLayouts(usize),
    /// The pool of the store's hugetlbfs has too few pages.
    #[error(
        "the pool has too few pages for the image: needed {needed} of {size}; fix: `pagelift pool reserve {}:{needed}`",
        .size.word()
    )]
    PoolTooSmall {
        /// Pages needed.
        needed: u64,
        /// Their size.
        size: PageSize,
    },
    /// The NUMA node has too little memory for the copy.
    #[error(
        "node {node} has too little memory for its copy: needed {}, found {} {}; fix: {fix}", size(.needed), size(.free),
        what
    )]
    NodeTooSmall {
        /// The node.
        node: u32,
        /// Bytes needed.
        needed: u64,
        /// Bytes found.
        free: u64,
        /// The kind of memory that was counted.
        what: &'static str,
        /// The command or change that fixes it.
        fix: String,
    },
    /// The machine has no such node, or this process may not take memory from it.
    #[error(
        "no copy can be made for node {node}: found {allowed} to take memory from; needed: a cpuset with that node"
    )]
    NodeForbidden {
        /// The node.
        node: u32,
        /// The nodes that may be used.
        allowed: Nodes,
    },
    /// The kernel put pages of a copy for one node elsewhere.
    #[error(
        "{} of the copy for node {node} are on other nodes; the copy was dropped; fix: free memory on that node", size(.elsewhere)
    )]
    OnOtherNodes {
        /// The node.
        node: u32,
        /// Bytes on other nodes, or that the kernel does not show.
        elsewhere: u64,
    },
    /// The layout is for other huge pages.
    #[error("the store has pages of {found}, {wanted} requested")]
    OtherPageSize {
        /// Requested size.
        wanted: PageSize,
        /// The store's.
        found: PageSize,
    },
    /// The image was removed as soon as it was made.
    #[error("the image was removed as soon as it was made")]
    RemovedAtOnce,
    /// The image's contents did not equal the source's after it was written.
    #[error("the copy differs from its source at byte {0:#x} of the image; the image was dropped")]
    Differs(u64),
    /// Something in the store is not an image.
    #[error("{name} in the store is not a sound image: {problem}; fix: remove it with `pagelift image gc`")]
    Damaged {
        /// Its name in the store.
        name: String,
        /// The defect.
        problem: &'static str,
    },
    /// Only root can open the image.
    #[error("only root can use the image of {}: not every user can read the file itself", .0.display())]
    NotForEverybody(PathBuf),
    /// Processes map the image.
    #[error("{} this image; `--force` removes it all the same, and no process loses memory", still_map(*.0))]
    InUse(u64),
    /// A process that does not answer may map the image.
    #[error(
        "process {pid} ({name}) did not answer, and may map this image; fix: end it, or `--force`, which removes the image all \
         the same; the process keeps its memory"
    )]
    MayBeInUse {
        /// Its number.
        pid: i32,
        /// Its name, fit to be printed.
        name: String,
    },
    /// The kernel refused something.
    #[error("{what}: {source}")]
    Io {
        /// The operation that failed.
        what: String,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
}

fn still_map(processes: u64) -> String {
    match processes {
        1 => "1 process still maps".to_owned(),
        processes => format!("{processes} processes still map"),
    }
}

fn size(bytes: &u64) -> String {
    format_bytes(*bytes)
}

impl StoreError {
    pub(crate) fn io(what: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Self::Io { what: what.into(), source: source.into() }
    }
}
