//! Makes room for a new image: the limit for automatic images, and the order in which images are removed.

use crate::{Image, Request, SourceState, Space, Store, StoreError};
use linux::leases::Lease;
use nix::sys::statvfs::{FsFlags, fstatvfs};
use std::time::{Duration, SystemTime};

/// Automatic images take no more than this part of a store whose size is bounded.
const SHARE_OF_STORE: u64 = 2;
/// An image that was used within this time is kept. Times of use are exact to a day (`relatime`, mount(8)), and
/// programs that are started in turn must not replace each other's images at each start.
const STAYS_FOR: Duration = Duration::from_secs(24 * 60 * 60);

impl Image {
    /// Returns when it was last opened to be mapped, exact to a day; `None` if the store's mount keeps no such times
    /// (`noatime`). Reads by Pagelift as root do not count.
    pub fn last_use(&self) -> Option<SystemTime> {
        let flags = fstatvfs(&self.file).ok()?.flags();
        if flags.contains(FsFlags::ST_NOATIME) {
            return None;
        }
        self.file.metadata().ok()?.accessed().ok()
    }

    /// True if it was unused for at least this time. An image that a process maps is in use, however long ago it was
    /// mapped.
    pub(crate) fn was_unused_for(&self, time: Duration) -> bool {
        let since = self.last_use().and_then(|used| SystemTime::now().duration_since(used).ok());
        since.is_some_and(|since| since >= time)
    }

    /// True if no process, in any container, has it open or mapped; false if the kernel grants no lease.
    pub(crate) fn is_unmapped(&self) -> bool {
        Lease::against_everybody(&self.file).is_ok()
    }

    fn is_of_no_use(&self) -> bool {
        matches!(self.source_state(), SourceState::Changed | SourceState::Gone)
    }
}

impl Space {
    /// Bytes that automatic images may take; `None` if the size of the store is not limited.
    pub fn most_automatic(&self) -> Option<u64> {
        self.size.map(|size| size / SHARE_OF_STORE)
    }
}

/// Bytes that are to be freed before an image is made.
struct Lack {
    /// Bytes of the whole store.
    room: u64,
    /// Bytes of the part for automatic images.
    share: u64,
}

impl Lack {
    fn without(&self, image: &Image, bytes: u64) -> Self {
        let share = if image.is_automatic() { self.share.saturating_sub(bytes) } else { self.share };
        Self { room: self.room.saturating_sub(bytes), share }
    }

    fn is_nothing(&self) -> bool {
        self.room == 0 && self.share == 0
    }
}

impl Store {
    /// Removes images that no process maps, until there is room for `needed` bytes: first those whose source was
    /// changed or removed, then automatic ones unused for a day. If that would not suffice, nothing is removed.
    ///
    /// # Errors
    /// [`StoreError::Full`] or [`StoreError::OverShare`]: the removable images are not enough, and nothing was removed.
    pub(crate) fn make_room(&self, needed: u64, request: Request) -> Result<(), StoreError> {
        let space = self.space()?;
        let room = space.free.map_or(0, |free| needed.saturating_sub(free));
        let share = space.most_automatic().filter(|_| request.is_automatic());
        if room == 0 && share.is_none() {
            return Ok(());
        }
        let images = self.list()?.images;
        let automatic =
            images.iter().filter(|image| image.is_automatic()).map(Image::memory).sum::<Result<u64, _>>()?;
        let over = share.map_or(0, |share| (automatic + needed).saturating_sub(share));
        let mut lack = Lack { room, share: over };
        if lack.is_nothing() {
            return Ok(());
        }
        let mut going = Vec::new();
        for image in in_order(&images) {
            if lack.is_nothing() {
                break;
            }
            let useful = lack.room > 0 || image.is_automatic();
            if useful && image.is_unmapped() {
                lack = lack.without(image, image.memory()?);
                going.push(image);
            }
        }
        if lack.room > 0 {
            return Err(StoreError::Full { needed, free: space.free.unwrap_or(0) });
        }
        if lack.share > 0 {
            return Err(StoreError::OverShare { needed, found: automatic, allowed: share.unwrap_or(0) });
        }
        going.into_iter().try_for_each(|image| self.remove(image))
    }
}

/// Returns the images that may be removed, in the order of removal.
fn in_order(images: &[Image]) -> impl Iterator<Item = &Image> {
    let (useless, others): (Vec<_>, Vec<_>) = images.iter().partition(|image| image.is_of_no_use());
    let mut unused: Vec<&Image> =
        others.into_iter().filter(|image| image.is_automatic() && image.was_unused_for(STAYS_FOR)).collect();
    unused.sort_by_key(|image| image.last_use());
    useless.into_iter().chain(unused)
}
