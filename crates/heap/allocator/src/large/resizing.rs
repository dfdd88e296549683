//! Other sizes for blocks that the program holds, without a copy of their contents.

use super::ends::join_end;
use super::{Block, Large, State, count_held, little};
use crate::ACCOUNT;
use crate::mapped;
use crate::pool::Grain;
use crate::sys::milliseconds;
use core::sync::atomic::Ordering::Relaxed;

impl Large {
    /// # Safety
    /// As for [`Shared::resize`].
    pub unsafe fn resize(&mut self, address: usize, asked: usize) -> Option<usize> {
        let mut block = self.held.get(address)?;
        let State::Held(before) = block.state else { return None };
        let bytes = asked.max(1).checked_next_multiple_of(self.grain)?;
        let in_pool = block.from_pool && self.pool.holds(block.start);
        if bytes != block.bytes {
            // The kernel moves and extends one mapping only.
            join_end(&mut block);
            self.hold(block);
        }
        let resized = if bytes == block.bytes {
            block
        } else if in_pool {
            self.resize_in_pool(block, bytes)?
        } else if block.from_pool {
            return None;
        } else if bytes < block.bytes {
            // SAFETY:
            // - a separate mapping; nobody uses the part beyond the new size, by the caller's promise.
            unsafe { mapped::give_back(block.start + bytes, block.bytes - bytes) };
            Block { bytes, ..block }
        } else {
            // SAFETY:
            // - a separate mapping, which nobody uses, by the caller's promise.
            let start = unsafe { mapped::grow(block.start, block.bytes, bytes, self.grain)? };
            Block { start, bytes, ..block }
        };
        let is_grown = little::is_little(before, self.grain) && bytes > self.grain;
        let resized = if is_grown { little::on_huge_pages(resized) } else { resized };
        count_held(resized.bytes as i64 - block.bytes as i64, asked as i64 - before as i64);
        self.allowance.holds(ACCOUNT.large_held.load(Relaxed) as usize, milliseconds());
        self.release(address);
        self.hold(Block { state: State::Held(asked), ..resized });
        Some(resized.start)
    }

    fn resize_in_pool(&mut self, block: Block, bytes: usize) -> Option<Block> {
        let bytes = bytes.next_multiple_of(self.pool.grain());
        if bytes < block.bytes {
            self.pool.mark(block.start + bytes, block.bytes - bytes, Grain::Returned);
        } else if bytes > block.bytes {
            let (end, more) = (block.start + block.bytes, bytes - block.bytes);
            if !self.pool.is_free(end, more) {
                return None;
            }
            self.pool.mark(end, more, Grain::Used);
        }
        Some(Block { bytes, ..block })
    }
}
