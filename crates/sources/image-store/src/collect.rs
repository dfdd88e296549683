//! Removes images that are out of date or unused, and restricts images whose source not everybody can read.

use crate::{Image, SourceState, Store, StoreError, Users};
use process_view::Unanswered;
use std::time::Duration;

/// Options of a collection.
#[derive(Clone, Copy, Debug, Default)]
pub struct Collection {
    /// Report what would be removed, and remove nothing.
    pub dry_run: bool,
    /// Also remove images unused for at least this time; `None` keeps them.
    pub unused_for: Option<Duration>,
    /// Also remove images that no process maps, the longest unused first, until the others take at most these bytes.
    pub most_bytes: Option<u64>,
}

/// Result of a collection, or of a dry run.
#[derive(Debug, Default)]
pub struct Collected {
    /// Images that no process maps, and whose source has changed or that have not been used for the given time.
    pub images: Vec<Image>,
    /// Bytes of memory that these occupied.
    pub bytes: u64,
    /// Number of other things removed: damaged images, and folders of images that were never finished.
    pub debris: u64,
    /// Images whose source has changed, but that some process still maps.
    pub in_use: u64,
    /// Images that were readable by everybody and are now restricted to root, since not everybody can read their
    /// source.
    pub withdrawn: u64,
    /// Processes that do not answer.
    pub unanswered: Vec<Unanswered>,
    /// Number of images that were unused for the given time and are kept because a process that does not answer may map
    /// them.
    pub may_be_in_use: u64,
    /// Bytes that the kept images take.
    pub kept_bytes: u64,
}

impl Store {
    /// Removes every image that no process maps and whose source was changed or has vanished, or that nobody has used
    /// for the given time, and every damaged image. Then it removes more images if the others
    /// take more memory than given. Images that are kept but show more than their source does are restricted to root.
    /// With `dry_run` it only reports what it would do.
    ///
    /// # Errors
    /// [`StoreError::NotPermitted`] or [`StoreError::Io`].
    pub fn collect(&self, collection: Collection) -> Result<Collected, StoreError> {
        let users = Users::read()?;
        let (mut collected, mut kept) = (Collected::default(), Vec::new());
        for mut image in self.list()?.images {
            let is_old = matches!(image.source_state(), SourceState::Changed | SourceState::Gone);
            // A process that this user cannot inspect could map it; root can inspect all relevant processes.
            let is_used = !users.of(&image).is_empty();
            let is_unused = !is_old && collection.unused_for.is_some_and(|time| image.was_unused_for(time));
            // A process that maps a removed image keeps its memory. So an image of an old file is removed even if a
            // process that does not answer may map it.
            let may_be_used = is_unused && !is_used && users.unseen(&image).is_some();
            collected.may_be_in_use += u64::from(may_be_used);
            if (is_old || is_unused) && !is_used && !may_be_used {
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
            kept.push(image);
        }
        self.shrink(kept, &users, collection, &mut collected)?;
        collected.unanswered = users.unanswered;
        if !collection.dry_run {
            collected.debris = self.remove_debris()?;
        }
        Ok(collected)
    }

    /// Removes images of sound files, the longest unused first, until the others take no more than the given bytes.
    fn shrink(
        &self,
        images: Vec<Image>,
        users: &Users,
        collection: Collection,
        collected: &mut Collected,
    ) -> Result<(), StoreError> {
        let sized = images.into_iter().map(|image| Ok((image.memory()?, image)));
        let mut sized = sized.collect::<Result<Vec<_>, StoreError>>()?;
        collected.kept_bytes = sized.iter().map(|(bytes, _)| bytes).sum();
        let Some(most) = collection.most_bytes else { return Ok(()) };
        sized.sort_by_key(|(_, image)| image.last_use());
        for (bytes, image) in sized {
            if collected.kept_bytes <= most {
                break;
            }
            if !users.of(&image).is_empty() || users.unseen(&image).is_some() {
                continue;
            }
            if !collection.dry_run {
                self.remove(&image)?;
            }
            collected.kept_bytes -= bytes;
            collected.bytes += bytes;
            collected.images.push(image);
        }
        Ok(())
    }
}
