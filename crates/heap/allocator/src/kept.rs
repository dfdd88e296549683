//! The amount of memory that freed large blocks keep, and the time for which they keep it. The usual amount is small. A
//! program that soon asks again for returned memory would pay with page faults and, if it has threads, would interrupt
//! the other CPUs (TLB shootdowns) each time. Such a program may keep more until it has not needed that for a while, up
//! to a bound: together with its blocks that is no more than it has held in that time.

/// Bytes that all kept blocks together may keep: the larger of this and the share `1 / KEPT_SHARE` of the large blocks that
/// the program holds.
const LEAST_KEPT: usize = 32 << 20;
const KEPT_SHARE: usize = 8;
/// Most bytes that are kept beside those.
const MOST_EXTRA: usize = 512 << 20;
/// Quarters of the difference between the memory held at the last peak and now that are kept at most beside those.
const MOST_EXTRA_QUARTERS: usize = 3;
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
    /// Bytes that were given back and not needed again so far, and when that was last.
    given_back: usize,
    given_back_at: u64,
    /// Most bytes that the program has held in this period of [`LONGER_KEPT_MILLISECONDS`], and in the one before.
    peak: usize,
    peak_before: usize,
    /// When this period began, in milliseconds.
    period: u64,
}

impl Allowance {
    pub const fn new() -> Self {
        Self { extra: 0, since: 0, given_back: 0, given_back_at: 0, peak: 0, peak_before: 0, period: 0 }
    }

    /// Notes that the program holds so many bytes in large blocks.
    pub fn holds(&mut self, held: usize, now: u64) {
        let periods = now.saturating_sub(self.period) / LONGER_KEPT_MILLISECONDS;
        if periods > 0 {
            (self.peak_before, self.peak) = (if periods == 1 { self.peak } else { held }, held);
            self.period = now;
        }
        self.peak = self.peak.max(held);
    }

    /// Bytes that a program with `held` bytes in large blocks may keep now. The additional allowance is halved each
    /// time that it has sufficed for long.
    pub fn most(&mut self, held: usize, now: u64) -> usize {
        if self.extra > 0 && now.saturating_sub(self.since) >= LONGER_KEPT_MILLISECONDS {
            (self.extra, self.since) = (if self.extra > LEAST_KEPT { self.extra / 2 } else { 0 }, now);
        }
        self.holds(held, now);
        let held_before = self.peak.max(self.peak_before) - held;
        LEAST_KEPT.max(held / KEPT_SHARE) + self.extra.min(held_before / 4 * MOST_EXTRA_QUARTERS)
    }

    /// Milliseconds after which unused memory is given back even if it is little.
    pub fn longest(&self) -> u64 {
        if self.extra > 0 { LONGER_KEPT_MILLISECONDS } else { KEPT_MILLISECONDS }
    }

    /// Notes that memory of blocks was given back although it was not old.
    pub fn gave_back(&mut self, bytes: usize, now: u64) {
        self.forget_old_returns(now);
        (self.given_back, self.given_back_at) = (self.given_back + bytes, now);
    }

    /// Notes that a block has new memory from the kernel. So much was given back in vain.
    pub fn needs(&mut self, bytes: usize, now: u64) {
        self.forget_old_returns(now);
        let in_vain = bytes.min(self.given_back);
        if in_vain > 0 {
            self.given_back -= in_vain;
            (self.extra, self.since) = ((self.extra + in_vain).min(MOST_EXTRA), now);
        }
    }

    fn forget_old_returns(&mut self, now: u64) {
        if now.saturating_sub(self.given_back_at) >= IN_VAIN_MILLISECONDS {
            self.given_back = 0;
        }
    }
}
