//! One image, open and ready to be mapped.

use crate::{Form, Layout, SourceKey, SourceState, StoreError, access, origin};
use address_space::{AddressRange, ElfImage, PageSize, Protection};
use nix::sys::stat::{Mode, fchmod};
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Flags that are stored in the mode of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    /// Every user can read its source.
    pub for_everybody: bool,
    /// It was made without a request.
    pub automatic: bool,
}

impl Mark {
    const FOR_EVERYBODY: u32 = 0o444;
    const FOR_ROOT: u32 = 0o400;
    /// The sticky bit, which Linux ignores on a file (inode(7)).
    const AUTOMATIC: u32 = 0o1000;

    /// Returns the flags of a mode.
    pub fn of(mode: u32) -> Self {
        Self { for_everybody: mode & 0o004 != 0, automatic: mode & Self::AUTOMATIC != 0 }
    }

    /// Returns the mode for these flags.
    pub fn mode(self) -> Mode {
        let readers = if self.for_everybody { Self::FOR_EVERYBODY } else { Self::FOR_ROOT };
        let automatic = if self.automatic { Self::AUTOMATIC } else { 0 };
        Mode::from_bits_truncate(readers | automatic)
    }
}

/// A read-only segment and its place in an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageSegment {
    /// Addresses before the bias, in whole base pages; every byte equals the source's.
    pub memory: AddressRange,
    /// Offset in the image, in bytes.
    pub offset: u64,
    /// The segment's protection.
    pub protection: Protection,
}

/// An image in a store, open for reading.
#[derive(Debug)]
pub struct Image {
    pub(crate) path: PathBuf,
    pub(crate) name: String,
    pub(crate) file: File,
    pub(crate) size: u64,
    pub(crate) device: u64,
    pub(crate) inode: u64,
    pub(crate) for_everybody: bool,
    pub(crate) automatic: bool,
    pub(crate) key: SourceKey,
    pub(crate) form: Form,
    pub(crate) source: PathBuf,
    pub(crate) segments: Vec<ImageSegment>,
}

impl Image {
    /// Path of the image, as shown in `/proc/PID/maps`. Its last part is the source's name.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The image, open for reading.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Length in bytes, whole huge pages.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Returns the bytes of memory that the image occupies, as the kernel counts the file's blocks.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn memory(&self) -> Result<u64, StoreError> {
        // stat(2) counts blocks of 512 bytes on every file system.
        const BLOCK: u64 = 512;
        let metadata = self.file.metadata().map_err(|error| StoreError::io("fstat of an image", error))?;
        Ok(metadata.blocks() * BLOCK)
    }

    /// Device number (as stat(2) gives it) and inode, by which users of the image are found in maps.
    pub fn device_and_inode(&self) -> (u64, u64) {
        (self.device, self.inode)
    }

    /// False if not every user can read the source: then only root can open the image.
    pub fn for_everybody(&self) -> bool {
        self.for_everybody
    }

    /// True if it was made without a request, because a process could use it.
    pub fn is_automatic(&self) -> bool {
        self.automatic
    }

    /// True if every user can read the image, but not its source.
    pub(crate) fn shows_too_much(&self) -> bool {
        self.for_everybody && !access::is_readable_by_everybody(&self.source, &self.key.file())
    }

    /// Restricts it to root. Processes that map it keep their memory.
    pub(crate) fn withdraw(&mut self) -> Result<(), StoreError> {
        self.set_mode(Mark { for_everybody: false, automatic: self.automatic })
    }

    /// Sets the mode for these flags, if it differs.
    pub(crate) fn set_mode(&mut self, mark: Mark) -> Result<(), StoreError> {
        if mark != (Mark { for_everybody: self.for_everybody, automatic: self.automatic }) {
            fchmod(&self.file, mark.mode()).map_err(|error| StoreError::io("changing the mode of an image", error))?;
            Mark { for_everybody: self.for_everybody, automatic: self.automatic } = mark;
        }
        Ok(())
    }

    /// The file it was made from.
    pub fn key(&self) -> &SourceKey {
        &self.key
    }

    /// The layout: for which bases it can be mapped.
    pub fn layout(&self) -> Layout {
        self.form.layout
    }

    /// The NUMA node for which it is a copy: all its pages lay there when it was made. `None` for an image that all nodes
    /// share.
    pub fn node(&self) -> Option<u32> {
        self.form.node
    }

    /// Path that the source had when the image was made. For display only.
    pub fn source(&self) -> &Path {
        &self.source
    }

    /// Returns the state of the file at the source's path.
    pub fn source_state(&self) -> SourceState {
        origin::state_of(&self.source, &self.key)
    }

    /// The read-only segments, lowest first.
    pub fn segments(&self) -> &[ImageSegment] {
        &self.segments
    }

    /// Returns the offset at which `mmap` maps `range` of an object with this bias from the image.
    ///
    /// `None` if an address would not agree with its offset modulo the huge page size, or if any byte of the range is
    /// outside the read-only segments. A range may span segments that touch, as `merge-read-only` makes them.
    pub fn offset_of(&self, range: AddressRange, bias: u64) -> Option<u64> {
        if !self.layout().fits(bias) || range.is_empty() {
            return None;
        }
        let in_file = range.shifted(bias.wrapping_neg());
        let first = self.segments.iter().find(|segment| segment.memory.contains(in_file.start()))?;
        let displacement = first.offset.wrapping_sub(first.memory.start().0);
        let mut covered = in_file.start();
        for segment in self.segments.iter().filter(|s| s.memory.overlaps(in_file)) {
            let same = segment.offset.wrapping_sub(segment.memory.start().0) == displacement;
            if segment.memory.start() > covered || !same {
                return None;
            }
            covered = segment.memory.end();
        }
        (covered >= in_file.end()).then(|| in_file.start().0.wrapping_add(displacement))
    }
}

/// The segments of an image that can be mapped: readable, never written, nothing in them but the file's contents.
pub(crate) fn mappable_segments(image: &ElfImage, base_page: PageSize) -> Vec<ImageSegment> {
    let mut segments: Vec<ImageSegment> = Vec::new();
    for segment in &image.segments {
        let pages = segment.memory.widened(base_page);
        // A page that two segments share shows the later one, which is mapped over it.
        if let Some(last) = segments.last_mut() {
            last.memory = AddressRange::new(last.memory.start(), last.memory.end().min(pages.start()));
        }
        let Protection { read, write, .. } = segment.protection;
        if read && !write && segment.file_size == segment.memory.len() && segment.file_size > 0 {
            let before = segment.memory.start() - pages.start();
            let offset = segment.offset.saturating_sub(before);
            segments.push(ImageSegment { memory: pages, offset, protection: segment.protection });
        }
    }
    segments.retain(|segment| !segment.memory.is_empty());
    segments
}
