//! The amount of memory that freed large blocks keep, and the time for which they keep it. The usual amount is small. A
//! program that soon asks again for returned memory would pay with page faults and, if it has threads, would interrupt
//! the other CPUs (TLB shootdowns) each time. Such a program may keep more, up to a bound, until it has not needed that
//! for a while.

/// Bytes that all kept blocks together may keep: the larger of this and the share `1 / KEPT_SHARE` of the large blocks that
/// the program holds.
const LEAST_KEPT: usize = 32 << 20;
const KEPT_SHARE: usize = 8;
/// Most bytes that are kept beside those.
const MOST_EXTRA: usize = 512 << 20;
/// Age in milliseconds from which unused kept memory is given back, by the next call that concerns a large block.
const KEPT_MILLISECONDS: u64 = 1000;
/// Like [`KEPT_MILLISECONDS`], for a program that is allowed more; as long as mimalloc keeps free pages of small blocks.
const LONGER_KEPT_MILLISECONDS: u64 = 10_000;
/// If memory is requested again within this time, returning it was in vain.
const IN_VAIN_MILLISECONDS: u64 = 1000;

/// The memory that freed large blocks may keep.
pub struct Allowance {
    /// Bytes that the program may keep beside the usual.
    extra: usize,
    /// When that was changed last, in milliseconds.
    since: u64,
}

impl Allowance {
    pub const fn new() -> Self {
        Self { extra: 0, since: 0 }
    }

    /// Bytes that a program with `held` bytes in large blocks may keep now. The additional allowance is halved each
    /// time that it has sufficed for long.
    pub fn most(&mut self, held: usize, now: u64) -> usize {
        if self.extra > 0 && now.saturating_sub(self.since) >= LONGER_KEPT_MILLISECONDS {
            (self.extra, self.since) = (if self.extra > LEAST_KEPT { self.extra / 2 } else { 0 }, now);
        }
        LEAST_KEPT.max(held / KEPT_SHARE) + self.extra
    }

    /// Milliseconds after which unused memory is given back even if it is little.
    pub fn longest(&self) -> u64 {
        if self.extra > 0 { LONGER_KEPT_MILLISECONDS } else { KEPT_MILLISECONDS }
    }

    /// Notes that a block whose memory was given back at `given_back` is used again.
    pub fn used_again(&mut self, bytes: usize, given_back: u64, now: u64) {
        if now.saturating_sub(given_back) < IN_VAIN_MILLISECONDS {
            (self.extra, self.since) = ((self.extra + bytes).min(MOST_EXTRA), now);
        }
    }
}
