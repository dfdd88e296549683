//! Room for a new image: how much those may take that nobody asked for, and which of them go when it is needed.

use crate::{Image, Request, SourceState, Store, StoreError};
use kernel_calls::leases::Lease;
use nix::sys::statvfs::{FsFlags, fstatvfs};
use std::time::{Duration, SystemTime};

/// Images that nobody asked for take no more than this part of a store whose size is bounded.
const SHARE_OF_STORE: u64 = 2;
/// An image that was used within this time stays. Times of use are exact to a day (`relatime`, mount(8)), and programs
/// that are started in turn must not make each other's images anew at each start.
const STAYS_FOR: Duration = Duration::from_secs(24 * 60 * 60);

impl Image {
    /// When it was opened to be mapped for the last time, exact to a day; `None` where the store's mount keeps no such
    /// times (`noatime`). What Pagelift reads as root does not count.
    pub fn last_use(&self) -> Option<SystemTime> {
        let flags = fstatvfs(&self.file).ok()?.flags();
        if flags.contains(FsFlags::ST_NOATIME) {
            return None;
        }
        self.file.metadata().ok()?.accessed().ok()
    }

    /// True where nobody has used it for so long. An image that a process maps is in use, however long ago that began.
    pub(crate) fn was_unused_for(&self, time: Duration) -> bool {
        let since = self.last_use().and_then(|used| SystemTime::now().duration_since(used).ok());
        since.is_some_and(|since| since >= time)
    }

    /// True where no process has it open or mapped, in whichever container; false where the kernel does not tell.
    fn is_unmapped(&self) -> bool {
        Lease::against_everybody(&self.file).is_ok()
    }

    fn is_of_no_use(&self) -> bool {
        matches!(self.source_state(), SourceState::Changed | SourceState::Gone)
    }
}

/// Bytes that are to be freed before an image is made.
struct Lack {
    /// Of the whole store.
    room: u64,
    /// Of what images may take that nobody asked for.
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
    /// Removes images that nobody maps, as far as one of `needed` bytes takes their room: first those of files that were
    /// changed or removed, then those that nobody asked for and nobody has used for a day. None goes in vain.
    ///
    /// # Errors
    /// [`StoreError::Full`] or [`StoreError::OverShare`]: what may be removed is not enough, and all is as it was.
    pub(crate) fn make_room(&self, needed: u64, request: Request) -> Result<(), StoreError> {
        let space = self.space()?;
        let room = space.free.map_or(0, |free| needed.saturating_sub(free));
        let share = space.size.filter(|_| request.is_automatic()).map(|size| size / SHARE_OF_STORE);
        if room == 0 && share.is_none() {
            return Ok(());
        }
        let images = self.list()?.images;
        let automatic =
            images.iter().filter(|image| image.is_automatic()).map(Image::memory).sum::<Result<u64, _>>()?;
        let over = share.map_or(0, |share| (automatic + needed).saturating_sub(share));
        let mut lack = Lack { room, share: over };
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

/// Those that may go, in the order in which they go.
fn in_order(images: &[Image]) -> impl Iterator<Item = &Image> {
    let (useless, others): (Vec<_>, Vec<_>) = images.iter().partition(|image| image.is_of_no_use());
    let mut unused: Vec<&Image> =
        others.into_iter().filter(|image| image.is_automatic() && image.was_unused_for(STAYS_FOR)).collect();
    unused.sort_by_key(|image| image.last_use());
    useless.into_iter().chain(unused)
}
