//! How much memory freed large blocks keep, and for how long. By itself that is little. A program that soon asks again for
//! what was given back would pay for it with page faults and, if it has threads, interrupt the other CPUs (TLB shootdowns)
//! each time: it is allowed more, up to a bound, until it has not needed that for a while.

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
/// Memory that is asked for again within this time was given back in vain.
const IN_VAIN_MILLISECONDS: u64 = 1000;

/// What freed large blocks may keep.
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

    /// Bytes that may be kept now by a program that holds so many in large blocks. What is allowed beside the usual becomes
    /// half as much each time that it was enough for long.
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
