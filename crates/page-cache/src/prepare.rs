//! Gets blocks of a file into huge folios.

use crate::attempts::{Attempt, Attempts, Held, Lasting, Record, attempt_of_root};
use crate::blocks::{offsets_of, runs, whole_blocks};
use crate::file_system::FileSystem;
use crate::look::{huge_blocks, touch};
use crate::refusal::Limit;
use crate::{Error, HugeExtents, MappedFiles, Refusal};
use address_space::PageSize;
use linux::file_cache::cached_pages;
use linux::file_mapping::FileMapping;
use linux::pages::{base_page, transparent_huge_page};
use nix::errno::Errno;
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use process_view::{FileIdentity, ProcessFiles};
use std::fs::{self, File};
use std::ops::Range;
use std::path::Path;
use std::time::{Duration, Instant};

/// Number of times that a block is evicted and read again.
const PASSES: usize = 2;

/// Whether a file is prepared that does not lie in huge folios.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Prepare {
    /// Where no earlier attempt at this boot failed for a reason that still holds. Nothing is written back for it.
    #[default]
    Auto,
    /// Only look.
    Never,
    /// In any case; changed pages are written to the disk first.
    Always,
}

/// How much one preparation may cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// After this time no further block is begun. One block is a read of one huge page from the disk.
    pub time: Duration,
    /// Bytes that may be read again.
    pub bytes: u64,
}

impl Budget {
    /// No limit.
    pub const UNLIMITED: Self = Self { time: Duration::MAX, bytes: u64::MAX };
}

/// What a preparation achieved.
#[derive(Debug)]
pub struct Prepared {
    /// The parts that lie in huge folios now, read back from the kernel.
    pub extents: HugeExtents,
    /// Bytes in whole blocks of what was asked for.
    pub of: u64,
    /// Bytes that lay in huge folios before.
    pub found: u64,
    /// Bytes that were collapsed in place.
    pub collapsed: u64,
    /// Bytes that were evicted and read again into huge folios.
    pub created: u64,
    /// Time taken.
    pub time: Duration,
    /// Why the rest stayed small; `None` where there is no rest.
    pub rest: Option<Refusal>,
}

/// Gets those blocks into huge folios that lie in `offsets` with all their bytes, where they are not: collapses them where
/// the kernel can, else evicts those that nobody maps and reads them again. Pages of other files are not touched, and
/// contents never change. The file needs to be open for reading, no more; `path` is for messages.
///
/// Of several processes that prepare the same file one works, the others wait.
///
/// # Errors
/// [`Refusal`] where no block lies in a huge folio afterwards. Where some do, the reason for the others is in
/// [`Prepared::rest`].
pub fn prepare(
    file: &File,
    path: &Path,
    offsets: Range<u64>,
    huge: PageSize,
    way: Prepare,
    budget: Budget,
) -> Result<Prepared, Refusal> {
    let begin = Instant::now();
    let metadata = file.metadata().map_err(|error| Error::new("fstat", error))?;
    if !metadata.is_file() {
        return Err(Refusal::NotRegular);
    }
    if transparent_huge_page() != Some(huge) {
        return Err(Refusal::NoHugePages(huge));
    }
    let blocks = whole_blocks(&offsets, metadata.len(), huge);
    if blocks.is_empty() {
        return Err(Refusal::TooSmall { bytes: offsets.end.saturating_sub(offsets.start).min(metadata.len()), huge });
    }
    let identity = FileIdentity::of(&metadata);
    let mut work = Work { file, path, huge, budget, begin, way, blocks, done: Done::default() };
    let found = huge_blocks(file, &work.blocks, huge)?;
    let rest = work.fill(found.clone(), &identity)?;
    work.result(found.len(), rest)
}

struct Work<'a> {
    file: &'a File,
    path: &'a Path,
    huge: PageSize,
    budget: Budget,
    begin: Instant,
    way: Prepare,
    /// All blocks asked for.
    blocks: Range<u64>,
    done: Done,
}

#[derive(Debug, Default)]
struct Done {
    /// Numbers of the blocks that lie in huge folios now.
    huge: Vec<u64>,
    collapsed: u64,
    created: u64,
    /// Blocks that were tried.
    tried: u64,
}

impl Work<'_> {
    fn result(self, found: usize, rest: Option<Refusal>) -> Result<Prepared, Refusal> {
        let bytes = |blocks: u64| blocks * self.huge.bytes();
        match rest {
            Some(refusal) if self.done.huge.is_empty() => Err(refusal),
            rest => {
                let huge = runs(&self.done.huge).iter().map(|run| offsets_of(run, self.huge)).collect();
                let file_length = self.file.metadata().map_err(|error| Error::new("fstat", error))?.len();
                Ok(Prepared {
                    extents: HugeExtents { huge, file_length },
                    of: bytes(self.blocks.end - self.blocks.start),
                    found: bytes(found as u64),
                    collapsed: bytes(self.done.collapsed),
                    created: bytes(self.done.created),
                    time: self.begin.elapsed(),
                    rest,
                })
            }
        }
    }

    /// Returns why blocks stay small; `None` where all are huge.
    fn fill(&mut self, found: Vec<u64>, identity: &FileIdentity) -> Result<Option<Refusal>, Error> {
        self.done.huge = found;
        let mut small = self.small();
        if small.is_empty() {
            return Ok(None);
        }
        if self.way == Prepare::Never {
            return Ok(Some(self.not_asked()));
        }
        if nix::sys::prctl::get_thp_disable() == Ok(true) {
            return Ok(Some(Refusal::DisabledHere));
        }
        let mut record = match self.record(identity) {
            Some(Err(Held(time))) => return Ok(Some(Refusal::PreparedByAnother(time))),
            Some(Ok((record, waited))) => {
                if waited {
                    self.done.huge = huge_blocks(self.file, &self.blocks, self.huge)?;
                    small = self.small();
                }
                Some(record)
            }
            None => None,
        };
        let before = record.as_ref().and_then(Record::attempt).or_else(|| attempt_of_root(identity));
        if self.way == Prepare::Auto
            && let Some(before) = &before
        {
            small.retain(|block| before.blocks.binary_search(block).is_err());
            if small.is_empty() && !self.small().is_empty() {
                let (reason, path) = (before.reason.clone(), self.path.to_owned());
                return Ok(Some(Refusal::TriedBefore { reason, path }));
            }
        }
        let refusal = self.make(&small)?;
        if let Some(record) = &mut record {
            record.keep(self.attempt(refusal.as_ref()).as_ref());
        }
        Ok(refusal)
    }

    fn small(&self) -> Vec<u64> {
        self.blocks.clone().filter(|block| self.done.huge.binary_search(block).is_err()).collect()
    }

    fn not_asked(&self) -> Refusal {
        let bytes = |blocks: u64| blocks * self.huge.bytes();
        let (huge, of) = (bytes(self.done.huge.len() as u64), bytes(self.blocks.end - self.blocks.start));
        Refusal::NotAsked { huge, of, path: self.path.to_owned() }
    }

    /// The locked record of the file, and whether another process had held it; `None` where records cannot be kept.
    fn record(&self, identity: &FileIdentity) -> Option<Result<(Record, bool), Held>> {
        let attempts = Attempts::of_this_user()?;
        match attempts.record(identity, Duration::ZERO)? {
            Ok(record) => Some(Ok((record, false))),
            Err(_) => attempts.record(identity, self.time_left()).map(|record| record.map(|record| (record, true))),
        }
    }

    /// What to remember of a refusal.
    fn attempt(&self, refusal: Option<&Refusal>) -> Option<Attempt> {
        let refusal = refusal?;
        let lasting = match refusal {
            Refusal::Mapped { processes, .. } if !processes.is_empty() => {
                Lasting::while_alive(&processes.iter().map(|(pid, _)| *pid).collect::<Vec<_>>())
            }
            Refusal::Fragmented { .. } | Refusal::Mapped { .. } | Refusal::InUse { .. } | Refusal::Tmpfs(_) => {
                Lasting::a_while()
            }
            // What was made remains: the next attempt goes on from there.
            Refusal::OutOfBudget { .. } if self.done.created + self.done.collapsed > 0 => return None,
            Refusal::OutOfBudget { .. } => Lasting::a_while(),
            Refusal::NotYetWritten { .. } | Refusal::Failed(_) => return None,
            _ => Lasting::ToBoot,
        };
        Some(Attempt::new(self.small(), refusal.to_string(), lasting))
    }

    fn time_left(&self) -> Duration {
        self.budget.time.saturating_sub(self.begin.elapsed())
    }

    fn make(&mut self, small: &[u64]) -> Result<Option<Refusal>, Error> {
        let file_system = FileSystem::of(self.file).map_err(|error| Error::new("fstatfs", error))?;
        let collapse = self.collapse(small)?;
        let small: Vec<u64> =
            small.iter().copied().filter(|block| self.done.huge.binary_search(block).is_err()).collect();
        if small.is_empty() {
            return Ok((!self.small().is_empty()).then(|| self.not_asked()));
        }
        if let Collapse::Limit(limit) = collapse {
            return Ok(Some(self.out_of_budget(limit)));
        }
        if !file_system.can_be_evicted() {
            let answer = if let Collapse::Refused(error) = collapse { error.desc() } else { "no answer" };
            return Ok(Some(Refusal::Tmpfs(answer.to_owned())));
        }
        if let Some(refusal) = file_system.refuse(self.file) {
            return Ok(Some(refusal));
        }
        if let Some(refusal) = self.write_back(&small) {
            return Ok(Some(refusal));
        }
        let (mut limit, mut still) = (None, small.clone());
        // Pages that the kernel has in hand for a moment are not evicted the first time.
        for _ in 0..PASSES {
            limit = self.create(&still)?;
            self.done.huge = huge_blocks(self.file, &self.blocks, self.huge)?;
            still.retain(|block| self.done.huge.binary_search(block).is_err());
            if limit.is_some() || still.is_empty() {
                break;
            }
        }
        self.done.created = (small.len() - still.len()) as u64;
        match limit {
            _ if still.is_empty() => Ok(None),
            Some(limit) => Ok(Some(self.out_of_budget(limit))),
            None => self.explain(&still, &file_system).map(Some),
        }
    }

    /// Collapses in place, as far as the kernel does.
    fn collapse(&mut self, small: &[u64]) -> Result<Collapse, Error> {
        for run in runs(small) {
            let length = (run.end - run.start) * self.huge.bytes();
            let mapping =
                FileMapping::executable_if_allowed(self.file, run.start * self.huge.bytes(), length, self.huge)
                    .map_err(|error| Error::new("mapping the file", error))?;
            for number in run.clone() {
                if self.begin.elapsed() >= self.budget.time {
                    return Ok(Collapse::Limit(Limit::Time(self.budget.time)));
                }
                match mapping.collapse_part((number - run.start) * self.huge.bytes(), self.huge.bytes()) {
                    Ok(()) => {
                        self.done.collapsed += 1;
                        self.done.huge.push(number);
                    }
                    Err(error) => {
                        let error = Errno::from_raw(error.raw_os_error().unwrap_or_default());
                        // This kernel or file system does not.
                        if matches!(error, Errno::EINVAL | Errno::ENOSYS | Errno::EPERM) {
                            self.done.huge.sort_unstable();
                            return Ok(Collapse::Refused(error));
                        }
                    }
                }
            }
        }
        self.done.huge.sort_unstable();
        // A block that was collapsed is read back with the others.
        if self.done.collapsed > 0 {
            self.done.huge = huge_blocks(self.file, &self.blocks, self.huge)?;
        }
        Ok(Collapse::Tried)
    }

    /// Changed pages cannot be evicted. Writing them back may take long, so it is done only on request.
    fn write_back(&self, small: &[u64]) -> Option<Refusal> {
        let dirty_in =
            |run| cached_pages(self.file, offsets_of(run, self.huge)).map(|found| found.dirty + found.writeback);
        let dirty: Option<u64> = runs(small).iter().map(|run| dirty_in(run).ok()).sum();
        match dirty {
            Some(0) => None,
            Some(pages) if self.way == Prepare::Auto => {
                let bytes = pages * base_page().bytes();
                Some(Refusal::NotYetWritten { bytes, path: self.path.to_owned() })
            }
            None if self.way == Prepare::Auto => None,
            // File systems that cannot be written have nothing to write back; other failures show afterwards.
            _ => {
                let _ = self.file.sync_data();
                None
            }
        }
    }

    /// Evicts and reads again, block by block, so that little is missing at any time. Returns the limit that ended it.
    fn create(&mut self, small: &[u64]) -> Result<Option<Limit>, Error> {
        for run in runs(small) {
            let Range { start, end } = offsets_of(&run, self.huge);
            let mapping = FileMapping::readable(self.file, start, end - start, self.huge)
                .map_err(|error| Error::new("mapping the file", error))?;
            mapping.prefer_huge().map_err(|error| Error::new("madvise(MADV_HUGEPAGE)", error))?;
            // Else the kernel begins to read the next block, too, and in smaller pieces, which cannot be evicted while they are read.
            mapping.expect_random_reads().map_err(|error| Error::new("madvise(MADV_RANDOM)", error))?;
            for number in run.clone() {
                if self.begin.elapsed() >= self.budget.time {
                    return Ok(Some(Limit::Time(self.budget.time)));
                }
                if (self.done.tried + 1).saturating_mul(self.huge.bytes()) > self.budget.bytes {
                    return Ok(Some(Limit::Bytes(self.budget.bytes)));
                }
                self.done.tried += 1;
                let at = number * self.huge.bytes();
                let advice = PosixFadviseAdvice::POSIX_FADV_DONTNEED;
                posix_fadvise(self.file, at as i64, self.huge.bytes() as i64, advice)
                    .map_err(|error| Error::new("posix_fadvise(POSIX_FADV_DONTNEED)", error))?;
                touch(&mapping, at - start)?;
            }
        }
        Ok(None)
    }

    fn out_of_budget(&self, limit: Limit) -> Refusal {
        let left = self.small().len() as u64 * self.huge.bytes();
        Refusal::OutOfBudget { limit, left, path: self.path.to_owned() }
    }

    /// Finds out why blocks stayed small.
    fn explain(&self, still: &[u64], file_system: &FileSystem) -> Result<Refusal, Error> {
        let (blocks, path) = (still.len() as u64, self.path.to_owned());
        let mapped = MappedFiles::read()?;
        let users = mapped.users_of(self.file, self.huge)?;
        let mut processes: Vec<i32> =
            runs(still).iter().flat_map(|run| users.holders_of(&offsets_of(run, self.huge))).collect();
        processes.sort_unstable();
        processes.dedup();
        if !processes.is_empty() {
            let name = |pid| ProcessFiles::of(pid).name().unwrap_or_else(|_| "ended".to_owned());
            let processes = processes.into_iter().map(|pid| (pid, name(pid))).collect();
            return Ok(Refusal::Mapped { processes, blocks, unseen: mapped.not_permitted, path });
        }
        if !has_free_huge_pages(self.huge) {
            let of = blocks + self.done.created;
            return Ok(Refusal::Fragmented { blocks, of, huge: self.huge, path });
        }
        if self.done.created > 0 {
            return Ok(Refusal::InUse { blocks, path });
        }
        if mapped.not_permitted > 0 {
            return Ok(Refusal::Mapped { processes: Vec::new(), blocks, unseen: mapped.not_permitted, path });
        }
        Ok(Refusal::StayedSmall { blocks, file_system: file_system.name.clone(), path })
    }
}

/// How collapsing ended.
enum Collapse {
    /// Every block was tried.
    Tried,
    /// The kernel does not collapse pages of this file.
    Refused(Errno),
    /// The budget was used up.
    Limit(Limit),
}

/// True where `/proc/buddyinfo` counts free memory in pieces of a huge page; true too where it cannot be read.
fn has_free_huge_pages(huge: PageSize) -> bool {
    let order = (huge.bytes() / base_page().bytes()).trailing_zeros() as usize;
    fs::read_to_string("/proc/buddyinfo").map_or(true, |text| has_free_pieces(&text, order))
}

/// Lines such as `Node 0, zone   Normal   12   3 …`: free pieces of 1, 2, 4, … pages.
fn has_free_pieces(buddyinfo: &str, order: usize) -> bool {
    let free = |line: &str| line.split_ascii_whitespace().skip(4 + order).any(|count| count.parse() != Ok(0u64));
    buddyinfo.lines().any(free)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_pieces_are_counted_from_their_size_on() {
        let text = "Node 0, zone      DMA      0      0      1\nNode 0, zone   Normal    7    5    0\n";
        assert!(has_free_pieces(text, 2) && has_free_pieces(text, 0) && !has_free_pieces(text, 3));
        assert!(!has_free_pieces("Node 0, zone   Normal    7    5    0\n", 2) && !has_free_pieces("", 0));
    }
}
