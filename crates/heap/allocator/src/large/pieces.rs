//! Pieces of kept mappings: a request takes a piece of a longer mapping, and adjacent pieces are joined when they are
//! freed. Otherwise a program whose blocks have ever-changing sizes would rarely find a mapping that fits.

use super::ends::join_end;
use super::{Block, Large, Memory, State};

/// Largest mapping that is joined from others, in bytes.
const MOST_JOINED: usize = 512 << 20;
/// Longest time in milliseconds between the frees of mappings that are joined: memory that is used again and again would
/// keep its neighbours.
const JOINED_WITHIN: u64 = 500;

impl Large {
    /// The position of the kept mapping that fits best. One without memory is taken only if it fits closely: a new one
    /// costs little more.
    pub fn fitting(&self, bytes: usize, align: usize) -> Option<usize> {
        let candidates = self.kept.as_slice().iter().enumerate().filter_map(|(at, block)| {
            let State::Kept { memory, .. } = block.state else { return None };
            let has_memory = memory == Memory::Used;
            let fits = block.bytes >= bytes && block.start.is_multiple_of(align) && !memory.is_leaving();
            let fits = fits && (has_memory || block.bytes - bytes <= bytes / 4);
            fits.then_some((!has_memory, block.bytes, at))
        });
        candidates.min().map(|(_, _, at)| at)
    }

    /// Splits a kept mapping so that the piece at `at` has so many bytes; the rest follows. Not split if there is no room
    /// in the table.
    pub fn split_kept(&mut self, at: usize, bytes: usize) {
        if self.kept.as_slice()[at].bytes <= bytes || !self.kept.make_room() {
            return;
        }
        let block = &mut self.kept.as_mut_slice()[at];
        join_end(block);
        let rest = Block { start: block.start + bytes, bytes: block.bytes - bytes, ..*block };
        block.bytes = bytes;
        self.kept.insert(at + 1, rest);
    }

    /// Joins a kept mapping with its neighbours.
    pub fn join_kept(&mut self, at: usize) {
        if at + 1 < self.kept.as_slice().len() {
            self.join_two(at);
        }
        if at > 0 {
            self.join_two(at - 1);
        }
    }

    fn join_two(&mut self, at: usize) {
        let [first, second] = [at, at + 1].map(|at| self.kept.as_slice()[at]);
        let (State::Kept { since: earlier, memory }, State::Kept { since: later, memory: other }) =
            (first.state, second.state)
        else {
            return;
        };
        let bytes = first.bytes + second.bytes;
        let is_adjacent = first.start + first.bytes == second.start && first.density == second.density;
        if memory != other
            || memory.is_leaving()
            || !is_adjacent
            || earlier.abs_diff(later) > JOINED_WITHIN
            || bytes > MOST_JOINED
        {
            return;
        }
        let blocks = self.kept.as_mut_slice();
        join_end(&mut blocks[at]);
        join_end(&mut blocks[at + 1]);
        blocks[at].bytes = bytes;
        blocks[at].state = State::Kept { since: earlier.min(later), memory };
        self.kept.remove(at + 1);
    }
}
