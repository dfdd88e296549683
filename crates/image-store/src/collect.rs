//! Removes images that nobody can find any more and nobody uses.

use crate::{Image, SourceState, Store, StoreError, Users};

/// What a collection removed, or would remove.
#[derive(Debug, Default)]
pub struct Collected {
    /// Images whose source is no longer what it was, and that nobody maps.
    pub images: Vec<Image>,
    /// Bytes of memory that they took.
    pub bytes: u64,
    /// Other things in the store that were no images: left over, damaged or strange.
    pub debris: u64,
    /// Images whose source is no longer what it was, but that some process still maps.
    pub in_use: u64,
}

impl Store {
    /// Removes every image whose source was changed or has vanished and that no process maps, and whatever in the store
    /// is no image. With `dry_run` it only tells which images these are.
    ///
    /// # Errors
    /// [`StoreError::NotPermitted`] or [`StoreError::Io`].
    pub fn collect(&self, dry_run: bool) -> Result<Collected, StoreError> {
        let users = Users::read()?;
        let mut collected = Collected::default();
        for image in self.list()?.images {
            if matches!(image.source_state(), SourceState::Same | SourceState::Unknown) {
                continue;
            }
            // A process that may not be looked at could map it; root sees all but those of no account.
            if !users.of(&image).is_empty() {
                collected.in_use += 1;
                continue;
            }
            if !dry_run {
                self.remove(&image)?;
            }
            collected.bytes += image.memory()?;
            collected.images.push(image);
        }
        if !dry_run {
            collected.debris = self.remove_debris()?;
        }
        Ok(collected)
    }
}
