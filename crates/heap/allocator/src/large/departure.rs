//! Blocks whose memory is given back as soon as they are freed. The kernel needs milliseconds for a gigabyte of ordinary
//! pages, and other threads need the lock: the freeing thread gives the memory back without it. Meanwhile the block is in
//! the list of kept mappings, so that the child of a fork does not lose it, but nobody takes, joins or unmaps it.

use super::{Block, Large, Memory, Shared, State};
use crate::cleaning::{Density, give_back_at_once};
use crate::locks::this_thread;
use crate::sys::milliseconds;

impl Shared {
    /// Gives back the memory of a block.
    ///
    /// # Safety
    /// The calling thread has begun its departure.
    pub(super) unsafe fn give_back(&self, block: Block) {
        // SAFETY:
        // - a separate mapping, which nobody else uses: it is leaving with this thread.
        let given_back = unsafe { give_back_at_once(block.start, block.bytes, block.density) };
        let end = |large: &mut Large| {
            large.end_departure(block, given_back.is_some(), given_back.unwrap_or(block.density));
        };
        // SAFETY:
        // - `end` only acts on its argument.
        unsafe { self.with(end) };
    }
}

impl Large {
    /// Lists a free block, for which there is room, as leaving with the calling thread.
    pub(super) fn begin_departure(&mut self, block: Block) -> Block {
        let state = State::Kept { since: milliseconds(), memory: Memory::Leaving(this_thread()) };
        let block = Block { state, ..block };
        self.keep(block);
        block
    }

    /// Ends the departure of a block, which has its memory still if the kernel has refused to take it. If address space
    /// counts, the block is unmapped.
    fn end_departure(&mut self, block: Block, is_given_back: bool, density: Density) {
        if self.space_is_limited {
            return self.unmap_leaving(block);
        }
        let Some(at) = self.leaving(block) else { return };
        let memory = if is_given_back { Memory::Clean } else { Memory::Used };
        let State::Kept { since, .. } = block.state else { return };
        let kept = &mut self.kept.as_mut_slice()[at];
        (kept.density, kept.state) = (density, State::Kept { since, memory });
        if memory == Memory::Used {
            self.holds_memory(block.bytes);
        }
        self.was_kept(at);
    }

    fn unmap_leaving(&mut self, block: Block) {
        if let Some(at) = self.leaving(block) {
            self.unmap_kept(at);
        }
    }

    /// The position of a block that is leaving.
    fn leaving(&self, block: Block) -> Option<usize> {
        self.kept.as_slice().iter().position(|kept| kept.start == block.start && kept.is_leaving())
    }

    /// Unmaps what other threads were giving back, in the child of a fork, which has one thread. The child would keep it for
    /// long: the parent has returned its own memory.
    pub fn forget_other_threads(&mut self) {
        let own = this_thread();
        let is_others =
            |block: &Block| matches!(block.state, State::Kept { memory: Memory::Leaving(thread), .. } if thread != own);
        while let Some(at) = self.kept.as_slice().iter().position(is_others) {
            self.unmap_kept(at);
        }
    }
}
