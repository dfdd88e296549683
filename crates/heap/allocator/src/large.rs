//! Large blocks, each on its own grains: from the pool until it is used up, then from mappings.
//!
//! A freed mapping is kept for the next block. If a zeroed block is requested, the heap checks whether the mapping was
//! touched. If it was not, its memory is returned to the kernel, by one call for any size, which interrupts no other
//! CPU. If it was, the memory is cleared in place. If only a few places were touched, it gets ordinary pages
//! (`cleaning`). If a limit counts address space (`limits`), no mapping is kept without memory.

mod departure;
mod ends;
mod little;
mod pieces;
mod resizing;

use crate::by_address::ByAddress;
use crate::cleaning::{Density, clean, is_dense_in_pool};
use crate::kept::Allowance;
use crate::limits::{are_mappings_short, may_be_mapped};
use crate::pool::{Grain, Pool, is_free, is_fresh, is_returned};
use crate::sys::{Lock, Table, advise, base_page, clear, copy, make_as_new, milliseconds};
use crate::{ACCOUNT, forget, mapped, near_limit, turn};
use core::cell::UnsafeCell;
use core::sync::atomic::Ordering::Relaxed;
use ends::{cut_end, join_end};

/// Largest freed mapping that keeps its memory, in bytes; larger ones give it back at once (`departure`).
const KEPT_WITH_MEMORY: usize = 128 << 20;
/// Least size from which the C library always unmaps a freed block (mallopt(3), `DEFAULT_MMAP_THRESHOLD_MAX`): what a program
/// has set for its pages, as with mprotect(2), is gone with it.
const ALWAYS_NEW: usize = 32 << 20;
/// Highest number of kept mappings, and the least limit of their address space in bytes.
const MOST_KEPT: usize = 128;
const MOST_KEPT_SPACE: usize = 4 << 30;

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// The program holds it; the number of bytes that it requested.
    Held(usize),
    /// Free since this time in milliseconds.
    Kept { since: u64, memory: Memory },
}

/// The contents of a kept mapping.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Memory {
    /// The data that the program has left.
    Used,
    /// Nothing: it was given back.
    Clean,
    /// The thread with this thread pointer gives it back at present, without the lock.
    Leaving(usize),
}

/// The result of a free.
enum Freed {
    Done,
    /// The calling thread gives its memory back.
    Leaving(Block),
    /// It is no large block.
    Unknown,
}

#[derive(Clone, Copy)]
struct Block {
    start: usize,
    bytes: usize,
    state: State,
    from_pool: bool,
    density: Density,
    /// Its last huge page is on ordinary pages.
    is_cut: bool,
}

impl Memory {
    fn is_leaving(self) -> bool {
        matches!(self, Self::Leaving(_))
    }
}

impl Block {
    fn is_leaving(&self) -> bool {
        matches!(self.state, State::Kept { memory, .. } if memory.is_leaving())
    }

    /// Bytes that the program may use of a block that it holds.
    fn usable(&self) -> usize {
        let State::Held(asked) = self.state else { return self.bytes };
        asked.max(1).next_multiple_of(base_page()).min(self.bytes)
    }
}

/// Everything that the lock guards.
pub struct Large {
    pub pool: Pool,
    /// Blocks that the program holds.
    held: ByAddress<Block>,
    /// Number of held blocks that are cut.
    held_cut: usize,
    /// Free mappings, sorted by address: hardly more than [`MOST_KEPT`].
    kept: Table<Block>,
    kept_with_memory: usize,
    allowance: Allowance,
    /// Bytes of the block that was kept last.
    kept_last: usize,
    kept_space: usize,
    grain: usize,
    /// A limit counts address space, with memory or without.
    space_is_limited: bool,
}

/// The large blocks and the pool, with their lock.
pub struct Shared {
    pub lock: Lock,
    large: UnsafeCell<Large>,
}

// SAFETY:
// - `large` is only reached through `with` and `while_locked`, under the lock.
unsafe impl Sync for Shared {}

impl Shared {
    pub const fn new() -> Self {
        let large = Large {
            pool: Pool::new(),
            held: ByAddress::new(),
            held_cut: 0,
            kept: Table::new(),
            kept_with_memory: 0,
            allowance: Allowance::new(),
            kept_last: 0,
            kept_space: 0,
            grain: 0,
            space_is_limited: false,
        };
        Self { lock: Lock::new(), large: UnsafeCell::new(large) }
    }

    /// Runs `work` under the lock.
    ///
    /// # Safety
    /// `work` calls neither this function nor [`Shared::while_locked`].
    pub unsafe fn with<R>(&self, work: impl FnOnce(&mut Large) -> R) -> R {
        let is_new = self.lock.lock_unless(turn::holds_shared);
        // SAFETY:
        // - this thread holds the lock, and `work` does not call this function again, by the caller's promise.
        // - if it already held the lock, it is in a handler of the program's around a fork, outside of any `work`.
        let result = work(unsafe { &mut *self.large.get() });
        if is_new {
            // SAFETY:
            // - this thread has locked it above.
            unsafe { self.lock.unlock() };
        }
        result
    }

    /// Runs `work` for a thread that holds the lock already, at a fork.
    ///
    /// # Safety
    /// This thread has locked `lock`, not by [`Shared::with`], and `work` calls neither of these functions.
    pub unsafe fn while_locked<R>(&self, work: impl FnOnce(&mut Large) -> R) -> R {
        // SAFETY:
        // - the caller's promise: nobody else has a reference.
        work(unsafe { &mut *self.large.get() })
    }
}

/// The work on a block, outside the lock, before the program gets it.
enum Cleaning {
    Nothing,
    /// Its memory may hold anything.
    Clear,
    /// It is a kept mapping; which of its pages were touched only the kernel knows.
    FindOut,
}

impl Shared {
    /// Allocates a block of at least `asked` bytes and returns its address.
    pub fn allocate(&self, asked: usize, align: usize, zero: bool) -> Option<usize> {
        // SAFETY:
        // - `work` only acts on its argument.
        let (block, cleaning) = unsafe { self.with(|large| large.allocate(asked, align, zero)) }?;
        match cleaning {
            Cleaning::Nothing => {}
            // SAFETY:
            // - a block of the pool that is about to be handed out: nobody holds it yet.
            Cleaning::Clear => unsafe { clear(block.start, block.bytes) },
            Cleaning::FindOut => {
                // SAFETY:
                // - a kept mapping that is about to be handed out: nobody holds it yet.
                let density = unsafe { clean(block.start, block.bytes, block.density) };
                if density != block.density {
                    // SAFETY:
                    // - `work` only acts on its argument.
                    unsafe { self.with(|large| large.set_density(block.start, density)) };
                }
            }
        }
        near_limit::grew();
        Some(block.start)
    }

    /// Frees a block; false if the address is not a large block's.
    ///
    /// # Safety
    /// If it is, nobody uses the block any more.
    pub unsafe fn free(&self, address: usize) -> bool {
        // SAFETY:
        // - `work` only acts on what it is given.
        // - the caller's promise.
        match unsafe { self.with(|large| large.free(address)) } {
            Freed::Done => true,
            Freed::Unknown => false,
            Freed::Leaving(block) => {
                // SAFETY:
                // - this thread has just freed it.
                unsafe { self.give_back(block) };
                true
            }
        }
    }

    /// Usable bytes of a block; `None` if the address is not a large block's. The rest of its last huge page may lose its
    /// contents.
    pub fn usable(&self, address: usize) -> Option<usize> {
        // SAFETY:
        // - `work` only acts on its argument.
        unsafe { self.with(|large| large.held.get(address).map(|block| block.usable())) }
    }

    /// Resizes a block without copying it and returns its new address; `None` if that is not possible.
    ///
    /// # Safety
    /// If this is the address of a large block, nobody uses the block during this call; afterwards nobody uses the part
    /// beyond the new size, nor the old address if another one is returned.
    pub unsafe fn resize(&self, address: usize, asked: usize) -> Option<usize> {
        // SAFETY:
        // - `work` only acts on what it is given.
        // - the caller's promise.
        let resized = unsafe { self.with(|large| large.resize(address, asked)) };
        near_limit::grew();
        resized
    }

    /// Copies a block into a new one of another size, frees it, and returns the new address.
    ///
    /// # Safety
    /// If this is the address of a large block, nobody uses the block during this call, nor afterwards if an address is
    /// returned.
    pub unsafe fn move_to_new(&self, address: usize, asked: usize) -> Option<usize> {
        let old = self.usable(address)?;
        let new = self.allocate(asked, base_page(), false)?;
        // SAFETY:
        // - the old block is not in use, by the caller's promise, and the new one nobody's yet; both have this many
        //   bytes.
        unsafe {
            copy(address, new, old.min(asked));
            self.free(address);
        }
        Some(new)
    }
}

impl Large {
    /// The unit of large blocks, in bytes.
    pub fn grain(&self) -> usize {
        self.grain
    }

    pub fn set_up(&mut self, grain: usize, space_is_limited: bool) {
        (self.grain, self.space_is_limited) = (grain, space_is_limited);
    }

    /// Lists a block that the program holds, in place of the one with this address if there is one.
    fn hold(&mut self, block: Block) {
        if let Some(before) = self.held.set(block.start, block) {
            self.count_no_more(before);
        }
        self.held_cut += usize::from(block.is_cut);
        near_limit::UNTOUCHED.fetch_add(little::untouched(&block, self.grain), Relaxed);
    }

    /// Removes a block that the program holds from the list.
    fn release(&mut self, address: usize) {
        if let Some(block) = self.held.remove(address) {
            self.count_no_more(block);
        }
    }

    fn count_no_more(&mut self, block: Block) {
        self.held_cut -= usize::from(block.is_cut);
        near_limit::UNTOUCHED.fetch_sub(little::untouched(&block, self.grain), Relaxed);
    }

    fn allocate(&mut self, asked: usize, align: usize, zero: bool) -> Option<(Block, Cleaning)> {
        let bytes = asked.max(1).checked_next_multiple_of(self.grain)?;
        self.give_back_the_old();
        if !self.held.make_room() {
            self.drop_all_kept();
            if !self.held.make_room() {
                return None;
            }
        }
        let is_little = little::is_little(asked, self.grain);
        let from_pool = if is_little { None } else { self.take_from_pool(bytes, align, zero) };
        let found = from_pool.or_else(|| self.take_kept(bytes, align, zero));
        let was_kept = found.is_some();
        let (mut block, cleaning) = match found {
            Some(found) => found,
            None => {
                self.allowance.needs(bytes, milliseconds());
                (self.take_from_kernel(bytes, align)?, Cleaning::Nothing)
            }
        };
        block.state = State::Held(asked);
        if is_little {
            little::put_on_ordinary_pages(&mut block, was_kept);
        } else if near_limit::is_near() && self.left_to_cut() > 0 {
            cut_end(&mut block, self.grain);
        }
        self.hold(block);
        count_held(block.bytes as i64, asked as i64);
        self.allowance.holds(ACCOUNT.large_held.load(Relaxed) as usize, milliseconds());
        Some((block, cleaning))
    }

    fn take_from_pool(&mut self, bytes: usize, align: usize, zero: bool) -> Option<(Block, Cleaning)> {
        if self.pool.is_empty() || align > self.pool.grain() {
            return None;
        }
        let node = crate::current_node();
        let find = |usable| self.pool.find(bytes, node, false, usable);
        let (start, cleaning) = if !zero {
            (find(is_returned).or_else(|| find(is_free))?, Cleaning::Nothing)
        } else if let Some(start) = find(is_fresh) {
            (start, Cleaning::Nothing)
        } else {
            // Pool memory is always resident, so only its contents show whether it was touched. If it seems untouched,
            // untouched memory from the kernel costs less than clearing all of this. SAFETY:
            // - free grains of the pool, which is resident as long as it exists.
            let start = find(is_free).filter(|&start| unsafe { is_dense_in_pool(start, bytes) })?;
            (start, Cleaning::Clear)
        };
        self.pool.mark(start, bytes, Grain::Used);
        let bytes = bytes.next_multiple_of(self.pool.grain());
        let state = State::Held(0);
        let block = Block { start, bytes, state, from_pool: true, density: Density::Unknown, is_cut: false };
        Some((block, cleaning))
    }

    /// The kept mapping that fits best: one that holds memory if possible. The rest of a longer one stays.
    fn take_kept(&mut self, bytes: usize, align: usize, zero: bool) -> Option<(Block, Cleaning)> {
        let at = self.fitting(bytes, align)?;
        self.split_kept(at, bytes);
        let mut block = self.remove_kept(at);
        let State::Kept { memory, .. } = block.state else { return None };
        if !zero {
            // SAFETY:
            // - a kept mapping, which nobody holds.
            block.density = unsafe { block.density.for_any_use(block.start, block.bytes) };
        }
        join_end(&mut block);
        if memory == Memory::Clean {
            self.allowance.needs(block.bytes, milliseconds());
        }
        Some((block, if zero && memory == Memory::Used { Cleaning::FindOut } else { Cleaning::Nothing }))
    }

    fn set_density(&mut self, address: usize, density: Density) {
        if let Some(block) = self.held.get(address) {
            // Advice for the whole block has replaced that for its end.
            self.hold(Block { is_cut: block.is_cut && density == block.density, density, ..block });
        }
    }

    fn take_from_kernel(&mut self, bytes: usize, align: usize) -> Option<Block> {
        let align = align.max(self.grain);
        let start = mapped::map(bytes, align).or_else(|| {
            // Kept blocks are dropped only if that may help. Free memory of arenas may be unmapped later.
            let most_unmapped = self.kept_space + ACCOUNT.arenas.load(Relaxed) as usize;
            let may_help = || may_be_mapped(bytes, most_unmapped) || are_mappings_short();
            if bytes > self.kept_space && !may_help() {
                return None;
            }
            self.drop_all_kept();
            mapped::map(bytes, align)
        })?;
        let state = State::Held(0);
        Some(Block { start, bytes, state, from_pool: false, density: Density::Unknown, is_cut: false })
    }

    /// # Safety
    /// As for [`Shared::free`].
    unsafe fn free(&mut self, address: usize) -> Freed {
        let Some(block) = self.held.get(address) else { return Freed::Unknown };
        let State::Held(asked) = block.state else { return Freed::Unknown };
        self.release(address);
        count_held(-(block.bytes as i64), -(asked as i64));
        if block.from_pool && self.pool.holds(block.start) {
            self.pool.mark(block.start, block.bytes, Grain::Returned);
            return Freed::Done;
        }
        // Memory that left the pool at a fork may consist of several mappings.
        let is_unmapped = block.from_pool || !self.kept.make_room();
        // With the lock, for which a fork waits: the child must not list what it lacks (MADV_DONTFORK), or cannot write to.
        // SAFETY:
        // - a separate mapping, which nobody uses, by the caller's promise.
        if is_unmapped || block.bytes >= ALWAYS_NEW && !unsafe { make_as_new(block.start, block.bytes) } {
            // SAFETY:
            // - nobody uses the block, by the caller's promise, and it is removed from the list.
            unsafe { mapped::give_back(block.start, block.bytes) };
            return Freed::Done;
        }
        if block.bytes > KEPT_WITH_MEMORY {
            return Freed::Leaving(self.begin_departure(block));
        }
        let at = self.keep(Block { state: State::Kept { since: milliseconds(), memory: Memory::Used }, ..block });
        self.was_kept(at);
        Freed::Done
    }

    /// Lists a free mapping, for which there is room, and returns its position.
    fn keep(&mut self, block: Block) -> usize {
        let at = self.kept.as_slice().partition_point(|other| other.start < block.start);
        self.kept.insert(at, block);
        self.kept_last = block.bytes;
        self.kept_space += block.bytes;
        if let State::Kept { memory: Memory::Used, .. } = block.state {
            self.holds_memory(block.bytes);
        }
        at
    }

    /// Counts the memory of a kept block.
    fn holds_memory(&mut self, bytes: usize) {
        self.kept_with_memory += bytes;
        forget(ACCOUNT.large_kept.fetch_add(bytes as u64, Relaxed));
    }

    /// Joins a kept block with its neighbours, and reduces what is kept to the usual amount.
    fn was_kept(&mut self, at: usize) {
        self.join_kept(at);
        self.give_back_the_old();
        let space = MOST_KEPT_SPACE.max(ACCOUNT.large_held.load(Relaxed) as usize);
        self.drop_kept(MOST_KEPT, space);
    }

    fn no_longer_kept(&mut self, bytes: usize, memory: Memory) {
        self.kept_space -= bytes;
        if memory == Memory::Used {
            self.kept_with_memory -= bytes;
            forget(ACCOUNT.large_kept.fetch_sub(bytes as u64, Relaxed));
        }
    }

    /// Gives back the memory, but not the addresses, of blocks that were kept for long, and of the oldest ones while too
    /// much is kept.
    pub fn give_back_the_old(&mut self) {
        if self.kept_with_memory == 0 {
            return;
        }
        let now = milliseconds();
        let most = self.allowance.most(ACCOUNT.large_held.load(Relaxed) as usize, now);
        while let Some((at, since)) = self.oldest(|memory| memory == Memory::Used) {
            // The block that was freed last is kept whatever its size: the next request is often for the same size.
            let bytes = self.kept.as_slice()[at].bytes;
            let alone = self.kept_with_memory == bytes && bytes <= self.kept_last;
            let is_new = now.saturating_sub(since) < self.allowance.longest();
            if is_new && (self.kept_with_memory <= most || alone) {
                return;
            }
            let excess = (self.kept_with_memory.saturating_sub(most)).next_multiple_of(self.grain);
            if is_new && excess < bytes {
                self.split_kept(at, excess);
            }
            let block = self.kept.as_slice()[at];
            if !self.space_is_limited && self.return_memory(at) {
                if is_new {
                    self.allowance.gave_back(block.bytes, now);
                }
            } else {
                // Nor is locked memory (mlock) given back that way.
                self.unmap_kept(at);
            }
        }
    }

    /// The kept block with `wanted` memory that has been free for the longest time.
    fn oldest(&self, wanted: fn(Memory) -> bool) -> Option<(usize, u64)> {
        let kept = self.kept.as_slice().iter().enumerate().filter_map(|(at, block)| match block.state {
            State::Kept { since, memory } if wanted(memory) => Some((at, since)),
            _ => None,
        });
        kept.min_by_key(|&(_, since)| since)
    }

    /// Unmaps kept blocks, oldest first, until at most `most` blocks and `most_space` bytes are left.
    fn drop_kept(&mut self, most: usize, most_space: usize) {
        while self.kept.as_slice().len() > most || self.kept_space > most_space {
            let Some((at, _)) = self.oldest(|memory| !memory.is_leaving()) else { return };
            self.unmap_kept(at);
        }
    }

    /// Unmaps all kept blocks. If a mapping fails under a limit, their address space may be the missing part.
    ///
    /// The kernel joins adjacent mappings, and cannot split one if the process has as many as it may have. So adjacent
    /// blocks are unmapped together.
    pub fn drop_all_kept(&mut self) {
        let mut at = 0;
        while at < self.kept.as_slice().len() {
            let (count, bytes) = self.kept_in_a_row(at);
            if count == 0 {
                at += 1;
                continue;
            }
            // SAFETY:
            // - adjacent kept mappings, which nobody holds; they leave the list, or stay kept.
            if unsafe { mapped::give_back_addresses(self.kept.as_slice()[at].start, bytes) } {
                for _ in 0..count {
                    self.remove_kept(at);
                }
            } else {
                for kept in at..at + count {
                    self.return_memory(kept);
                }
                at += count;
            }
        }
    }

    /// The number of adjacent kept blocks from this position on, and their bytes; none that is leaving.
    fn kept_in_a_row(&self, at: usize) -> (usize, usize) {
        let blocks = &self.kept.as_slice()[at..];
        let start = blocks[0].start;
        let (mut count, mut bytes) = (0, 0);
        for block in blocks {
            if block.start != start + bytes || block.is_leaving() {
                break;
            }
            (count, bytes) = (count + 1, bytes + block.bytes);
        }
        (count, bytes)
    }

    /// Returns the memory of a kept block, but not its addresses; false if the kernel refuses, or if it has none.
    fn return_memory(&mut self, at: usize) -> bool {
        let block = self.kept.as_slice()[at];
        let State::Kept { since, memory: Memory::Used } = block.state else { return false };
        // SAFETY:
        // - a kept mapping, which nobody holds.
        let is_returned = unsafe { advise(block.start, block.bytes, libc::MADV_DONTNEED) };
        if is_returned {
            self.kept_with_memory -= block.bytes;
            forget(ACCOUNT.large_kept.fetch_sub(block.bytes as u64, Relaxed));
            self.kept.as_mut_slice()[at].state = State::Kept { since, memory: Memory::Clean };
        }
        is_returned
    }

    /// Number of blocks that the program holds.
    pub fn count_held(&self) -> usize {
        self.held.count()
    }

    /// Returns the memory of all kept blocks to the kernel; false if they had none.
    pub fn trim(&mut self) -> bool {
        let had_memory = self.kept_with_memory > 0;
        self.drop_all_kept();
        had_memory
    }

    /// Removes a kept block from the list.
    fn remove_kept(&mut self, at: usize) -> Block {
        let block = self.kept.remove(at);
        if let State::Kept { memory, .. } = block.state {
            self.no_longer_kept(block.bytes, memory);
        }
        block
    }

    fn unmap_kept(&mut self, at: usize) {
        let block = self.remove_kept(at);
        // SAFETY:
        // - a kept mapping, which nobody holds, and which is not listed any more.
        unsafe { mapped::give_back(block.start, block.bytes) };
    }
}

fn count_held(bytes: i64, asked: i64) {
    forget(ACCOUNT.large_held.fetch_add(bytes as u64, Relaxed));
    forget(ACCOUNT.large_asked.fetch_add(asked as u64, Relaxed));
}
