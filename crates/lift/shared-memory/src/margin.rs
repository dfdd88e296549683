//! Room below a limit that others need, too.

use std::collections::BTreeMap;

/// One part in so many of the room that was found first stays free.
const STAYS_FREE: u64 = 2;

/// The rooms below limits (of a tmpfs, of a memory cgroup), as they were at the first look. Half of the first room stays free,
/// however often a lift asks: the programs that share the limit get errors or SIGBUS when nothing is left.
#[derive(Clone, Debug)]
pub struct Margins<K> {
    first: BTreeMap<K, u64>,
}

impl<K> Default for Margins<K> {
    fn default() -> Self {
        Self { first: BTreeMap::new() }
    }
}

impl<K: Ord> Margins<K> {
    /// Checks whether `bytes` more fit while `left` are left.
    ///
    /// # Errors
    /// The bytes that stay free, which would be used.
    pub fn check(&mut self, limit: K, left: u64, bytes: u64) -> Result<(), u64> {
        let kept = *self.first.entry(limit).or_insert(left) / STAYS_FREE;
        if left.saturating_sub(bytes) < kept || bytes > left { Err(kept) } else { Ok(()) }
    }
}
