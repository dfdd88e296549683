//! Gets blocks of a file into huge folios.

use crate::attempts::{Attempt, AttemptRecord, Attempts, Held, Lasting, attempt_of_root, recorded};
use crate::blocks::{offsets_of, runs, whole_blocks};
use crate::budget::{Budget, Effort};
use crate::cache::KernelCache;
use crate::file_system::may_collapse_in_place;
use crate::look::Hold;
use crate::making::Making;
use crate::refusal::Limit;
use crate::{Error, HugeExtents, Refusal};
use address_space::PageSize;
use linux::pages::transparent_huge_page;
use process_view::FileIdentity;
use std::collections::BTreeSet;
use std::fs::File;
use std::ops::Range;
use std::path::Path;
use std::time::{Duration, Instant};

/// Result of a preparation.
#[derive(Debug)]
pub struct Prepared {
    /// The parts in huge folios now, read back from the kernel.
    pub extents: HugeExtents,
    /// Requested bytes, in whole blocks.
    pub of: u64,
    /// Bytes that were in huge folios before, and were not evicted.
    pub found: u64,
    /// Bytes that were collapsed in place.
    pub collapsed: u64,
    /// Bytes that were evicted and read again into huge folios.
    pub created: u64,
    /// Time taken.
    pub time: Duration,
    /// Why the rest stayed small; `None` if there is no rest.
    pub rest: Option<Refusal>,
    /// Keeps the parts in huge folios mapped: the kernel may drop unmapped pages at any time.
    pub held: Hold,
}

/// Brings the blocks that are completely within `offsets` into huge folios: collapses them if the kernel can, otherwise
/// evicts those that are not mapped and reads them again. Pages of other files are not touched, and contents never
/// change. The file only needs to be open for reading; `path` is for messages.
///
/// If several processes prepare the same file, one works and the others wait.
///
/// # Errors
/// [`Refusal`] if no block is in a huge folio afterwards. If some are, the reason for the others is in
/// [`Prepared::rest`].
pub fn prepare(
    file: &File,
    path: &Path,
    offsets: Range<u64>,
    huge: PageSize,
    effort: Effort,
    budget: Budget<'_>,
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
    let (bytes, memory) = (offsets_of(&(0..blocks.end - blocks.start), huge).end, memory_of_machine());
    if memory.is_some_and(|memory| bytes > memory) {
        return Err(Refusal::LargerThanMemory { bytes, memory: memory.unwrap_or_default() });
    }
    let identity = FileIdentity::of(&metadata);
    let cache = KernelCache { file, huge, begin };
    let making = Making::new(cache, path, huge, effort, budget, blocks)?;
    let mut work = Work { making };
    let rest = work.fill(&identity)?;
    work.result(rest)
}

/// The memory of the machine, in bytes. Nothing that is larger stays in the page cache.
fn memory_of_machine() -> Option<u64> {
    let text = linux::text::text_of("/proc/meminfo").ok()?;
    let total = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    total.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

struct Work<'a> {
    making: Making<'a, KernelCache<'a>>,
}

impl Work<'_> {
    fn result(self, rest: Option<Refusal>) -> Result<Prepared, Refusal> {
        let Making { cache, huge_page, blocks, now, collapsed, created, .. } = self.making;
        match rest {
            Some(refusal) if now.blocks.is_empty() => Err(refusal),
            rest => {
                let bytes = |blocks: usize| blocks as u64 * huge_page.bytes();
                let among = |made: &BTreeSet<u64>| now.blocks.iter().filter(|block| made.contains(block)).count();
                let created_now = among(&created);
                let collapsed_now = among(&collapsed.difference(&created).copied().collect());
                let huge = runs(&now.blocks).iter().map(|run| offsets_of(run, huge_page)).collect();
                let file_length = cache.file.metadata().map_err(|error| Error::new("fstat", error))?.len();
                Ok(Prepared {
                    extents: HugeExtents { huge, file_length },
                    of: offsets_of(&(0..blocks.end - blocks.start), huge_page).end,
                    found: bytes(now.blocks.len() - created_now - collapsed_now),
                    collapsed: bytes(collapsed_now),
                    created: bytes(created_now),
                    time: cache.begin.elapsed(),
                    rest,
                    held: now.hold,
                })
            }
        }
    }

    /// Returns why blocks stay small; `None` if all are huge.
    fn fill(&mut self, identity: &FileIdentity) -> Result<Option<Refusal>, Error> {
        if self.making.small().is_empty() {
            return Ok(None);
        }
        let effort = self.making.effort;
        if effort == Effort::Look {
            return Ok(Some(self.making.not_asked()));
        }
        if nix::sys::prctl::get_thp_disable() == Ok(true) {
            return Ok(Some(Refusal::DisabledHere));
        }
        let (mut record, has_waited) = match self.record(identity) {
            Some(Err(Held { waited, lock })) => return Ok(Some(Refusal::PreparedByAnother { waited, lock })),
            Some(Ok((record, has_waited))) => (Some(record), has_waited),
            None => (None, false),
        };
        if has_waited {
            self.making.look()?;
        }
        let before = match effort {
            Effort::Foresee => recorded(identity),
            _ => record.as_ref().and_then(AttemptRecord::attempt).or_else(|| attempt_of_root(identity)),
        };
        let before = before.filter(|_| effort != Effort::Always);
        if let Some(before) = &before {
            self.making.left_out = before.blocks.clone();
        }
        let refusal = match effort {
            _ if self.making.wanted().is_empty() => None,
            Effort::Foresee => self.making.foresee(may_collapse_in_place(self.making.path))?,
            _ => self.making.make()?,
        };
        if refusal.is_none()
            && let Some(before) = before
            && !self.making.small().is_empty()
        {
            // The record of the omitted blocks stays.
            let (reason, path) = (before.reason, self.making.path.to_owned());
            return Ok(Some(Refusal::TriedBefore { reason, path }));
        }
        let is_news = refusal.as_ref().is_none_or(|refusal| is_news(refusal, effort, has_waited));
        if let Some(record) = record.as_mut().filter(|_| is_news) {
            record.keep(self.attempt(refusal.as_ref(), record.lasting_before().as_ref()).as_ref());
        }
        Ok(refusal)
    }

    /// The locked record of the file, and whether another process had held it; `None` if records cannot be kept.
    fn record(&self, identity: &FileIdentity) -> Option<Result<(AttemptRecord, bool), Held>> {
        if self.making.effort == Effort::Foresee {
            return None;
        }
        let attempts = Attempts::of_this_user()?;
        match attempts.record(identity, Duration::ZERO)? {
            Ok(record) => Some(Ok((record, false))),
            Err(held) if self.making.effort == Effort::InPlace => Some(Err(held)),
            Err(_) => attempts.record(identity, self.time_left()).map(|record| record.map(|record| (record, true))),
        }
    }

    /// The record of a refusal.
    fn attempt(&self, refusal: Option<&Refusal>, before: Option<&Lasting>) -> Option<Attempt> {
        let refusal = refusal?;
        let lasting = match refusal {
            Refusal::Mapped { processes, .. } if !processes.is_empty() && self.making.in_use.is_empty() => {
                let pids: Vec<i32> = processes.iter().map(|(pid, _)| *pid).collect();
                match self.making.may_pass() {
                    true => Lasting::pause_while_alive(&pids, before),
                    false => Lasting::while_alive(&pids),
                }
            }
            // No process was found, or their pages were in use: one may have mapped the file for a moment, for example to
            // read its state, and the kernel collapses mapped blocks once nobody uses their pages.
            Refusal::Mapped { .. } | Refusal::InUse { .. } => Lasting::pause_after(before),
            Refusal::Fragmented { .. } | Refusal::Tmpfs(_) => Lasting::a_while(),
            // The blocks made so far remain: the next attempt continues from there.
            Refusal::OutOfBudget { .. } if !(self.making.created.is_empty() && self.making.collapsed.is_empty()) => {
                return None;
            }
            // The time was spent on waiting for others.
            Refusal::OutOfBudget { limit: Limit::Time(_), .. } if self.making.may_pass() => {
                Lasting::pause_after(before)
            }
            Refusal::OutOfBudget { .. } => Lasting::a_while(),
            // The next attempt may well succeed.
            Refusal::NotYetWritten { .. } | Refusal::Dropped { .. } | Refusal::Failed(_) => return None,
            _ => Lasting::ToBoot,
        };
        Some(Attempt::new(self.making.small(), refusal.to_string(), lasting))
    }

    fn time_left(&self) -> Duration {
        self.making.budget.time.saturating_sub(self.making.cache.begin.elapsed())
    }
}

/// False for a refusal that shows nothing about the file: less than usual was tried, or the time was spent on waiting for
/// another process that prepared it.
fn is_news(refusal: &Refusal, effort: Effort, has_waited: bool) -> bool {
    match refusal {
        Refusal::NotAsked { .. } => effort != Effort::InPlace,
        Refusal::OutOfBudget { limit: Limit::Time(_), .. } => !has_waited,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_spent_on_waiting_for_another_process_forbids_nothing() {
        let out_of = |limit| Refusal::OutOfBudget { limit, left: 1, path: "/x".into() };
        let (time, bytes) = (Limit::Time(Duration::from_millis(500)), Limit::Bytes(1));
        assert!(is_news(&out_of(time), Effort::Once, false) && !is_news(&out_of(time), Effort::Once, true));
        assert!(is_news(&out_of(bytes), Effort::Once, true));
        let not_asked = Refusal::NotAsked { huge: 0, of: 1, path: "/x".into() };
        assert!(is_news(&not_asked, Effort::Once, false) && !is_news(&not_asked, Effort::InPlace, false));
    }
}
