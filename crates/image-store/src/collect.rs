//! Removes images that nobody can find any more or that nobody has used for long, and takes back what shows too much.

use crate::{Image, SourceState, Store, StoreError, Users};
use std::time::Duration;

/// What to collect.
#[derive(Clone, Copy, Debug, Default)]
pub struct Collection {
    /// Only tell what it is.
    pub dry_run: bool,
    /// Images that nobody has used for so long go, too; `None` keeps them.
    pub unused_for: Option<Duration>,
}

/// What a collection removed, or would remove.
#[derive(Debug, Default)]
pub struct Collected {
    /// Images that nobody maps, and whose source is no longer what it was, or that nobody has used for long.
    pub images: Vec<Image>,
    /// Bytes of memory that they took.
    pub bytes: u64,
    /// Other things in the store that were no images: left over, damaged or strange.
    pub debris: u64,
    /// Images whose source is no longer what it was, but that some process still maps.
    pub in_use: u64,
    /// Images that were everybody's and are root's now, since not everybody can read their source.
    pub withdrawn: u64,
}

impl Store {
    /// Removes every image that no process maps and whose source was changed or has vanished, or that nobody has used for
    /// the given time, and whatever in the store is no image. What stays and shows others more than its source does is
    /// root's alone from then on. With `dry_run` it only tells what it would do.
    ///
    /// # Errors
    /// [`StoreError::NotPermitted`] or [`StoreError::Io`].
    pub fn collect(&self, collection: Collection) -> Result<Collected, StoreError> {
        let users = Users::read()?;
        let mut collected = Collected::default();
        for mut image in self.list()?.images {
            let is_old = matches!(image.source_state(), SourceState::Changed | SourceState::Gone);
            // A process that may not be looked at could map it; root sees all but those of no account.
            let is_used = !users.of(&image).is_empty();
            let goes = is_old || collection.unused_for.is_some_and(|time| image.was_unused_for(time));
            if goes && !is_used {
                collected.bytes += image.memory()?;
                if !collection.dry_run {
                    self.remove(&image)?;
                }
                collected.images.push(image);
                continue;
            }
            collected.in_use += u64::from(is_old);
            collected.withdrawn += u64::from(match collection.dry_run {
                true => image.shows_too_much(),
                false => self.review(&mut image)?,
            });
        }
        if !collection.dry_run {
            collected.debris = self.remove_debris()?;
        }
        Ok(collected)
    }
}
