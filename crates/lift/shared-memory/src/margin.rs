//! Room below a limit that others need, too.

use std::collections::BTreeMap;

/// Divisor of the largest room: this share stays free.
const STAYS_FREE: u64 = 2;

/// The largest rooms found below limits (of a tmpfs, of a memory cgroup). Half of that room stays free for any number
/// of lifts: the programs that share the limit get errors or SIGBUS if no room is left.
#[derive(Clone, Debug)]
pub struct Margins<K> {
    largest: BTreeMap<K, u64>,
}

impl<K> Default for Margins<K> {
    fn default() -> Self {
        Self { largest: BTreeMap::new() }
    }
}

impl<K: Ord> Margins<K> {
    /// Checks whether `bytes` more fit while `left` are left.
    ///
    /// # Errors
    /// The bytes that stay free, which would be used.
    pub fn check(&mut self, limit: K, left: u64, bytes: u64) -> Result<(), u64> {
        self.check_beside(limit, left, bytes, u64::MAX)
    }

    /// As [`Margins::check`], if it is known that lifts have `added` so many bytes: what the programs have used themselves since
    /// then is no longer room.
    ///
    /// # Errors
    /// As for [`Margins::check`].
    pub fn check_beside(&mut self, limit: K, left: u64, bytes: u64, added: u64) -> Result<(), u64> {
        let largest = self.largest.entry(limit).or_insert(left);
        // The limit was raised, or others need less.
        *largest = left.max(*largest);
        let kept = left.saturating_add(added).min(*largest) / STAYS_FREE;
        if left.saturating_sub(bytes) < kept || bytes > left { Err(kept) } else { Ok(()) }
    }
}
