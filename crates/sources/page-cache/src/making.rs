//! Collapses blocks, or evicts them and reads them again, until they are in huge folios.

use crate::blocks::runs;
use crate::budget::{Budget, Effort, Users};
use crate::cache::{Holders, PageCache};
use crate::look::Looked;
use crate::refusal::Limit;
use crate::{Error, Refusal};
use address_space::PageSize;
use linux::pages::base_page;
use nix::errno::Errno;
use std::collections::BTreeSet;
use std::ops::Range;
use std::path::Path;
use std::time::Duration;

/// The pauses after attempts to collapse blocks with pages in use.
const PAUSES: [Duration; 4] =
    [Duration::from_millis(1), Duration::from_millis(4), Duration::from_millis(16), Duration::ZERO];
/// The pauses before blocks are tried again that others may have mapped for a moment only: as long as a process waits for a
/// CPU within that moment on a busy machine.
const PAUSES_FOR_LOOKS: [Duration; 4] =
    [Duration::from_millis(1), Duration::from_millis(4), Duration::from_millis(16), Duration::from_millis(64)];
/// Number of times that a block is evicted and read again.
const PASSES: usize = 3;
/// Number of blocks that are evicted in part before the rest is left alone, if this user cannot see who maps them.
const MOST_IN_VAIN: usize = 3;

/// The blocks of one file on their way into huge folios.
pub(crate) struct Making<'a, C: PageCache> {
    pub cache: C,
    pub path: &'a Path,
    pub huge_page: PageSize,
    pub budget: Budget<'a>,
    pub effort: Effort,
    /// All requested blocks.
    pub blocks: Range<u64>,
    /// The omitted blocks, sorted.
    pub left_out: Vec<u64>,
    /// Blocks that are left alone since huge folios would fill their holes.
    sparse: BTreeSet<u64>,
    /// The blocks in huge folios, with their holds.
    pub now: Looked<C::Hold>,
    /// Blocks that were collapsed.
    pub collapsed: BTreeSet<u64>,
    /// Blocks whose pages were in use at each attempt to collapse them: a later attempt may succeed though they are mapped.
    pub in_use: BTreeSet<u64>,
    /// Blocks that were evicted and read again.
    pub created: BTreeSet<u64>,
    /// Number of evictions.
    evictions: u64,
    /// The processes that map pages of the blocks, once they have been searched.
    holders: Option<Holders>,
    /// Blocks of which pages stayed although nobody was seen who maps them, and not every process can be seen.
    in_vain: BTreeSet<u64>,
    /// Blocks of which pages stayed at an eviction although nobody was seen who maps them.
    stayed: BTreeSet<u64>,
}

/// The outcome of collapsing.
enum Collapse {
    /// Every block was tried.
    Tried,
    /// The kernel does not collapse pages of this file.
    Refused(Errno),
    /// The budget was used up.
    Limit(Limit),
}

impl<'a, C: PageCache> Making<'a, C> {
    /// Looks at the blocks.
    pub fn new(
        cache: C,
        path: &'a Path,
        huge_page: PageSize,
        effort: Effort,
        budget: Budget<'a>,
        blocks: Range<u64>,
    ) -> Result<Self, Error> {
        let now = cache.look(&blocks)?;
        let (left_out, sparse, collapsed, created) = (Vec::new(), BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        let (evictions, holders, in_vain, in_use) = (0, None, BTreeSet::new(), BTreeSet::new());
        Ok(Self {
            cache,
            path,
            huge_page,
            budget,
            effort,
            blocks,
            left_out,
            sparse,
            now,
            collapsed,
            in_use,
            created,
            evictions,
            holders,
            in_vain,
            stayed: BTreeSet::new(),
        })
    }

    /// Reads the state again. Blocks stay held until then.
    pub fn look(&mut self) -> Result<(), Error> {
        self.now = self.cache.look(&self.blocks)?;
        Ok(())
    }

    /// All requested blocks that are not in huge folios, including blocks that have left them since.
    pub fn small(&self) -> Vec<u64> {
        self.blocks.clone().filter(|block| self.now.blocks.binary_search(block).is_err()).collect()
    }

    /// The small blocks that must become huge.
    pub fn wanted(&self) -> Vec<u64> {
        let is_left = |block: &u64| self.left_out.binary_search(block).is_ok() || self.sparse.contains(block);
        self.small().into_iter().filter(|block| !is_left(block)).collect()
    }

    /// Returns why blocks stay small; `None` if all wanted ones are huge.
    pub fn make(&mut self) -> Result<Option<Refusal>, Error> {
        self.leave_sparse_blocks()?;
        let refused = if self.wanted().is_empty() { None } else { self.make_full_ones()? };
        let sparse = || Refusal::Sparse { blocks: self.sparse.len() as u64, path: self.path.to_owned() };
        Ok(refused.or_else(|| (!self.sparse.is_empty()).then(sparse)))
    }

    /// Returns why blocks would stay small if they were made, and changes nothing. Those that would be made count as huge.
    /// `collapses`: the kernel collapses blocks in place.
    pub fn foresee(&mut self, collapses: bool) -> Result<Option<Refusal>, Error> {
        self.leave_sparse_blocks()?;
        if !collapses && !self.wanted().is_empty() {
            if let Some(refusal) = self.cache.refuse()?.or_else(|| self.write_back()) {
                return Ok(Some(refusal));
            }
            self.find_holders()?;
        }
        let mut made = if collapses { self.wanted() } else { self.to_create() };
        let most = (self.budget.bytes)();
        let is_too_much = self.bytes(made.len()) > most;
        made.truncate((most / self.huge_page.bytes()).try_into().unwrap_or(usize::MAX));
        self.created.extend(&made);
        self.now.blocks.extend(made);
        self.now.blocks.sort_unstable();
        match self.wanted().is_empty() {
            true if self.sparse.is_empty() => Ok(None),
            true => Ok(Some(Refusal::Sparse { blocks: self.sparse.len() as u64, path: self.path.to_owned() })),
            false if is_too_much => Ok(Some(self.out_of_budget(Limit::Bytes(most)))),
            false => self.explain().map(Some),
        }
    }

    fn leave_sparse_blocks(&mut self) -> Result<(), Error> {
        for block in self.wanted() {
            if !self.cache.may_be_filled(block)? {
                self.sparse.insert(block);
            }
        }
        Ok(())
    }

    fn make_full_ones(&mut self) -> Result<Option<Refusal>, Error> {
        let collapse = self.collapse()?;
        if self.wanted().is_empty() {
            return Ok(None);
        }
        if let Collapse::Limit(limit) = collapse {
            return Ok(Some(self.out_of_budget(limit)));
        }
        if self.effort == Effort::InPlace {
            return Ok(Some(match collapse {
                Collapse::Tried => self.fragmented(),
                _ => self.not_asked(),
            }));
        }
        if !self.cache.can_be_evicted()? {
            let answer = if let Collapse::Refused(error) = collapse { error.desc() } else { "no answer" };
            return Ok(Some(Refusal::Tmpfs(answer.to_owned())));
        }
        if let Some(refusal) = self.cache.refuse()? {
            return Ok(Some(refusal));
        }
        if let Some(refusal) = self.write_back() {
            return Ok(Some(refusal));
        }
        if self.budget.users == Users::BeforeEviction {
            self.find_holders()?;
        }
        let most = (self.budget.bytes)();
        let limit = self.create_in_passes(most)?;
        let limit = if limit.is_none() { self.create_after_looks(most)? } else { limit };
        match limit {
            _ if self.wanted().is_empty() => Ok(None),
            Some(limit) => Ok(Some(self.out_of_budget(limit))),
            None => self.explain().map(Some),
        }
    }

    /// Returns the limit that ended it.
    fn create_in_passes(&mut self, most: u64) -> Result<Option<Limit>, Error> {
        // Pages that the kernel uses temporarily are not evicted the first time, and reclaim may drop a block
        // before it is held.
        for _ in 0..PASSES {
            let blocks = self.to_create();
            if blocks.is_empty() {
                break;
            }
            let limit = self.create(&blocks, most)?;
            if limit.is_some() {
                return Ok(limit);
            }
        }
        Ok(None)
    }

    /// Waits for processes that may have blocks mapped for a moment only, as long as the budget allows, and makes the blocks
    /// that they no longer hold. Returns the limit that ended it.
    fn create_after_looks(&mut self, most: u64) -> Result<Option<Limit>, Error> {
        for pause in PAUSES_FOR_LOOKS.iter().map(Some).chain([None]) {
            // Processes may have mapped blocks since the last search.
            let stayed = |block: &u64| self.is_mapped(*block) || self.stayed.contains(block);
            let held: Vec<u64> = self.wanted().into_iter().filter(stayed).collect();
            if held.is_empty() || self.time_is_up().is_some() {
                break;
            }
            self.holders = None;
            self.find_holders()?;
            let left: Vec<u64> = held.into_iter().filter(|block| !self.is_mapped(*block)).collect();
            if !left.is_empty() {
                let limit = self.create(&left, most)?;
                if limit.is_some() {
                    return Ok(limit);
                }
            }
            let ends_in_time = |pause: &&Duration| self.cache.elapsed().saturating_add(**pause) < self.budget.time;
            match pause.filter(ends_in_time).filter(|_| self.may_pass()) {
                Some(pause) => self.cache.pause(*pause),
                None => break,
            }
        }
        Ok(None)
    }

    /// True if a wanted block is held by others that may have it mapped for a moment only.
    pub fn may_pass(&self) -> bool {
        let Some(Holders { by_block, sharers, .. }) = &self.holders else { return false };
        let passes = |pids: &Vec<(i32, String)>| pids.iter().all(|(pid, _)| sharers.contains(pid));
        self.wanted().iter().any(|block| by_block.get(block).is_some_and(passes))
    }

    /// Collapses in place if the kernel can. Blocks with pages that are in use are tried again.
    fn collapse(&mut self) -> Result<Collapse, Error> {
        let (mut outcome, mut mappings, mut blocks) = (Collapse::Tried, Vec::new(), self.wanted());
        for pause in PAUSES {
            self.in_use.clear();
            outcome = self.collapse_once(&blocks, &mut mappings)?;
            if self.in_use.is_empty() || !matches!(outcome, Collapse::Tried) {
                break;
            }
            self.cache.pause(pause);
            blocks = self.in_use.iter().copied().collect();
        }
        // A block that was collapsed is read back with the others.
        if !self.collapsed.is_empty() {
            self.look()?;
        }
        // The mappings kept the collapsed blocks mapped until they were read back.
        drop(mappings);
        Ok(outcome)
    }

    /// Tries these blocks once. The kernel answers EAGAIN for pages that are being read or written, or that another CPU is
    /// about to put on its lists (`madvise_collapse_errno`).
    fn collapse_once(&mut self, blocks: &[u64], mappings: &mut Vec<C::Mapping>) -> Result<Collapse, Error> {
        // Their pages become the caller's.
        let most = if self.cache.can_be_evicted()? { u64::MAX } else { (self.budget.bytes)() };
        for run in runs(blocks) {
            mappings.push(self.cache.map_to_collapse(&run)?);
            let Some(mapping) = mappings.last() else { break };
            for block in run {
                let used = self.bytes(self.collapsed.len() + 1);
                let too_many = (used > most).then_some(Limit::Bytes(most));
                if let Some(limit) = self.time_is_up().or(too_many) {
                    return Ok(Collapse::Limit(limit));
                }
                // Others may have made holes since.
                if !self.cache.may_be_filled(block)? {
                    self.sparse.insert(block);
                    continue;
                }
                match self.cache.collapse(mapping, block) {
                    Ok(()) => drop(self.collapsed.insert(block)),
                    Err(Errno::EAGAIN) => drop(self.in_use.insert(block)),
                    // This kernel or file system does not, unless it has collapsed others.
                    Err(error @ (Errno::EINVAL | Errno::ENOSYS | Errno::EPERM)) if self.collapsed.is_empty() => {
                        return Ok(Collapse::Refused(error));
                    }
                    Err(_) => {}
                }
            }
        }
        Ok(Collapse::Tried)
    }

    /// Changed pages cannot be evicted. Writing them back may take long, so it is done only on request.
    fn write_back(&self) -> Option<Refusal> {
        let dirty_in = |run: &Range<u64>| self.cache.cached(run).map(|found| found.dirty + found.writeback);
        let dirty: Option<u64> = runs(&self.wanted()).iter().map(dirty_in).sum();
        match dirty {
            Some(0) => None,
            Some(pages) if !self.writes_back() => {
                let bytes = pages * base_page().bytes();
                Some(Refusal::NotYetWritten { bytes, path: self.path.to_owned() })
            }
            None if !self.writes_back() => None,
            _ => {
                self.cache.write_back();
                None
            }
        }
    }

    fn writes_back(&self) -> bool {
        !matches!(self.effort, Effort::Once | Effort::Foresee)
    }

    /// The wanted blocks that nobody is known to map.
    fn to_create(&self) -> Vec<u64> {
        self.wanted().into_iter().filter(|block| !self.is_mapped(*block)).collect()
    }

    fn is_mapped(&self, block: u64) -> bool {
        let is_held = |found: &Holders| found.by_block.contains_key(&block);
        self.holders.as_ref().is_some_and(is_held) || self.in_vain.contains(&block)
    }

    /// Evicts these blocks and reads them again, one by one, so that little is missing at any time, and at most `most` bytes;
    /// then reads the state of all blocks. Returns the limit that ended it.
    fn create(&mut self, blocks: &[u64], most: u64) -> Result<Option<Limit>, Error> {
        let (mut limit, mut mappings) = (None, Vec::new());
        'runs: for run in runs(blocks) {
            let mapping = self.cache.map_to_create(&run)?;
            for block in run {
                limit = self.time_is_up().or_else(|| self.bytes_are_used_up(most));
                if limit.is_some() || self.in_vain.len() >= MOST_IN_VAIN {
                    mappings.push(mapping);
                    break 'runs;
                }
                // Known only since another block stayed.
                if self.is_mapped(block) {
                    continue;
                }
                self.evictions += 1;
                self.cache.evict(block)?;
                match self.stays(block) {
                    Ok(false) => {}
                    stays => {
                        self.cache.read_ahead(block);
                        stays?;
                        continue;
                    }
                }
                self.cache.touch(&mapping, block)?;
                self.created.insert(block);
            }
            mappings.push(mapping);
        }
        if self.in_vain.len() >= MOST_IN_VAIN {
            let others = self.to_create();
            self.in_vain.extend(others);
        }
        self.look()?;
        // The mappings kept the new huge blocks mapped until here. In small blocks they would keep pages that must be
        // evicted.
        drop(mappings);
        Ok(limit)
    }

    /// True if pages of an evicted block are still there because a process maps them, or may map them. Pages that the
    /// kernel uses temporarily do not count.
    fn stays(&mut self, block: u64) -> Result<bool, Error> {
        if self.cache.cached(&(block..block + 1)).is_none_or(|found| found.cached == 0) {
            return Ok(false);
        }
        let holders = self.find_holders()?;
        if holders.by_block.contains_key(&block) {
            return Ok(true);
        }
        let unseen = holders.unseen > 0;
        self.stayed.insert(block);
        Ok(unseen && self.in_vain.insert(block))
    }

    fn find_holders(&mut self) -> Result<&Holders, Error> {
        let found = match self.holders.take() {
            Some(found) => found,
            None => self.cache.holders(&self.blocks)?,
        };
        Ok(self.holders.insert(found))
    }

    fn time_is_up(&self) -> Option<Limit> {
        (self.cache.elapsed() >= self.budget.time).then_some(Limit::Time(self.budget.time))
    }

    fn bytes_are_used_up(&self, most: u64) -> Option<Limit> {
        ((self.evictions + 1).saturating_mul(self.huge_page.bytes()) > most).then_some(Limit::Bytes(most))
    }

    fn out_of_budget(&self, limit: Limit) -> Refusal {
        Refusal::OutOfBudget { limit, left: self.bytes(self.small().len()), path: self.path.to_owned() }
    }

    fn bytes(&self, blocks: usize) -> u64 {
        blocks as u64 * self.huge_page.bytes()
    }

    /// The blocks are small, and are not to be prepared.
    pub fn not_asked(&self) -> Refusal {
        let of = self.blocks.end.saturating_sub(self.blocks.start) as usize;
        Refusal::NotAsked { huge: self.bytes(self.now.blocks.len()), of: self.bytes(of), path: self.path.to_owned() }
    }

    fn fragmented(&self) -> Refusal {
        let blocks = self.wanted().len() as u64;
        let made = |block: &&u64| self.created.contains(block) || self.collapsed.contains(block);
        let of = blocks + self.now.blocks.iter().filter(made).count() as u64;
        Refusal::Fragmented { blocks, of, huge: self.huge_page, path: self.path.to_owned() }
    }

    /// Finds out why blocks stayed small.
    fn explain(&mut self) -> Result<Refusal, Error> {
        // Finding the processes that map them takes longer than the remaining time.
        if let Some(limit) = self.time_is_up() {
            return Ok(self.out_of_budget(limit));
        }
        let (small, path) = (self.wanted(), self.path.to_owned());
        let Holders { by_block, unseen, .. } = self.find_holders()?.clone();
        let held: Vec<&Vec<(i32, String)>> = small.iter().filter_map(|block| by_block.get(block)).collect();
        if !held.is_empty() {
            let blocks = held.len() as u64;
            let processes: BTreeSet<(i32, String)> = held.into_iter().flatten().cloned().collect();
            return Ok(Refusal::Mapped { processes: processes.into_iter().collect(), blocks, unseen, path });
        }
        let dropped = |block: &&u64| self.cache.cached(&(**block..**block + 1)).is_some_and(|found| found.evicted > 0);
        let dropped = small.iter().filter(dropped).count() as u64;
        if dropped > 0 {
            return Ok(Refusal::Dropped { blocks: dropped, path });
        }
        let blocks = small.len() as u64;
        if !self.in_vain.is_empty() {
            return Ok(Refusal::Mapped { processes: Vec::new(), blocks, unseen, path });
        }
        if !self.cache.has_free_huge_pages() {
            return Ok(self.fragmented());
        }
        if self.created.iter().any(|block| self.now.blocks.binary_search(block).is_ok()) {
            return Ok(Refusal::InUse { blocks, path });
        }
        if unseen > 0 {
            return Ok(Refusal::Mapped { processes: Vec::new(), blocks, unseen, path });
        }
        // They may have been mapped by a process that has ended since, or by one that only read the state of the file.
        if small.iter().any(|block| self.stayed.contains(block)) {
            return Ok(Refusal::InUse { blocks, path });
        }
        Ok(Refusal::StayedSmall { blocks, file_system: self.cache.file_system()?, path })
    }
}

#[cfg(test)]
mod tests;
